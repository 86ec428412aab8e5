"""Several learner ranks do what one process does."""

from __future__ import annotations

import errno
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from learn_batches import make_batch
from learn_learners import VOCAB, a_batch, a_learner, a_model, an_sft_learner, assert_same, weights
from rank_processes import RankProcesses
from safetensors import SafetensorError
from safetensors.torch import save_file
from test_preference_update import some_pairs
from test_reward_update import groups_of

from assay.config import CriticConfig, OptimizerConfig
from assay.errors import WorkerDied
from assay.host.files import system_error
from assay.learn.advantages import compute_advantages
from assay.learn.algorithms import ALGORITHMS, Algorithm, algorithm, preference
from assay.learn.base import Update
from assay.learn.optimizer import Optimizer
from assay.learn.passes import Passes
from assay.learn.preference_update import PreferenceLearner
from assay.learn.ranks import ALONE, Ranks
from assay.learn.reward_losses import RewardObjective
from assay.learn.reward_update import RewardLearner
from assay.model.packing import Batch
from assay.model.score_head import with_score_head
from assay.testing import tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")

# These batches have no judged steps, and a natural gradient step has a test of its own.
NAMES = [
    name
    for name in ALGORITHMS
    if (row := algorithm(name, max_tokens=9)).trust_region is None and row.credit != "steps"
]
HEADS: dict[str, Any] = {"preference": ("text", 1), "process": ("token", 2)}
STEEP = OptimizerConfig(learning_rate=1e-2, weight_decay=0.1)


def build(
    row: Algorithm, settings: dict[str, Any], dtype: torch.dtype, ranks: Ranks = ALONE
) -> Any:
    """A learner of any rank: the model is made anew in its process."""
    model = a_model().to(dtype)
    return a_learner(row, model, optimizer=STEEP, ranks=ranks, **settings)


def learn_two_steps(learner: Any) -> list[Update]:
    updates: list[Update] = []
    for seed in range(2):
        batch = learner.score_batch(a_batch(seed))
        updates.append(learner.update(batch, compute_advantages(batch, learner.algorithm)))
    return updates


def check_same_updates(updates: list[Update], others: list[Update]) -> None:
    for mine, theirs in zip(updates, others, strict=True):
        assert mine.metrics == pytest.approx(theirs.metrics, rel=2e-3, abs=1e-5, nan_ok=True)
        assert mine.batch is not None and theirs.batch is not None
        assert mine.batch.old_logprobs_T is not None and theirs.batch.old_logprobs_T is not None
        torch.testing.assert_close(
            mine.batch.old_logprobs_T, theirs.batch.old_logprobs_T, rtol=1e-3, atol=1e-4
        )


CASES: dict[str, tuple[Algorithm, dict[str, Any]]] = {
    **{name: (algorithm(name, max_tokens=9), {}) for name in NAMES},
    "minibatches and epochs": (algorithm("grpo"), {"num_minibatches": 2, "epochs": 2}),
    "stopped by its KL": (algorithm("ppo", stop_kl=1e-4), {"epochs": 4}),
    "adapted penalty": (algorithm("grpo", penalty_weight=1.0, penalty_target=0.01), {"epochs": 2}),
    "shared critic": (
        algorithm("ppo"),
        {"critic": CriticConfig(backbone="shared", warmup_steps=1), "epochs": 2},
    ),
    "a few tokens a micro-batch": (algorithm("grpo"), {"max_tokens_per_micro_batch": 12}),
    "prompts computed once": (algorithm("grpo", kl_weight=0.1), {"layout": "tree"}),
}


@pytest.mark.parametrize("name", CASES)
def test_two_ranks_take_the_step_of_one(
    name: str, processes: RankProcesses, tmp_path: Path
) -> None:
    row, settings = CASES[name]
    make = partial(build, row, settings, torch.float32)
    alone = make()
    wanted = learn_two_steps(alone)
    with processes.learner(make, 2, tmp_path) as learner:
        check_same_updates(learn_two_steps(learner), wanted)
        assert_same(weights(learner.policy), weights(alone.policy), rtol=1e-3, atol=2e-4)


def test_ranks_take_the_natural_gradient_step_of_one(
    processes: RankProcesses, tmp_path: Path
) -> None:
    """Ten float32 iterations amplify rounding: the residual of one process moves by 1 % with the
    size of its micro-batches, and the KL by 0.1 %."""
    make = partial(build, algorithm("trpo", max_tokens=9), {}, torch.float32)
    alone = make()
    wanted = learn_two_steps(alone)
    with processes.learner(make, 3, tmp_path) as learner:
        for mine, theirs in zip(learn_two_steps(learner), wanted, strict=True):
            assert mine.metrics == pytest.approx(theirs.metrics, rel=2e-2, abs=1e-5, nan_ok=True)
            assert mine.metrics["trust_region/kl"] > 1e-3
        assert_same(weights(learner.policy), weights(alone.policy), rtol=2e-2, atol=1e-3)


def test_four_ranks_with_bfloat16_take_the_step_of_one(
    processes: RankProcesses, tmp_path: Path
) -> None:
    """Five groups among four ranks: the sums of gradients are float32."""
    make = partial(build, algorithm("dr_grpo", max_tokens=9), {}, torch.bfloat16)
    alone = make()
    wanted = learn_two_steps(alone)
    with processes.learner(make, 4, tmp_path) as learner:
        found = learn_two_steps(learner)
        names = ("optimizer/grad_norm", "entropy/mean", "tokens/trained")
        for mine, theirs in zip(found, wanted, strict=True):
            for one in names:
                assert mine.metrics[one] == pytest.approx(theirs.metrics[one], rel=2e-2)


def one_group_has_gradient() -> Batch:
    return make_batch([[1.0, 1.0], [1.0, 0.0], [0.0, 0.0]], seed=1, vocab_size=VOCAB)


def test_ranks_without_work_take_part(processes: RankProcesses, tmp_path: Path) -> None:
    """Only one of three groups has a gradient, so two of three ranks compute none."""
    make = partial(build, algorithm("grpo", kl_weight=0.0), {}, torch.float32)
    alone, batch = make(), one_group_has_gradient()
    wanted = alone.update(batch, compute_advantages(batch, alone.algorithm))
    with processes.learner(make, 3, tmp_path) as learner:
        found = learner.update(batch, compute_advantages(batch, learner.algorithm))
        check_same_updates([found], [wanted])
        assert_same(weights(learner.policy), weights(alone.policy), rtol=1e-4, atol=1e-5)


def build_sft(ranks: Ranks = ALONE) -> Any:
    return an_sft_learner(a_model(), optimizer=STEEP, ranks=ranks)


def test_supervised_steps_are_those_of_one(processes: RankProcesses, tmp_path: Path) -> None:
    alone = build_sft()
    wanted = [alone.update(a_batch(seed)) for seed in range(2)]
    with processes.learner(build_sft, 2, tmp_path) as learner:
        for seed, update in enumerate(wanted):
            found = learner.update(a_batch(seed))
            assert found.metrics == pytest.approx(update.metrics, rel=1e-4)
        assert_same(weights(learner.policy), weights(alone.policy), rtol=1e-3, atol=2e-4)


def build_preference(
    name: str, settings: dict[str, Any], ranks: Ranks = ALONE
) -> PreferenceLearner:
    model = a_model()
    steps = Optimizer(model, STEEP, total_steps=100, ranks=ranks)
    passes = Passes(model, steps, section="preference", ranks=ranks, **settings)
    return PreferenceLearner(passes, preference(name), keep_reference=True)


@pytest.mark.parametrize(
    ("name", "size", "settings"),
    [
        ("dpo", 2, {}),
        # Pairs of more than 12 tokens take two passes.
        ("dpo", 3, {"max_tokens_per_micro_batch": 12}),
        ("kto", 2, {"layout": "plain"}),
    ],
)
def test_preference_steps_are_those_of_one(
    name: str, size: int, settings: dict[str, Any], processes: RankProcesses, tmp_path: Path
) -> None:
    make = partial(build_preference, name, settings)
    alone = make()
    with processes.learner(make, size, tmp_path) as learner:
        for seed in range(2):
            pairs = some_pairs(name, seed)
            wanted, found = alone.update(pairs), learner.update(pairs)
            assert found.metrics == pytest.approx(wanted.metrics, rel=1e-4, abs=1e-5)
            assert learner.look(pairs) == pytest.approx(alone.look(pairs), rel=1e-4, abs=1e-5)
            told = learner.reference_logprobs(pairs.batch)
            torch.testing.assert_close(told, alone.reference_logprobs(pairs.batch))
            learner.refresh_reference()
            alone.refresh_reference()
        assert_same(weights(learner.policy), weights(alone.policy), rtol=1e-3, atol=2e-4)


def build_reward(objective: RewardObjective, ranks: Ranks = ALONE) -> RewardLearner:
    model = tiny_model(vocab_size=256, hidden_size=16, eos_token_id=None)
    scorer = with_score_head(model, *HEADS[objective.kind], seed=0)
    steps = Optimizer(scorer, STEEP, total_steps=100, ranks=ranks)
    # No more than one group fits into a micro-batch.
    passes = Passes(scorer, steps, section="x", max_tokens_per_micro_batch=30, ranks=ranks)
    return RewardLearner(passes, objective)


@pytest.mark.parametrize(
    ("objective", "size"),
    [
        (RewardObjective("preference", centering=0.1), 3),
        (RewardObjective("process", until_first_error=True), 2),
    ],
    ids=["preference", "process"],
)
def test_reward_model_steps_are_those_of_one(
    objective: RewardObjective, size: int, processes: RankProcesses, tmp_path: Path
) -> None:
    make, groups = partial(build_reward, objective), groups_of(objective, soft=True)
    alone = make()
    with processes.learner(make, size, tmp_path) as learner:
        for _ in range(2):
            wanted, found = alone.update(groups), learner.update(groups)
            assert found.metrics == pytest.approx(wanted.metrics, rel=1e-4, abs=1e-5)
        for mine, theirs in zip(learner.scores(groups), alone.scores(groups), strict=True):
            assert mine == pytest.approx(theirs, rel=1e-3, abs=1e-4)
        assert_same(weights(learner.policy), weights(alone.policy), rtol=1e-3, atol=2e-4)


def test_resumed_ranks_continue_with_equal_bits(processes: RankProcesses, tmp_path: Path) -> None:
    make = partial(build, algorithm("grpo"), {"num_minibatches": 2}, torch.bfloat16)
    saved = tmp_path / "saved"
    saved.mkdir()
    with processes.learner(make, 2, tmp_path) as learner:
        batch = learner.score_batch(a_batch(0))
        learner.update(batch, compute_advantages(batch, learner.algorithm))
        learner.save_state(saved)
        batch = learner.score_batch(a_batch(1))
        wanted = learner.update(batch, compute_advantages(batch, learner.algorithm))
        ended = weights(learner.policy)
    with processes.learner(make, 2, tmp_path) as learner:
        learner.load_state(saved)
        batch = learner.score_batch(a_batch(1))
        found = learner.update(batch, compute_advantages(batch, learner.algorithm))
        assert found.metrics == wanted.metrics
        assert all(torch.equal(one, ended[name]) for name, one in weights(learner.policy).items())


def test_a_call_of_a_single_rank_does_not_wait(processes: RankProcesses, tmp_path: Path) -> None:
    """A command evaluates with its learner between the steps."""
    make = partial(build, algorithm("grpo"), {}, torch.float32)
    alone = make()
    with processes.learner(make, 2, tmp_path) as learner:
        found = learner.passes.logprobs(a_batch())
        torch.testing.assert_close(found, alone.passes.logprobs(a_batch()))


def build_odd(ranks: Ranks) -> Any:
    """Rank 1 has other weights."""
    return a_learner(algorithm("grpo"), a_model(seed=ranks.rank), ranks=ranks)


def test_ranks_that_disagree_are_named(processes: RankProcesses, tmp_path: Path) -> None:
    with (
        pytest.raises(WorkerDied, match="learner rank 1 disagrees with rank 0 about the weights"),
        processes.learner(build_odd, 2, tmp_path) as learner,
    ):
        learn_two_steps(learner)
    assert "disagrees" in processes.said[0]


def build_failing(ranks: Ranks) -> Any:
    learner: Any = a_learner(algorithm("grpo"), ranks=ranks)
    if ranks.rank:
        learner.passes.stats = None
    return learner


def test_a_rank_that_fails_ends_the_wait_of_the_others(
    processes: RankProcesses, tmp_path: Path
) -> None:
    with (
        pytest.raises(WorkerDied, match=r"learner rank 0 waited for the other 1 at .*--resume"),
        processes.learner(build_failing, 2, tmp_path) as learner,
    ):
        learn_two_steps(learner)
    assert "TypeError" in processes.said[0]


def build_failing_writer(failing: int, ranks: Ranks) -> Any:
    learner = an_sft_learner(a_model(), optimizer=STEEP, ranks=ranks)

    def fail(folder: Path) -> None:
        with ranks.in_step():
            if ranks.rank == failing:
                (folder / "a file").write_bytes(b"")
                save_file({"x": torch.zeros(1)}, folder / "a file" / "x.safetensors")

    learner.passes.optimizer.save_state = fail
    return learner


@pytest.mark.parametrize("failing", [0, 2])
def test_a_failed_write_ends_the_save_in_all_ranks_and_further_calls_work(
    failing: int, processes: RankProcesses, tmp_path: Path
) -> None:
    wanted = build_sft().update(a_batch(0))
    with processes.learner(partial(build_failing_writer, failing), 3, tmp_path) as learner:
        with pytest.raises((OSError, SafetensorError), match="Not a directory") as caught:
            learner.save_state(tmp_path)
        # `Checkpoints.save` converts the error of rank 0.
        error = system_error(caught.value)
        assert error is not None and error.errno == errno.ENOTDIR
        assert ("learner rank 2" in str(caught.value)) == (failing == 2)
        found = learner.update(a_batch(0))
        assert found.metrics == pytest.approx(wanted.metrics, rel=1e-4)


def test_no_call_follows_one_that_failed() -> None:
    """The other ranks would take the message for a part of the failed call."""
    ranks = Ranks(0, 2)
    ranks._is_broken = True
    with (
        pytest.raises(WorkerDied, match="inside a call that failed here"),
        ranks.calling("a", (), {}),
    ):
        raise AssertionError("not reached")


def stop() -> None:
    raise KeyboardInterrupt


def test_an_interrupt_does_not_end_an_update_in_one_rank() -> None:
    """The clock of a run raises at an interrupt, and rank 0 alone has that clock."""
    passes = an_sft_learner().passes
    passes.clock.check = stop
    micro_batches = a_batch().split(10**6, "plain")
    with pytest.raises(KeyboardInterrupt):
        list(passes.each(micro_batches, "update"))
    passes.ranks = Ranks(1, 2)
    assert [*passes.each(micro_batches, "update")] == micro_batches
    shards: Any = SimpleNamespace(aligned=lambda micro_batches, _: (micro_batches, []))
    passes.shards = shards
    assert [*passes.each(micro_batches, "update")] == micro_batches


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_every_group_is_computed_by_one_rank(size: int) -> None:
    costs = [5, 1, 9, 3, 3, 7]
    groups = [0, 2, 3, 5, 6, 8]
    shares: list[list[int]] = []
    for rank in range(size):
        ranks = Ranks(rank, size)
        # Rank 0 divides its work only in a call of all ranks.
        ranks._depth = 1
        shares.append(ranks.share(groups, costs))
    assert sorted(group for share in shares for group in share) == groups
    cost_of = dict(zip(groups, costs, strict=True))
    loads = [sum(cost_of[group] for group in share) for share in shares]
    assert max(loads) - min(loads) <= max(costs)


def test_one_process_exchanges_nothing() -> None:
    assert ALONE.gather(3) == [3] and ALONE.concatenate([1, 2]) == [1, 2]
    tensor = torch.ones(3)
    ALONE.add([tensor])
    assert torch.equal(tensor, torch.ones(3))
