from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from learn_batches import advantages_of, make_batch, weights_of
from learn_learners import (
    VOCAB,
    a_batch,
    a_learner,
    a_model,
    assert_same,
    collect_gradients,
    learn,
    plain_logprobs,
    weights,
)
from torch import Tensor, nn

import assay.learn.passes as passes_module
from assay.config import OptimizerConfig
from assay.learn.advantages import compute_advantages
from assay.learn.algorithms import ALGORITHMS, Algorithm, algorithm
from assay.learn.losses import policy_loss
from assay.model.head import Gains
from assay.model.packing import Batch

pytestmark = pytest.mark.usefixtures("one_thread")


def plain_gradient(model: Any, reference: Any, batch: Batch, row: Algorithm) -> dict[str, Tensor]:
    """The whole batch at once, nothing passed over."""
    logprobs_T, entropy_T = plain_logprobs(model, batch, temperature=0.7)
    with torch.no_grad():
        ref_T, _ = plain_logprobs(reference, batch, temperature=0.7)
    filled = replace(batch, old_logprobs_T=logprobs_T.detach(), ref_logprobs_T=ref_T)
    weights_T = weights_of(batch, row)
    parts = policy_loss(
        logprobs_T,
        logprobs_T.detach(),
        advantages_of(filled, row),
        weights_T,
        row,
        filled,
        entropy_T,
    )
    parts.loss.backward()
    return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


ROWS = {
    "grpo": algorithm("grpo"),
    "dr_grpo": algorithm("dr_grpo", max_tokens=9),
    "dapo": algorithm("dapo", max_tokens=9),
    "rloo": algorithm("rloo"),
    "rloo, KL in the reward": algorithm("rloo", kl_weight=0.1),
    "grpo, entropy bonus": algorithm("grpo", kl_weight=0.0, entropy_weight=0.1),
}


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("layout", ["plain", "tree"])
def test_gradient_equals_the_plain_one(name: str, layout: str) -> None:
    row, batch = ROWS[name], a_batch()
    learner = a_learner(row, layout=layout, temperature=0.7, keep_reference=True)
    with torch.no_grad():  # away from the reference
        for parameter in learner.policy.parameters():
            parameter.add_(0.01)
    model = a_model()
    model.load_state_dict(learner.policy.state_dict())
    [got] = collect_gradients(learner, batch)
    want = plain_gradient(model, a_model(), batch, row)
    assert_same(got, want, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("max_tokens", [1, 9, 20, 60])
def test_any_split_into_micro_batches_gives_the_same_gradient(name: str, max_tokens: int) -> None:
    batch = a_batch()
    [whole] = collect_gradients(a_learner(ROWS[name]), batch)
    parts = a_learner(ROWS[name], max_tokens_per_micro_batch=max_tokens)
    [split] = collect_gradients(parts, batch)
    assert_same(split, whole, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_batch_that_is_only_measured_changes_nothing(name: str, tmp_path: Path) -> None:
    """Whatever the row adds up: a punishment of length, the KL in its place, an entropy bonus, a critic.

    DAPO's dynamic sampling found no group with both right and wrong completions.
    """
    extras = {"kl_weight": 0.1, "entropy_weight": 0.1, "dynamic_sampling": True}
    if name != "grpo_process":
        extras["overlong_buffer"] = 4
    row = algorithm(name, max_tokens=9, **extras)
    batch = a_batch()
    ends_T = torch.ones_like(batch.sampled_T)
    batch = replace(batch, step_ends_T=ends_T, step_scores_T=torch.rand(len(ends_T)))
    decays = OptimizerConfig(learning_rate=0.01, weight_decay=0.1)
    learner = a_learner(row, optimizer=decays, keep_reference=True)
    learn(learner, batch)  # the moments are no longer zero
    learner.save_state(tmp_path / "before")
    all_right_R = torch.where(batch.judged_R, 1.0, torch.nan)
    update = learn(learner, replace(batch, correct_R=all_right_R))
    learner.save_state(tmp_path / "after")
    for file in sorted((tmp_path / "before").rglob("*.*")):
        again = tmp_path / "after" / file.relative_to(tmp_path / "before")
        assert file.read_bytes() == again.read_bytes(), file.name
    assert update.policy_version == learner.policy_version
    assert update.metrics["optimizer/steps"] == update.metrics["tokens/trained"] == 0
    assert update.metrics["loss/token_share"] == 0 and update.metrics["entropy/mean"] > 0
    assert update.metrics["kl/mean"] > 0 and not update.advantages_T.any()  # pyright: ignore


def test_an_update_is_repeatable_to_the_bit() -> None:
    results = []
    for _ in range(2):
        learner = a_learner(algorithm("grpo"), epochs=2, num_minibatches=2)
        update = learn(learner, a_batch())
        results.append((weights(learner.policy), update.metrics))
    assert_same(results[0][0], results[1][0], rtol=0, atol=0)
    assert results[0][1] == results[1][1]


def test_the_first_forward_pass_replaces_scoring() -> None:
    row, batch = algorithm("dr_grpo", max_tokens=9), a_batch()
    learner = a_learner(row)
    assert learner.score_batch(batch) is batch  # no forward pass at all
    before, _ = plain_logprobs(learner.policy, batch)
    update = learn(learner, batch)
    assert update.batch is not None
    torch.testing.assert_close(update.batch.old_logprobs_T, before.detach())
    assert update.metrics["ratio/mean"] == update.metrics["ratio/max"] == 1.0
    assert update.metrics["loss/clip_fraction"] == 0.0


def test_several_minibatches_and_a_kl_in_the_reward_score_first() -> None:
    batch = a_batch()
    for learner in (
        a_learner(algorithm("rloo"), num_minibatches=2),
        a_learner(algorithm("rloo", kl_weight=0.1)),
    ):
        before, _ = plain_logprobs(learner.policy, batch)
        torch.testing.assert_close(learner.score_batch(batch).old_logprobs_T, before.detach())


@pytest.mark.parametrize("num_minibatches", [1, 2])
def test_epochs_hold_on_to_the_old_logprobs(num_minibatches: int) -> None:
    """From the second pass on the ratio moves, and it is measured from where the update began."""
    batch = a_batch()
    learner = a_learner(
        algorithm("dapo", max_tokens=9),
        epochs=3,
        num_minibatches=num_minibatches,
        optimizer=OptimizerConfig(learning_rate=0.01),
    )
    before, _ = plain_logprobs(learner.policy, batch)
    update = learn(learner, batch)
    assert update.batch is not None
    torch.testing.assert_close(update.batch.old_logprobs_T, before.detach())
    assert update.metrics["ratio/max"] > 1.05 and update.metrics["ratio/min"] < 0.95
    assert update.metrics["loss/clip_fraction"] > 0
    assert update.policy_version == learner.policy_version == 3 * num_minibatches


def test_second_epoch_by_hand() -> None:
    batch, row = a_batch(), algorithm("grpo", kl_weight=0.0)
    learner = a_learner(row, epochs=2)
    update = learn(learner, batch)
    model, advantages_T = a_model(), advantages_of(batch, row)
    adamw = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.0)
    weights_T = weights_of(batch, row)
    old_T = plain_logprobs(model, batch)[0].detach()
    for _ in range(2):
        logprobs_T, _ = plain_logprobs(model, batch)
        policy_loss(logprobs_T, old_T, advantages_T, weights_T, row).loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adamw.step()
        adamw.zero_grad()
    assert_same(weights(learner.policy), weights(model), rtol=1e-3, atol=1e-5)
    assert update.metrics["optimizer/steps"] == 2


def test_minibatches_share_out_the_groups_and_normalize_on_their_own() -> None:
    batch = make_batch([[1.0, 0.0]] * 6, vocab_size=VOCAB)
    learner = a_learner(algorithm("grpo", kl_weight=0.0), num_minibatches=3, seed=5)
    shares = [groups for _, groups in learner._minibatches(batch)]
    assert sorted(group for share in shares for group in share) == list(range(6))
    assert shares != [[0, 1], [2, 3], [4, 5]]  # shuffled
    gradients = collect_gradients(learner, batch)
    assert len(gradients) == 3
    for share, gradient in zip(shares, gradients, strict=True):
        [alone] = collect_gradients(
            a_learner(algorithm("grpo", kl_weight=0.0)), batch.select_groups(sorted(share))
        )
        assert_same(gradient, alone, rtol=1e-4, atol=1e-6)


def test_more_minibatches_than_groups() -> None:
    learner = a_learner(algorithm("rloo"), num_minibatches=9)
    assert learn(learner, make_batch([[1.0, 0.0]] * 2, vocab_size=VOCAB)).policy_version == 2


def test_groups_without_gradient_get_no_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal rewards, and one judged sibling: measured, not learned from."""
    batch = make_batch([[1.0, 0.0], [1.0, 1.0], [0.0, None]], vocab_size=VOCAB)
    seen: list[tuple[int, bool]] = []
    original = passes_module.token_logprobs

    def spy(model: Any, micro_batch: Any, **settings: Any) -> Any:
        seen.append((micro_batch.batch.num_groups, torch.is_grad_enabled()))
        return original(model, micro_batch, **settings)

    monkeypatch.setattr(passes_module, "token_logprobs", spy)
    update = learn(a_learner(algorithm("rloo"), epochs=2), batch)
    assert seen == [(2, False), (1, True), (1, True)]
    assert update.batch is not None and update.batch.old_logprobs_T is not None
    assert (update.batch.old_logprobs_T != 0).all()
    seen.clear()
    learn(a_learner(algorithm("grpo")), batch)  # the KL gives equal rewards a gradient too
    assert [one for one in seen if one[1]] == [(2, True)]


def test_a_batch_without_gradient_takes_no_step() -> None:
    learner = a_learner(algorithm("rloo"))
    learn(learner, a_batch())  # so that momentum could move the weights
    before = weights(learner.policy)
    update = learn(learner, make_batch([[1.0, 1.0], [0.0, None], [None, None]], vocab_size=VOCAB))
    assert update.policy_version == 1
    assert update.metrics["optimizer/steps"] == update.metrics["optimizer/skipped"] == 0
    assert update.metrics["loss/token_share"] == 0
    assert_same(before, weights(learner.policy), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["kimi", "ppo_penalty", "trpo"])
@pytest.mark.parametrize("num_minibatches", [1, 2])
def test_a_penalty_or_trust_region_alone_takes_no_step(
    name: str, num_minibatches: int, backward_passes: list[int]
) -> None:
    row = replace(ALGORITHMS[name], baseline="mean", credit="completion", kl_weight=0.0)
    learner = a_learner(row, num_minibatches=num_minibatches)
    before = weights(learner.policy)
    update = learn(learner, make_batch([[1.0, 1.0], [0.0, 0.0]], vocab_size=VOCAB))
    assert backward_passes == [] and update.policy_version == 0
    assert update.metrics["optimizer/steps"] == update.metrics["optimizer/skipped"] == 0
    assert update.metrics["loss/token_share"] == 0 and update.metrics["entropy/mean"] > 0
    assert_same(before, weights(learner.policy), rtol=0, atol=0)
    mixed = learn(learner, make_batch([[1.0, 0.0], [0.0, 0.0]], vocab_size=VOCAB))
    assert backward_passes and mixed.metrics["loss/token_share"] == 1, "then all are held back"


def test_an_empty_batch_takes_no_step() -> None:
    update = learn(a_learner(algorithm("grpo")), make_batch([]))
    assert update.policy_version == 0 and update.metrics["tokens/trained"] == 0


def test_a_gradient_that_is_not_finite_is_skipped_and_counted() -> None:
    learner = a_learner(algorithm("rloo"))
    before = weights(learner.policy)
    batch = a_batch()
    advantages = compute_advantages(batch, learner.algorithm)
    advantages.advantages_T[advantages.mask_T] = float("nan")
    update = learner.update(batch, advantages)
    assert update.metrics["optimizer/skipped"] == 1 and update.policy_version == 0
    assert_same(before, weights(learner.policy), rtol=0, atol=0)


@pytest.mark.parametrize("row", ["rloo", "grpo"])
def test_bf16_takes_steps_too_small_for_bf16(row: str) -> None:
    model = a_model().to(torch.bfloat16)
    learner = a_learner(
        algorithm(row), model, optimizer=OptimizerConfig(learning_rate=1e-7), total_steps=400
    )
    masters = {name: learner.optimizer.master(name) for name, _ in model.named_parameters()}
    for _ in range(3):
        learn(learner, a_batch())
    for name, parameter in model.named_parameters():
        assert parameter.dtype == torch.bfloat16
        moved = learner.optimizer.master(name)
        assert not torch.equal(moved, masters[name])
        assert torch.equal(parameter, moved.to(torch.bfloat16))


def test_reward_is_learned() -> None:
    """Completions that begin with token 3 are right; their share rises."""
    learner = a_learner(
        algorithm("dr_grpo", max_tokens=2), optimizer=OptimizerConfig(learning_rate=0.01)
    )

    def log_chance(batch: Batch) -> float:
        with torch.no_grad():
            logits = learner.policy(input_ids=batch.prompts[0][None]).logits[0, -1]
        return logits.log_softmax(-1)[3].item()

    batch = make_batch([[1.0] + [0.0] * 7], [[2] * 8], vocab_size=VOCAB)
    tokens_T = batch.tokens_T.clone()
    tokens_T[0] = 3
    tokens_T[2::2] = torch.tensor([0, 1, 2, 4, 5, 6, 7])
    batch = replace(batch, tokens_T=tokens_T)
    before = log_chance(batch)
    for _ in range(10):
        learn(learner, batch)
    assert log_chance(batch) > before + 0.5


@pytest.mark.parametrize("name", ["dr_grpo", "dapo", "rloo", "grpo"])
def test_gradients_are_known_beforehand_where_the_policy_has_not_moved(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an entropy bonus and without; where a KL in the loss depends on more, nothing is expected."""
    compared: list[bool] = []
    equal = Gains.equal

    def note(gains: Gains, *arrived: Tensor | None) -> bool:
        compared.append(equal(gains, *arrived))
        return compared[-1]

    monkeypatch.setattr(Gains, "equal", note)
    for settings in ({}, {"entropy_weight": 0.1}):
        row = algorithm(name, max_tokens=64, **settings)
        learner = a_learner(row, max_tokens_per_micro_batch=60, epochs=2)
        batch = learner.score_batch(a_batch())
        learner.update(batch, compute_advantages(batch, row))
    if row.kl_in_loss:
        assert not compared
    else:
        assert len(compared) >= 2 and all(compared)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_gradient_of_the_vocabularys_size_is_made_twice(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tied weight's gradients from either end add up in the optimizer's own tensor."""
    model = a_model().to(dtype)
    learner = a_learner(algorithm("rloo"), model, max_tokens_per_micro_batch=60)
    weight = model.lm_head.weight
    asked: list[int] = []
    accumulator = learner.optimizer.accumulator
    monkeypatch.setattr(
        learner.optimizer,
        "accumulator",
        lambda one: (asked.append(id(one)), accumulator(one))[1],
    )
    batch = a_batch()
    learner.update(batch, compute_advantages(batch, learner.algorithm))
    assert len(asked) >= 4 and set(asked) == {id(weight)}
    assert learner.optimizer.accumulator(torch.zeros(1)) is None
