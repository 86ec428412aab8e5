import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from learn_batches import advantages_of, loss_mask, make_batch, scored, weights_of
from torch import Tensor

from assay.learn.algorithms import ALGORITHMS, Algorithm, algorithm
from assay.learn.losses import (
    LossParts,
    gains_where_first_met,
    kl_estimate,
    policy_loss,
    token_weights,
)
from assay.model.packing import Batch


def slow_surrogate(
    row: Algorithm, own: Tensor, others: Tensor, log_ratio: Tensor, advantage: float
) -> Tensor:
    """One token's surrogate. own: its log-probability; others: its row's log-ratios; log_ratio: its own."""
    level = {
        "token": log_ratio,
        "sequence_mean": others.sum() / len(others),
        "sequence_product": others.sum(),
    }[row.ratio_level]
    ratio = torch.exp(level)
    bounded = min(max(ratio.item(), 1 - row.clip_low), 1 + row.clip_high)
    if row.surrogate == "log_likelihood":
        return -advantage * own
    if row.surrogate == "mirror":
        return -advantage * own + row.tau / 2 * others.sum() ** 2 / len(others)
    if row.surrogate == "cispo":
        return -bounded * advantage * own
    gain = ratio * advantage
    if row.surrogate == "clip" and bounded * advantage < gain.item():
        gain = ratio.new_tensor(bounded * advantage)
    if row.dual_clip is not None and advantage < 0 and gain.item() < row.dual_clip * advantage:
        gain = ratio.new_tensor(row.dual_clip * advantage)
    return -gain


def slow_loss(
    batch: Batch, row: Algorithm, logprobs: Tensor, entropy: Tensor, advantages: Tensor
) -> Tensor:
    """Per token, per completion, straight from the papers; each prompt counts alike."""
    mask = loss_mask(batch, row)
    counted = loss_mask(batch, replace(row, keep="all"))
    old, ref = batch.old_logprobs_T.double(), batch.ref_logprobs_T.double()  # type: ignore[union-attr]
    behavior = batch.behavior_logprobs_T.double()
    groups = batch.group_R.tolist()
    sums: list[Tensor] = []
    shares: list[float] = []
    lengths: list[int] = []
    for number in range(batch.num_rows):
        total = torch.zeros((), dtype=torch.float64)
        own = [t for t in range(batch.num_tokens) if batch.row_T[t] == number]
        if not any(counted[t] for t in own):
            continue
        tokens = [t for t in own if mask[t]]
        others = logprobs[tokens] - old[tokens]
        for token in tokens:
            log_ratio = logprobs[token] - old[token]
            advantage = advantages[token].item()
            term = slow_surrogate(row, logprobs[token], others, log_ratio, advantage)
            if row.importance_cap is not None:
                weight = math.exp(old[token].item() - behavior[token].item())
                term = term * min(weight, row.importance_cap)
            if row.kl_in_loss:
                d = logprobs[token] - ref[token]
                kl = {"k1": d, "k2": d * d / 2, "k3": torch.exp(-d) - 1 + d}[row.kl_estimator]
                term = term + row.kl_weight * kl
            term = term + row.penalty_weight * (torch.exp(log_ratio) - 1 - log_ratio)
            total = total + term - row.entropy_weight * entropy[token]
        sums.append(total)
        shares.append(1 / groups.count(groups[number]))
        lengths.append(sum(bool(counted[t]) for t in own))
    each = list(zip(shares, sums, lengths, strict=True))
    if row.aggregation == "sequence_mean":
        return sum(share * total / length for share, total, length in each) / sum(shares)
    if row.aggregation == "token_mean":
        tokens_in_all = sum(share * length for share, _, length in each)
        return sum(share * total for share, total, _ in each) / tokens_in_all
    mean = sum(share * total for share, total, _ in each) / sum(shares)
    return mean / row.constant_length()


def a_batch() -> Batch:
    """Scored, with values, steps, another generator, and something of all that is left out."""
    batch = scored(
        make_batch(
            [[1.0, 0.0, 0.0, 0.5], [1.0, None, 0.0], [1.0, None], [0.0, 0.0, 0.0]],
            truncated=[(0, 1), (1, 2)],
            unsampled=[(0, 0, 0)],
            seed=3,
        )
    )
    generator = torch.Generator().manual_seed(5)
    steps_T = torch.rand(batch.num_tokens, generator=generator) < 0.5
    scores_T = torch.rand(batch.num_tokens, generator=generator)
    return replace(
        batch,
        behavior_logprobs_T=-3 * torch.rand(batch.num_tokens, generator=generator),
        values_T=torch.rand(batch.num_tokens, generator=generator),
        step_ends_T=steps_T,
        step_scores_T=torch.where(steps_T, scores_T, 0.0),
    )


SURROGATES: list[dict[str, Any]] = [
    {"surrogate": "clip"},
    {"surrogate": "clip", "dual_clip": 1.5},
    {"surrogate": "ratio"},
    {"surrogate": "ratio", "dual_clip": 1.5},
    {"surrogate": "cispo", "clip_low": 1.0},
    {"surrogate": "cispo"},
    {"surrogate": "log_likelihood"},
    {"surrogate": "mirror", "tau": 0.7},
]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"kl_weight": 0.3, "kl_estimator": "k1", "kl_place": "loss"},
    {"kl_weight": 0.3, "kl_estimator": "k2", "kl_place": "loss"},
    {"kl_weight": 0.3, "kl_estimator": "k3", "kl_place": "loss"},
    {"kl_weight": 0.3, "kl_place": "reward"},
    {"entropy_weight": 0.01, "clip_low": 0.1, "clip_high": 0.5},
    {"importance_cap": 1.3},
    {"penalty_weight": 0.8},
]


def assert_equal_to_the_loop(row: Algorithm, seed: int = 7) -> None:
    """Loss, and gradients by log-probabilities and entropy, off-policy, in float64."""
    batch = a_batch()
    advantages = advantages_of(batch, row)
    generator = torch.Generator().manual_seed(seed)
    assert batch.old_logprobs_T is not None and batch.ref_logprobs_T is not None
    noise = torch.randn(batch.num_tokens, generator=generator, dtype=torch.float64)
    start = batch.old_logprobs_T.double() + noise
    entropy = torch.rand(batch.num_tokens, generator=generator, dtype=torch.float64)
    weights = weights_of(batch, row)
    results: list[tuple[Tensor, ...]] = []
    for slow in (False, True):
        logprobs = start.clone().requires_grad_()
        entropies = entropy.clone().requires_grad_()
        if slow:
            loss = slow_loss(batch, row, logprobs, entropies, advantages)
        else:
            loss = policy_loss(
                logprobs,
                batch.old_logprobs_T.double(),
                advantages.double(),
                weights,
                row,
                replace(
                    batch,
                    behavior_logprobs_T=batch.behavior_logprobs_T.double(),
                    ref_logprobs_T=batch.ref_logprobs_T.double(),
                ),
                entropies,
            ).loss
        loss.backward()
        gradient = entropies.grad if entropies.grad is not None else torch.zeros_like(entropies)
        assert logprobs.grad is not None
        results.append((loss.detach(), logprobs.grad, gradient))
    for fast, slow_one in zip(*results, strict=True):
        torch.testing.assert_close(fast, slow_one, rtol=1e-9, atol=1e-12)
    assert results[0][1].any()


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("aggregation", ["sequence_mean", "token_mean", "constant_length"])
def test_every_row_equals_the_loop(name: str, aggregation: str) -> None:
    assert_equal_to_the_loop(algorithm(name, aggregation=aggregation, max_tokens=12))


@pytest.mark.parametrize("name", ["grpo", "rloo"])
@pytest.mark.parametrize("changes", OPTIONS)
def test_every_option_equals_the_loop(name: str, changes: dict[str, Any]) -> None:
    assert_equal_to_the_loop(algorithm(name, max_tokens=12, **changes))


@pytest.mark.parametrize("level", ["token", "sequence_mean", "sequence_product"])
@pytest.mark.parametrize("surrogate", SURROGATES)
@pytest.mark.parametrize("option", OPTIONS)
def test_every_surrogate_at_every_level_equals_the_loop(
    surrogate: dict[str, Any], level: str, option: dict[str, Any]
) -> None:
    changes = {"max_tokens": 12, "ratio_level": level} | option | surrogate
    assert_equal_to_the_loop(algorithm("grpo", **changes), len(option) + len(level))


@pytest.mark.parametrize("surrogate", SURROGATES)
@given(seed=st.integers(0, 2**16))
@settings(max_examples=5)
def test_every_surrogate_equals_the_loop_on_any_ratios(
    surrogate: dict[str, Any], seed: int
) -> None:
    assert_equal_to_the_loop(algorithm("dapo", max_tokens=12, **surrogate), seed)


def test_loss_parts_add_up() -> None:
    batch = a_batch()
    row = algorithm("grpo", entropy_weight=0.1)
    weights = weights_of(batch, row)
    parts = policy_loss(
        batch.old_logprobs_T + 0.05,  # type: ignore[operator]
        batch.old_logprobs_T,  # type: ignore[arg-type]
        advantages_of(batch, row),
        weights,
        row,
        batch,
        torch.ones(batch.num_tokens),
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


def one_token(row: Algorithm, log_ratio: float, advantage: float) -> tuple[LossParts, float]:
    """The loss of one token at this log-ratio, and its gradient."""
    logprobs_T = torch.tensor([-1.0 + log_ratio], dtype=torch.float64, requires_grad=True)
    one_T = torch.ones(1, dtype=torch.float64)
    parts = policy_loss(logprobs_T, -one_T, advantage * one_T, one_T, row)
    parts.loss.backward()
    assert logprobs_T.grad is not None
    return parts, logprobs_T.grad.item()


@pytest.mark.parametrize(("log_ratio", "clipped"), [(0.3, False), (0.7, True), (-0.7, False)])
def test_dual_clip_ends_the_pull_on_a_completion_that_grew_too_likely(
    log_ratio: float, clipped: bool
) -> None:
    """Ye et al. 2020, eq. 5: at A < 0 the ratio counts at most 1.5 (log 0.405)."""
    row = algorithm("dr_grpo", max_tokens=1, dual_clip=1.5, clip_low=0.9)
    parts, gradient = one_token(row, log_ratio, -1.0)
    assert parts.clipped_T.item() == clipped == (gradient == 0)
    assert parts.policy.item() == pytest.approx(min(math.exp(log_ratio), 1.5))
    assert not one_token(row, 0.7, 1.0)[0].policy.isnan()


@pytest.mark.parametrize("log_ratio", [2.0, 0.1, -3.0])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_cispo_bounds_the_weight_and_keeps_the_gradient(log_ratio: float, advantage: float) -> None:
    """No token loses its gradient: MiniMax-M1, eq. 4; the row has no lower bound, and a ceiling of 5."""
    parts, gradient = one_token(algorithm("cispo"), log_ratio, advantage)
    assert gradient == pytest.approx(-advantage * min(math.exp(log_ratio), 5.0))
    assert parts.clipped_T.item() == (log_ratio == 2.0)


def test_a_ratio_of_completions_is_shared_by_its_tokens() -> None:
    """By hand: two sampled tokens up by 0.1 and 0.3, one that was not sampled, and another row."""
    logprobs_T = torch.tensor([-0.9, -5.0, -0.7, -1.0])
    old_T = torch.full((4,), -1.0)
    rows: Any = SimpleNamespace(
        row_T=torch.tensor([0, 0, 0, 1]),
        num_rows=2,
        sampled_T=torch.tensor([True, False, True, True]),
    )
    for name, log_ratio in (("gspo", 0.2), ("gspo_product", 0.4)):
        one_T = torch.ones(4)
        parts = policy_loss(logprobs_T, old_T, one_T, one_T, ALGORITHMS[name], rows)
        want = [math.exp(log_ratio)] * 3 + [1.0]
        assert parts.ratio_T.tolist() == pytest.approx(want)
        assert parts.clipped_T.tolist() == [True, True, True, False]
    with pytest.raises(ValueError, match="needs the batch"):
        policy_loss(logprobs_T, old_T, old_T, old_T, ALGORITHMS["gspo"])


def test_the_penalty_is_measured_where_it_is_not_charged() -> None:
    charged, charged_gradient = one_token(algorithm("ppo_penalty", penalty_weight=2.0), 0.5, 0.0)
    free, free_gradient = one_token(algorithm("ppo", clip_high=9.0), 0.5, 0.0)
    kl = math.exp(0.5) - 1.5
    assert charged.penalty.item() == free.penalty.item() == pytest.approx(kl)
    assert charged.old_kl_T.tolist() == free.old_kl_T.tolist() == pytest.approx([kl])
    assert charged.loss.item() == pytest.approx(2 * kl)
    assert charged_gradient == pytest.approx(2 * (math.exp(0.5) - 1))
    assert free_gradient == 0


@pytest.mark.parametrize("jump", [1e3, -1e3])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_extreme_ratios_stay_finite(jump: float, advantage: float, name: str) -> None:
    """Of single tokens, and of a completion of eight of them: exp(160) would be infinite."""
    logprobs = torch.tensor([jump] * 8 + [-1.0], requires_grad=True)
    zero, one = torch.zeros(9), torch.ones(9)
    rows: Any = SimpleNamespace(
        row_T=torch.tensor([0] * 8 + [1]),
        num_rows=2,
        sampled_T=one.bool(),
        ref_logprobs_T=zero,
        kl_factor_R=None,
    )
    parts = policy_loss(logprobs, zero, one * advantage, one, algorithm(name), rows)
    parts.loss.backward()
    assert parts.loss.isfinite()
    assert logprobs.grad is not None and logprobs.grad.isfinite().all()


@pytest.mark.parametrize("entropy_weight", [0.0, 0.1])
@pytest.mark.parametrize("level", ["token", "sequence_mean", "sequence_product"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_gains_are_the_gradients_of_the_first_pass(
    name: str, level: str, entropy_weight: float
) -> None:
    """To the last bit, in float32, for every row whose loss has no KL: the head relies on it."""
    row = replace(
        algorithm(name, max_tokens=12, ratio_level=level, entropy_weight=entropy_weight),
        **({"kl_weight": 0.0} if ALGORITHMS[name].kl_in_loss else {}),
    )
    batch = a_batch()
    advantages_T = advantages_of(batch, row)
    weights_T = weights_of(batch, row).float()
    gains = gains_where_first_met(advantages_T, weights_T, row, batch)
    assert gains is not None and batch.old_logprobs_T is not None
    logprobs_T = batch.old_logprobs_T.clone().requires_grad_()
    entropy_T = torch.rand(batch.num_tokens).requires_grad_()
    policy_loss(
        logprobs_T,
        batch.old_logprobs_T,
        advantages_T,
        weights_T,
        row,
        batch,
        entropy_T,
    ).loss.backward()
    assert gains.equal(logprobs_T.grad, entropy_T.grad, None)
    assert gains.logprobs_T.any()


@pytest.mark.parametrize("changes", [{"kl_weight": 0.1}, {"importance_cap": 2.0}])
def test_gains_are_not_known_beforehand(changes: dict[str, Any]) -> None:
    one_T = torch.ones(2)
    assert gains_where_first_met(one_T, one_T, algorithm("dr_grpo", **changes)) is None


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


def test_the_penalty_estimates_the_exact_kl_from_the_old_policy() -> None:
    """Under the old policy's samples, exp(lr) - 1 - lr has the expectation KL(old || new), and is never negative."""
    generator = torch.Generator().manual_seed(1)
    old_V, new_V = torch.randn(2, 5, generator=generator, dtype=torch.float64).log_softmax(1)
    parts = policy_loss(new_V, old_V, old_V, old_V.exp(), algorithm("ppo_penalty"))
    exact = (old_V.exp() * (old_V - new_V)).sum()
    torch.testing.assert_close(parts.penalty, exact)
    assert (parts.old_kl_T >= 0).all()
