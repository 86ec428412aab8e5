"""Learner ranks that divide the weights do what one process does."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from learn_learners import a_batch, a_model, assert_same, weights
from rank_processes import RankProcesses
from test_ranks import STEEP

from assay.config import LoraConfig
from assay.errors import RunError, WorkerDied
from assay.learn.advantages import compute_advantages
from assay.learn.algorithms import algorithm
from assay.learn.base import Update
from assay.learn.optimizer import Optimizer
from assay.learn.passes import Passes
from assay.learn.ranks import ALONE, Ranks
from assay.learn.sft_update import SFTLearner
from assay.learn.sharding import ShardedOptimizer, Shards, copy_to_shard, own_part
from assay.learn.update import PolicyLearner
from assay.model.adapters import add_adapter

pytestmark = pytest.mark.usefixtures("one_thread")


def build_sharded(
    stage: str, settings: dict[str, Any], dtype: torch.dtype, ranks: Ranks = ALONE
) -> Any:
    """A learner whose weights are sharded if there are several ranks."""
    model, shards = a_model().to(dtype), None
    if settings.get("adapters"):
        model = add_adapter(model, LoraConfig(rank=2), 0)
    if ranks.size > 1:
        copied = copy_to_shard(model)
        shards = Shards(copied, ranks, None if ranks.rank else model)
        model = copied
    divided = shards is not None and shards.divides_trained
    kind: Any = partial(ShardedOptimizer, shards) if divided else partial(Optimizer, model)
    steps = kind(STEEP, 100, stage, ranks)
    of_passes = {"lean": False, "layout": "plain", "ranks": ranks, "shards": shards}
    of_passes |= {key: settings[key] for key in settings.keys() & PASSES}
    passes = Passes(model, steps, section=stage, **of_passes)
    if stage == "sft":
        return SFTLearner(passes)
    others = {key: value for key, value in settings.items() if key not in {*PASSES, "adapters"}}
    return PolicyLearner(passes, algorithm("grpo", kl_weight=0.1), total_steps=100, **others)


ADAPTERS: dict[str, Any] = {"adapters": True}
SHARDED: dict[str, tuple[str, int, dict[str, Any]]] = {
    "reference and epochs": ("rl", 2, {"num_minibatches": 2, "epochs": 2}),
    "many micro-batches": ("rl", 3, {"max_tokens_per_micro_batch": 12}),
    "layers computed again": ("rl", 2, {"activation_checkpointing": True}),
    "supervised": ("sft", 3, {}),
    "adapters, reference and epochs": ("rl", 3, {"num_minibatches": 2, "epochs": 2, **ADAPTERS}),
    "adapters, layers computed again": ("rl", 2, {"activation_checkpointing": True, **ADAPTERS}),
    "adapters, supervised": ("sft", 2, ADAPTERS),
}
PASSES = {"max_tokens_per_micro_batch", "activation_checkpointing"}


@pytest.mark.parametrize("name", SHARDED)
def test_sharded_ranks_take_the_step_of_one(
    name: str, processes: RankProcesses, tmp_path: Path
) -> None:
    stage, size, settings = SHARDED[name]
    make = partial(build_sharded, stage, settings, torch.float32)
    alone = make()
    with processes.learner(make, size, tmp_path) as learner:
        for seed in range(2):
            wanted, found = (learn_once(one, seed) for one in (alone, learner))
            assert found.metrics == pytest.approx(wanted.metrics, rel=2e-3, abs=1e-5, nan_ok=True)
        held = learner.weights()
        parts = [own_part(one) for one in learner.policy.parameters() if hasattr(one, "to_local")]
        assert held.version == alone.policy_version
        assert_same(
            weights(learner.passes.shards.full), weights(alone.policy), rtol=1e-3, atol=2e-4
        )
        assert sum(map(torch.numel, parts)) < 1.2 * alone.policy.num_parameters() / size


def learn_once(learner: Any, seed: int) -> Update:
    if isinstance(learner, SFTLearner):
        return learner.update(a_batch(seed))
    batch = learner.score_batch(a_batch(seed))
    return learner.update(batch, compute_advantages(batch, learner.algorithm))


@pytest.mark.parametrize("settings", [{}, ADAPTERS], ids=["all weights", "adapters"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_sharded_checkpoint_is_loaded_by_any_number_of_ranks(
    dtype: torch.dtype, settings: dict[str, Any], processes: RankProcesses, tmp_path: Path
) -> None:
    """And by one process. With the same number of ranks, the next step has equal bits."""
    make, saved = partial(build_sharded, "sft", settings, dtype), tmp_path / "saved"
    model = "adapter_model.safetensors" if settings else "model.safetensors"
    saved.mkdir()
    with processes.learner(make, 3, tmp_path) as learner:
        learn_once(learner, 0)
        learner.save_state(saved)
        wanted = learn_once(learner, 1)
        learner.weights()
        ended = weights(learner.passes.shards.full)
    for size in (3, 2):
        with processes.learner(make, size, tmp_path) as learner:
            learner.load_state(saved)
            again = tmp_path / f"again-{size}"
            again.mkdir()
            learner.save_state(again)
            for file in (model, "optimizer.safetensors"):
                assert (again / file).read_bytes() == (saved / file).read_bytes()
            found = learn_once(learner, 1)
            if size == 3:
                assert found.metrics == wanted.metrics
                learner.weights()
                last = weights(learner.passes.shards.full)
                assert all(torch.equal(last[name], ended[name]) for name in ended)
    alone = make()
    alone.load_state(saved)
    found = learn_once(alone, 1)
    rel = 1e-3 if dtype == torch.float32 else 5e-2
    assert found.metrics == pytest.approx(wanted.metrics, rel=rel)
    master, trained = alone.passes.optimizer.master, alone.passes.optimizer.trained
    assert all((master(name) - ended[name].float()).abs().max() < 1e-2 for name in trained)


# Exactly between two bfloat16 numbers: 1.0 (even) and 1.0078125 (away from zero).
TIE = 1.00390625


def build_with_ties(ranks: Ranks) -> Any:
    learner = build_sharded("sft", {}, torch.bfloat16, ranks)
    with torch.no_grad():
        for part in learner.passes.shards.parts.values():
            part.fill_(TIE)
    return learner


def test_a_checkpoint_does_not_change_the_weights_that_are_sampled_from(
    processes: RankProcesses, tmp_path: Path
) -> None:
    with processes.learner(build_with_ties, 2, tmp_path) as learner:
        learner.gather()
        before = weights(learner.passes.shards.full)
        learner.save_state(tmp_path)
        after = weights(learner.passes.shards.full)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert {float(one.flatten()[0]) for one in after.values()} == {1.0078125}


@pytest.mark.parametrize(
    ("saved", "loaded"), [(torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32)]
)
def test_the_state_of_another_type_is_refused(
    saved: torch.dtype, loaded: torch.dtype, processes: RankProcesses, tmp_path: Path
) -> None:
    with processes.learner(partial(build_sharded, "sft", {}, saved), 2, tmp_path) as learner:
        learn_once(learner, 0)
        learner.save_state(tmp_path)
    with (
        pytest.raises(
            RunError, match=r"optimizer\.safetensors.* the state of another model\.dtype"
        ),
        processes.learner(partial(build_sharded, "sft", {}, loaded), 2, tmp_path) as learner,
    ):
        learner.load_state(tmp_path)


def build_sharded_failing(ranks: Ranks) -> Any:
    learner = build_sharded("sft", {}, torch.float32, ranks)
    if ranks.rank:
        learner.passes.backward = None
    return learner


def test_a_rank_that_fails_in_a_sharded_pass_ends_the_wait_of_the_others(
    processes: RankProcesses, tmp_path: Path
) -> None:
    """The others wait inside of torch."""
    with (
        pytest.raises(WorkerDied, match=r"learner rank 0 waited for the other 1 at .*--resume"),
        processes.learner(build_sharded_failing, 2, tmp_path) as learner,
    ):
        learner.update(a_batch())
    assert "TypeError" in processes.said[0]
