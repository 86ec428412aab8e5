"""What moves from batch to batch beside the policy: a critic, dynamic weights, and where an update ends."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from learn_batches import advantages_of, loss_mask, make_batch
from learn_learners import (
    VOCAB,
    a_batch,
    a_learner,
    a_model,
    assert_same,
    collect_gradients,
    learn,
    weights,
)
from torch import Tensor

from assay.config import CriticConfig, OptimizerConfig
from assay.errors import RunError
from assay.learn.advantages import compute_advantages
from assay.learn.algorithms import algorithm
from assay.learn.policy_update import PolicyUpdate
from assay.learn.update import PolicyLearner
from assay.testing import byte_tokenizer

pytestmark = pytest.mark.usefixtures("one_thread")

DYNAMIC = algorithm(
    "ppo_penalty", kl_weight=0.05, kl_target=0.001, kl_horizon=100.0, penalty_target=1e-4
)
SETTINGS = {"epochs": 2, "num_minibatches": 2, "seed": 3}


def a_resumable(backbone: Any, dtype: torch.dtype = torch.float32) -> PolicyLearner:
    config = OptimizerConfig(learning_rate=1e-3, warmup_steps=2, schedule="cosine")
    return a_learner(
        DYNAMIC,
        model=a_model().to(dtype),
        optimizer=config,
        critic=CriticConfig(backbone=backbone, learning_rate=1e-2, warmup_steps=2),
        tokenizer=byte_tokenizer(),
        **SETTINGS,
    )


def state(learner: PolicyLearner) -> dict[str, Tensor]:
    critic = learner.critic
    assert critic is not None
    parts = {"policy": learner.policy, "head": critic.head}
    if critic.own is not None:
        parts["own"] = critic.own.backbone.model
    return {f"{part}.{n}": t for part, model in parts.items() for n, t in weights(model).items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("backbone", ["copy", "shared"])
@pytest.mark.parametrize("before", [1, 3])
def test_a_learner_with_a_critic_resumes_to_the_bit(
    backbone: Any, dtype: torch.dtype, before: int, tmp_path: Path
) -> None:
    """Saved in the critic's warm-up, or after it: weights of both, and the row in effect, go on."""
    straight = a_resumable(backbone, dtype)
    for seed in range(before):
        learn(straight, a_batch(seed))
    straight.save_state(tmp_path)
    saved = state(straight)
    expected = [learn(straight, a_batch(seed)).metrics for seed in (7, 8, 9)]
    assert expected[-1]["penalty/weight"] != DYNAMIC.penalty_weight
    assert expected[-1]["kl/weight"] != DYNAMIC.kl_weight
    assert "optimizer/grad_norm" in expected[-1]

    resumed = a_resumable(backbone, dtype)
    resumed.load_state(tmp_path)
    assert_same(state(resumed), saved, rtol=0, atol=0)
    assert [learn(resumed, a_batch(seed)).metrics for seed in (7, 8, 9)] == expected
    assert_same(state(resumed), state(straight), rtol=0, atol=0)
    assert resumed.algorithm == straight.algorithm


def test_the_critics_folder_is_whole(tmp_path: Path) -> None:
    learner = a_resumable("copy")
    learn(learner, a_batch())
    learner.save_state(tmp_path)
    names = {file.name for file in (tmp_path / "critic").iterdir()}
    assert {"config.json", "model.safetensors", "optimizer.safetensors"} < names
    assert {"tokenizer.json", "value_head.safetensors"} < names
    shared = a_resumable("shared")
    learn(shared, a_batch())
    shared.save_state(tmp_path / "shared")
    names = {file.name for file in (tmp_path / "shared" / "critic").iterdir()}
    assert names == {"optimizer.safetensors", "value_head.safetensors"}


def test_a_save_without_what_is_needed_is_refused(tmp_path: Path) -> None:
    plain = a_learner(algorithm("rloo"), tokenizer=byte_tokenizer())
    plain.save_state(tmp_path)
    assert not (tmp_path / "learner.json").exists()
    with pytest.raises(RunError, match=r"learner\.json"):
        a_resumable("copy").load_state(tmp_path)
    a_resumable("shared").save_state(tmp_path)
    with pytest.raises(RunError, match="critic"):
        a_resumable("copy").load_state(tmp_path)


def test_an_update_uses_the_weights_that_it_reports_and_moves_them_after() -> None:
    learner = a_learner(replace(DYNAMIC, credit="completion"), **SETTINGS)
    first = learn(learner, a_batch(0)).metrics
    assert first["kl/weight"] == 0.05 and first["penalty/weight"] == 1.0
    assert first["kl/mean"] < 0.8e-3  # below the target by more than a fifth
    assert learner.algorithm.kl_weight == pytest.approx(0.05 * (1 - 0.2 * 14 / 100))
    low, high = 1e-4 / 1.5, 1.5e-4
    factor = {(True, False): 0.5, (False, True): 2.0}.get(
        (first["kl/old"] < low, first["kl/old"] > high), 1.0
    )
    assert factor != 1.0
    assert learner.algorithm.penalty_weight == factor
    assert learn(learner, a_batch(1)).metrics["penalty/weight"] == factor


def test_the_kl_that_moves_the_penalty_is_that_after_the_last_step() -> None:
    """One step on a batch: in its loss the policy has not moved yet, after it it has."""
    learner = a_learner(replace(DYNAMIC, credit="completion", kl_target=None))
    batch = a_batch()
    scored = learner.score_batch(batch)
    assert scored.old_logprobs_T is not None
    metrics = learner.update(scored, compute_advantages(scored, learner.algorithm)).metrics
    difference_T = (learner.passes.logprobs(batch) - scored.old_logprobs_T).double()
    want = (difference_T.expm1() - difference_T)[loss_mask(batch, learner.algorithm)].mean()
    assert want > 0
    assert metrics["kl/old"] == pytest.approx(want.item(), rel=1e-3)


def test_weights_wait_for_the_policy_to_move() -> None:
    """In the critic's warm-up, and where a batch teaches nothing: no KL is an answer to a weight."""
    learner = a_resumable("copy")
    for seed in range(2):
        assert learn(learner, a_batch(seed)).metrics["optimizer/steps"] == 0
    assert learner.algorithm == DYNAMIC
    learn(learner, make_batch([[None, None]], vocab_size=VOCAB))
    assert learner.algorithm == DYNAMIC
    learn(learner, a_batch())
    assert learner.algorithm != DYNAMIC


def test_a_penalty_holds_the_policy_back() -> None:
    free = replace(DYNAMIC, credit="completion", kl_weight=0.0, kl_target=None, penalty_weight=1e-6)
    held = replace(free, penalty_weight=100.0)
    far, near = (
        learn(a_learner(row, epochs=8), a_batch()).metrics["kl/old"] for row in (free, held)
    )
    assert near < 0.5 * far


def test_an_update_ends_before_the_step_that_would_go_on_too_far() -> None:
    row = algorithm("dr_grpo", max_tokens=9, stop_kl=1e-9)
    rate = OptimizerConfig(learning_rate=1e-2)
    learner = a_learner(row, optimizer=rate, epochs=3)
    metrics = learn(learner, a_batch()).metrics
    assert metrics["update/stopped_at"] == 1 and metrics["optimizer/steps"] == 1
    assert metrics["kl/old"] > 1e-9
    once = a_learner(replace(row, stop_kl=None), optimizer=rate)
    learn(once, a_batch())
    assert_same(weights(learner.policy), weights(once.policy), rtol=0, atol=0)
    assert not learner.optimizer.gradients


def test_an_early_stopped_update_reports_its_measured_tokens() -> None:
    """It ends in its first epoch: two of four groups were never gone through."""
    row = algorithm("dr_grpo", max_tokens=9, stop_kl=1e-9)
    rate = OptimizerConfig(learning_rate=1e-2)
    batch = make_batch([[1.0, 0.0]] * 4, vocab_size=VOCAB)
    settings: dict[str, Any] = {"optimizer": rate, "num_minibatches": 4, "keep_reference": True}
    learner = a_learner(row, **settings)
    (_, first), (_, second), *_ = learner._minibatches(batch)
    metrics = learn(learner, batch).metrics
    assert metrics["update/stopped_at"] == 1
    whole = learn(a_learner(replace(row, stop_kl=None), **settings), batch).metrics
    assert 0 < metrics["kl/mean"] < whole["kl/mean"]
    one_step = a_learner(replace(row, stop_kl=None), optimizer=rate)
    learn(one_step, batch.select_groups(first))
    parts = [
        (a_learner(row), batch.select_groups(first)),
        (one_step, batch.select_groups(second)),
    ]
    entropies: list[Tensor] = []
    for at, part in parts:
        (micro_batch,) = at.passes.split(part)
        entropies.append(at.passes.stats(micro_batch).entropy_T[part.sampled_T].detach())
    want = torch.cat(entropies).mean().item()
    assert metrics["entropy/mean"] == pytest.approx(want, rel=1e-3)


def test_an_update_that_stays_near_goes_on() -> None:
    row = algorithm("dr_grpo", max_tokens=9)
    plain, bounded = a_learner(row, epochs=3), a_learner(replace(row, stop_kl=1e9), epochs=3)
    want, got = learn(plain, a_batch()).metrics, learn(bounded, a_batch()).metrics
    assert got == want and "update/stopped_at" not in got
    assert got["optimizer/steps"] == 3


def test_the_kl_that_stops_is_that_of_the_minibatch_at_hand(monkeypatch: Any) -> None:
    seen: list[float] = []
    went_too_far = PolicyUpdate.went_too_far

    def look(self: PolicyUpdate) -> bool:
        outcome = went_too_far(self)
        chosen = self.advantages.mask_T & (self._weights_T > 0)
        now_T = self.passes.logprobs(self.batch)
        difference_T = (now_T - self.old_logprobs_T).double()[chosen]
        seen.append((difference_T.expm1() - difference_T).mean().item())
        if self.steps:
            assert self.step_kl() == pytest.approx(seen[-1], rel=1e-3, abs=1e-9)
        return outcome

    monkeypatch.setattr(PolicyUpdate, "went_too_far", look)
    row = algorithm("dr_grpo", max_tokens=9, stop_kl=1e9)
    batch = make_batch([[1.0, 0.0]] * 4, vocab_size=VOCAB)
    learn(a_learner(row, epochs=2, num_minibatches=2), batch)
    assert len(seen) == 4 and seen[0] < 1e-9 < seen[-1]


def test_the_end_is_the_critics_end_too() -> None:
    for backbone in ("copy", "shared"):
        row = algorithm("ppo", kl_weight=0.0, stop_kl=1e-9)
        config = CriticConfig(backbone=backbone, learning_rate=1e-2)  # type: ignore[arg-type]
        learner = a_learner(row, critic=config, epochs=3)
        metrics = learn(learner, a_batch()).metrics
        assert metrics["update/stopped_at"] == 1
        assert learner.critic is not None and learner.critic.optimizer.num_steps == 1
        assert not learner.critic.optimizer.gradients


TRPO = algorithm("trpo", trust_region=1e-3)


@pytest.mark.parametrize("layout", ["tree", "plain"])
def test_a_natural_step_stays_within_its_region(layout: Any) -> None:
    learner = a_learner(TRPO, layout=layout, temperature=0.8, max_tokens_per_micro_batch=60)
    batch = a_batch()
    assert len(learner.passes.split(batch)) > 1
    metrics = learn(learner, batch).metrics
    assert 0.2e-3 < metrics["trust_region/kl"] <= 1e-3
    assert metrics["trust_region/improvement"] > 0
    assert 0 <= metrics["trust_region/cg_residual"] < 1
    assert metrics["optimizer/steps"] == 1 and learner.policy_version == 1
    assert not learner.optimizer.gradients


def test_a_natural_step_gains_more_than_a_gradient_step_of_the_same_kl() -> None:
    """The reason to take it: of all steps as far away, none has a better linear surrogate."""
    batch = a_batch()
    learner = a_learner(TRPO)
    start = weights(learner.policy)
    metrics = learn(learner, batch).metrics
    natural, reached = metrics["trust_region/improvement"], metrics["trust_region/kl"]

    plain = a_learner(TRPO)
    scored = plain.score_batch(batch)
    advantages_T, mask_T = advantages_of(scored, TRPO), loss_mask(scored, TRPO)
    gradients = collect_gradients(a_learner(replace(TRPO, trust_region=None)), batch)[0]
    old_T = plain.passes.logprobs(batch)

    def move(length: float) -> tuple[float, float]:
        with torch.no_grad():
            for name, parameter in plain.policy.named_parameters():
                parameter.copy_(start[name] - length * gradients.get(name, 0.0))
        ratio_T = (plain.passes.logprobs(batch) - old_T).exp()
        gain = ((ratio_T - 1) * advantages_T)[mask_T].mean().item()
        return gain, exact_kl(plain.policy, start, batch, mask_T)

    low, high = 0.0, 1.0
    for _ in range(16):
        middle = (low + high) / 2
        low, high = (middle, high) if move(middle)[1] < reached else (low, middle)
    gain, far = move(low)
    assert far == pytest.approx(reached, rel=1e-2)
    assert natural > 1.1 * gain > 0


def exact_kl(policy: Any, start: dict[str, Tensor], batch: Any, mask_T: Tensor) -> float:
    """Mean KL(start || policy) over the vocabulary, one completion at a time."""
    before = a_model()
    before.load_state_dict(start, strict=False)
    total: list[Tensor] = []
    with torch.no_grad():
        for row in range(batch.num_rows):
            completion = batch.tokens_T[batch.row_T == row]
            prompt = batch.prompts[int(batch.group_R[row])]
            tokens = torch.cat([prompt, completion])[None]
            old, new = (
                model(input_ids=tokens).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
                for model in (before, policy)
            )
            total.append((old.exp() * (old - new)).sum(-1))
    return torch.cat(total)[mask_T].mean().item()


def test_a_natural_step_that_gains_nothing_is_not_taken() -> None:
    learner = a_learner(replace(TRPO, trust_region=1e-30))  # too small a region for float32
    start = weights(learner.policy)
    metrics = learn(learner, make_batch([[1.0, 0.0]], vocab_size=VOCAB)).metrics
    assert metrics["optimizer/steps"] == 0 and metrics["optimizer/skipped"] == 1
    assert learner.policy_version == 0
    assert_same(weights(learner.policy), start, rtol=0, atol=0)


def test_the_region_spans_groups_without_an_advantage() -> None:
    """They pull nowhere, and the policy is not to move far on them either."""
    batch = make_batch([[1.0, 0.0], [1.0, 1.0]], [[3, 4], [8, 8]], vocab_size=VOCAB)
    learner = a_learner(TRPO)
    start = weights(learner.policy)
    metrics = learn(learner, batch).metrics
    far = exact_kl(learner.policy, start, batch, loss_mask(batch, TRPO))
    assert metrics["trust_region/kl"] == pytest.approx(far, rel=1e-3)


def test_trpo_learns_beside_a_critic_of_its_own() -> None:
    row = replace(TRPO, credit="gae", baseline="none", gae_lambda=0.95)
    learner = a_learner(row, critic=CriticConfig(learning_rate=1e-2), num_minibatches=2)
    metrics = learn(learner, a_batch()).metrics
    assert metrics["optimizer/steps"] == 2
    assert 0 < metrics["trust_region/kl"] <= 1e-3
    assert metrics["critic/grad_norm"] > 0
