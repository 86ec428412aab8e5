import math

import pytest
import torch
from learn_batches import make_batch, scored
from torch import Tensor

from assay.learn.advantages import compute_advantages, loss_mask
from assay.learn.algorithms import Algorithm, algorithm
from assay.learn.losses import kl_estimate, policy_loss, token_weights
from assay.model.packing import Batch


def slow_loss(
    batch: Batch, row: Algorithm, logprobs: Tensor, entropy: Tensor, advantages: Tensor
) -> Tensor:
    """Per token, per completion, straight from the papers."""
    mask = loss_mask(batch, row)
    old, ref = batch.old_logprobs_T.double(), batch.ref_logprobs_T.double()  # type: ignore[union-attr]
    row_sums: list[Tensor] = []
    row_lengths: list[int] = []
    for number in range(batch.num_rows):
        total = torch.zeros((), dtype=torch.float64)
        length = 0
        for token in torch.nonzero(batch.row_T == number).flatten().tolist():
            if not mask[token]:
                continue
            length += 1
            ratio = torch.exp(logprobs[token] - old[token])
            clipped = min(max(ratio.item(), 1 - row.clip_low), 1 + row.clip_high)
            advantage = advantages[token].item()
            plain, bounded = ratio * advantage, ratio.new_tensor(clipped * advantage)
            term = -plain if plain.item() <= bounded.item() else -bounded
            if row.kl_in_loss:
                d = logprobs[token] - ref[token]
                kl = {"k1": d, "k2": d * d / 2, "k3": torch.exp(-d) - 1 + d}[row.kl_estimator]
                term = term + row.kl_weight * kl
            total = total + term - row.entropy_weight * entropy[token]
        if length:
            row_sums.append(total)
            row_lengths.append(length)
    if row.aggregation == "sequence_mean":
        means = [total / length for total, length in zip(row_sums, row_lengths, strict=True)]
        return torch.stack(means).mean()
    if row.aggregation == "token_mean":
        return torch.stack(row_sums).sum() / sum(row_lengths)
    return torch.stack(row_sums).mean() / row.constant_length()


def a_batch() -> Batch:
    return scored(
        make_batch(
            [[1.0, 0.0, 0.0, 0.5], [1.0, None, 0.0], [1.0, None], [0.0, 0.0, 0.0]],
            truncated=[(0, 1), (1, 2)],
            unsampled=[(0, 0, 0)],
            seed=3,
        )
    )


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "dapo", "rloo"])
@pytest.mark.parametrize("aggregation", ["sequence_mean", "token_mean", "constant_length"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"kl_weight": 0.3, "kl_estimator": "k1", "kl_place": "loss"},
        {"kl_weight": 0.3, "kl_estimator": "k2", "kl_place": "loss"},
        {"kl_weight": 0.3, "kl_estimator": "k3", "kl_place": "loss"},
        {"kl_weight": 0.3, "kl_place": "reward"},
        {"entropy_weight": 0.01, "clip_low": 0.1, "clip_high": 0.5},
    ],
)
def test_loss_and_gradient_equal_the_loop(
    name: str, aggregation: str, changes: dict[str, object]
) -> None:
    batch = a_batch()
    row = algorithm(name, aggregation=aggregation, max_tokens=12, **changes)
    advantages = compute_advantages(batch, row)
    generator = torch.Generator().manual_seed(7)
    start = batch.old_logprobs_T.double() + torch.randn(  # type: ignore[union-attr]
        batch.num_tokens, generator=generator, dtype=torch.float64
    )
    entropy = torch.rand(batch.num_tokens, generator=generator, dtype=torch.float64)
    weights = token_weights(
        loss_mask(batch, row),
        batch.row_T,
        batch.num_rows,
        row.aggregation,
        row.constant_length(),
    )
    results: list[tuple[Tensor, ...]] = []
    for slow in (False, True):
        logprobs = start.clone().requires_grad_()
        entropies = entropy.clone().requires_grad_()
        if slow:
            loss = slow_loss(batch, row, logprobs, entropies, advantages)
        else:
            parts = policy_loss(
                logprobs,
                batch.old_logprobs_T.double(),  # type: ignore[union-attr]
                advantages.double(),
                weights,
                row,
                ref_logprobs_T=batch.ref_logprobs_T.double(),  # type: ignore[union-attr]
                entropy_T=entropies,
            )
            assert parts.clipped_T.any()
            loss = parts.loss
        loss.backward()
        gradient = entropies.grad if entropies.grad is not None else torch.zeros_like(entropies)
        results.append((loss.detach(), logprobs.grad, gradient))  # type: ignore[arg-type]
    for fast, slow_one in zip(*results, strict=True):
        torch.testing.assert_close(fast, slow_one, rtol=1e-9, atol=1e-12)


def test_loss_parts_add_up() -> None:
    batch = a_batch()
    row = algorithm("grpo", entropy_weight=0.1)
    weights = token_weights(loss_mask(batch, row), batch.row_T, batch.num_rows, row.aggregation)
    parts = policy_loss(
        batch.old_logprobs_T + 0.05,  # type: ignore[operator]
        batch.old_logprobs_T,  # type: ignore[arg-type]
        compute_advantages(batch, row),
        weights,
        row,
        ref_logprobs_T=batch.ref_logprobs_T,
        entropy_T=torch.ones(batch.num_tokens),
    )
    assert float(parts.entropy) == pytest.approx(1.0)  # the weights sum to one
    together = parts.policy + row.kl_weight * parts.kl - row.entropy_weight * parts.entropy
    assert parts.loss.item() == pytest.approx(together.item())
    assert parts.ratio_T.tolist() == pytest.approx([math.exp(0.05)] * batch.num_tokens, rel=1e-5)


def test_weights_by_hand() -> None:
    mask_T = torch.tensor([True, True, True, False, True, False])
    row_T = torch.tensor([0, 0, 1, 1, 1, 2])
    sequence = token_weights(mask_T, row_T, 3, "sequence_mean")
    assert sequence.tolist() == [1 / 4, 1 / 4, 1 / 4, 0, 1 / 4, 0]
    assert token_weights(mask_T, row_T, 3, "token_mean").tolist() == [0.25] * 3 + [0, 0.25, 0]
    constant = token_weights(mask_T, row_T, 3, "constant_length", 10)
    assert constant.tolist() == [1 / 20] * 3 + [0, 1 / 20, 0]


@pytest.mark.parametrize("aggregation", ["sequence_mean", "token_mean", "constant_length"])
def test_nothing_to_learn_from_has_no_weight(aggregation: str) -> None:
    nothing_T = torch.zeros(4, dtype=torch.bool)
    row_T = torch.tensor([0, 0, 1, 1])
    weights_T = token_weights(nothing_T, row_T, 2, aggregation)  # type: ignore[arg-type]
    assert weights_T.tolist() == [0, 0, 0, 0]


def test_equal_logprobs_have_ratio_one_and_the_plain_gradient() -> None:
    logprobs = torch.tensor([-1.0, -2.0, -0.5], requires_grad=True)
    advantages = torch.tensor([2.0, -1.0, 0.0])
    weights = torch.full((3,), 1 / 3)
    row = algorithm("dapo", max_tokens=8)
    parts = policy_loss(logprobs, logprobs.detach(), advantages, weights, row)
    parts.loss.backward()
    assert parts.ratio_T.tolist() == [1.0, 1.0, 1.0]
    assert not parts.clipped_T.any()
    torch.testing.assert_close(logprobs.grad, -advantages / 3)


@pytest.mark.parametrize(
    ("log_ratio", "advantage", "clipped"),
    [(0.5, 1.0, True), (0.5, -1.0, False), (-0.5, 1.0, False), (-0.5, -1.0, True)],
)
def test_clip_takes_the_gradient_on_one_side_only(
    log_ratio: float, advantage: float, clipped: bool
) -> None:
    logprobs = torch.tensor([-1.0 + log_ratio], requires_grad=True)
    parts = policy_loss(
        logprobs,
        torch.tensor([-1.0]),
        torch.tensor([advantage]),
        torch.ones(1),
        algorithm("dr_grpo", max_tokens=1),
    )
    parts.loss.backward()
    assert parts.clipped_T.item() == clipped
    assert (float(logprobs.grad) == 0) == clipped  # type: ignore[arg-type]


@pytest.mark.parametrize("jump", [1e3, -1e3])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_extreme_ratios_stay_finite(jump: float, advantage: float) -> None:
    logprobs = torch.tensor([jump], requires_grad=True)
    row = algorithm("grpo")
    zero, one = torch.zeros(1), torch.ones(1)
    parts = policy_loss(logprobs, zero, one * advantage, one, row, ref_logprobs_T=zero)
    parts.loss.backward()
    assert parts.loss.isfinite()
    assert logprobs.grad is not None and logprobs.grad.isfinite().all()


def test_kl_estimates_against_the_exact_kl() -> None:
    generator = torch.Generator().manual_seed(0)
    policy_V, reference_V = torch.randn(2, 5, generator=generator, dtype=torch.float64).log_softmax(
        1
    )
    exact = float((policy_V.exp() * (policy_V - reference_V)).sum())
    expected = {
        estimator: float((policy_V.exp() * kl_estimate(policy_V, reference_V, estimator)).sum())
        for estimator in ("k1", "k2", "k3")
    }
    assert expected["k1"] == pytest.approx(exact)
    assert expected["k3"] == pytest.approx(exact)
    assert abs(expected["k2"] - exact) > 1e-3  # biased as a value
    assert (kl_estimate(policy_V, reference_V, "k3") >= 0).all()
