"""Every training stage under several learner ranks, whose processes start without Ray."""

from __future__ import annotations

import errno
import os
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from rank_processes import RankProcesses
from safetensors import SafetensorError
from safetensors.torch import save_file
from test_distill import ON_POLICY, distill_tree
from test_learner_ranks import check_same_training, weights_of
from test_preference import pairs_file, preference_tree
from test_preference_online import on_policy_tree
from test_reward_model_stage import KINDS, config_of
from test_teacher_cache import kept_tree
from train_worlds import World, rows_of

from assay.config import dump
from assay.errors import ConfigError, DiskFull
from assay.training.api import train

pytestmark = pytest.mark.filterwarnings("ignore")
Tree = dict[str, Any]


@pytest.fixture(scope="module")
def processes() -> Iterator[RankProcesses]:
    started = RankProcesses(2)
    yield started
    started.close()


@pytest.fixture
def without_ray(processes: RankProcesses, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("assay.session.placement.open_ranks", processes.open)
    for module in ("assay.scale.verifying", "assay.training.reward_model"):
        monkeypatch.setattr(f"{module}.open_cluster", lambda *_: None)


def with_reference(world: World) -> Tree:
    return world.tree(algorithm={"name": "grpo", "kl_weight": 0.05}, rl={"epochs": 2})


def with_critic(world: World) -> Tree:
    return world.tree(algorithm={"name": "ppo"})


def traces(world: World) -> Tree:
    """The run evaluates between its steps: rank 0 alone computes then."""
    return world.sft_tree()


def pairs(world: World) -> Tree:
    heldout = [pairs_file(world, 5, "held.jsonl")]
    return preference_tree(world, preference={"heldout": heldout})


def desirable(world: World) -> Tree:
    return preference_tree(world, preference={"method": "kto", "pairs_per_step": 9})


def sampled_pairs(world: World) -> Tree:
    return on_policy_tree(world, preference={"reference_every": 1, "pairs_per_group": 2})


def reward_model(world: World) -> Tree:
    return tomllib.loads(dump(config_of(world, KINDS["process"])))


def taught_by_policy_gradient(world: World) -> Tree:
    tree = distill_tree(world)
    del tree["distill"]
    tree["rl"] = {"steps": 3, "num_prompts": 2, "group_size": 4}
    return {**tree, "algorithm": {"name": "on_policy_distillation"}}


def taught_on_samples(world: World) -> Tree:
    return distill_tree(world, distill=ON_POLICY)


def sharded(make: Callable[[World], Tree]) -> Callable[[World], Tree]:
    """Ranks divide the weights too, which one process does not."""

    def tree(world: World) -> Tree:
        return {**make(world), "scale": {"shard": True}}

    tree.__name__ = f"sharded {make.__name__}"
    return tree


def adapted(make: Callable[[World], Tree]) -> Callable[[World], Tree]:
    """Only adapters are trained."""

    def tree(world: World) -> Tree:
        found = make(world)
        return {**found, "model": {**found["model"], "lora": {"rank": 2}}}

    tree.__name__ = f"adapted {make.__name__}"
    return tree


@pytest.mark.usefixtures("without_ray")
@pytest.mark.parametrize(
    ("make", "size"),
    [
        (with_reference, 2),
        (sharded(with_reference), 2),
        pytest.param(sharded(adapted(with_reference)), 2, marks=pytest.mark.slow),
        (with_critic, 2),
        (traces, 2),
        (sharded(traces), 3),
        (sharded(adapted(traces)), 3),
        (pairs, 2),
        (desirable, 3),
        (sampled_pairs, 2),
        (reward_model, 3),
        pytest.param(distill_tree, 2, marks=pytest.mark.slow),
        pytest.param(kept_tree, 2, marks=pytest.mark.slow),
        (taught_on_samples, 2),
        pytest.param(taught_by_policy_gradient, 2, marks=pytest.mark.slow),
    ],
)
def test_ranks_train_as_one_process_and_resume_to_equal_bits(
    world: World, make: Callable[[World], Tree], size: int
) -> None:
    def run_of(name: str, ranks: int, **settings: Any) -> Path:
        tree = make(world)
        tree["run"] = {**tree["run"], "name": name, **settings}
        tree["scale"] = {**tree.get("scale", {}), "learner_ranks": ranks} if ranks > 1 else {}
        return Path(train(tree, quiet=True).run)

    whole, plain = run_of("ranks", size), run_of("plain", 1)
    check_same_training(whole, plain)
    assert saved_files(whole) == saved_files(plain)
    part = run_of("part", size, max_minutes=1e-9)
    assert len(rows_of(part, "metrics")) == 1
    train(resume=part, overrides=["run.max_minutes="], quiet=True)
    mine, wanted = weights_of(part), weights_of(whole)
    assert all(torch.equal(mine[name], wanted[name]) for name in wanted)


def fail_checkpoints_after(step: int, number: int, patch: pytest.MonkeyPatch) -> None:
    """Let the writes of rank 0 fail for all later steps, as safetensors reports it.

    The kernel itself refuses the write with ENOTDIR; other numbers are only in the text.
    """

    def save(tensors: Any, file: Path, **settings: Any) -> None:
        # The critic's state is in a subfolder of the checkpoint.
        folder = str(file).partition(".saving-")[2]
        if int(folder.partition("-")[0]) > step:
            if number == errno.ENOTDIR:
                file = file.with_name("a file") / file.name
                file.parent.write_bytes(b"")
                save_file(tensors, file)
            raise SafetensorError(f"I/O error: {os.strerror(number)} (os error {number})")
        save_file(tensors, file, **settings)

    patch.setattr("assay.learn.optimizer.save_file", save)


@pytest.mark.slow
@pytest.mark.usefixtures("without_ray")
@pytest.mark.parametrize("make", [sharded(traces), traces, sharded(adapted(traces)), with_critic])
def test_ranks_that_cannot_write_a_checkpoint_resume_from_the_last_complete_one(
    world: World,
    make: Callable[[World], Tree],
    processes: RankProcesses,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run_of(name: str) -> Path:
        tree = make(world)
        tree["run"] = {**tree["run"], "name": name}
        tree["scale"] = {**tree.get("scale", {}), "learner_ranks": 2}
        return Path(train(tree, quiet=True).run)

    whole = run_of("whole")
    with monkeypatch.context() as patch, pytest.raises(DiskFull) as caught:
        fail_checkpoints_after(2, errno.ENOSPC, patch)
        run_of("full")
    run, said = whole.with_name("full"), str(caught.value)
    assert "the disk is full" in said and f"{run}/checkpoints/step-000002, is usable" in said
    assert "\n" not in said and processes.said[0] == ""
    assert [one.name for one in (run / "checkpoints").iterdir()] == ["step-000002"]
    train(resume=run, quiet=True)
    mine, wanted = weights_of(run), weights_of(whole)
    assert all(torch.equal(mine[name], wanted[name]) for name in wanted)


def saved_files(run: Path) -> list[str]:
    newest = max((run / "checkpoints").glob("step-*"))
    return sorted(str(file.relative_to(newest)) for file in newest.rglob("*"))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (pairs, "at most 5, the groups of an optimizer step; raise preference.pairs_per_step"),
        (sampled_pairs, "at most 2, the groups of an optimizer step; raise preference.num_prompts"),
        (reward_model, "at most 4, the groups of an optimizer step; raise reward_model.rows_per_"),
        (taught_on_samples, "at most 2, the groups of an optimizer step; raise distill.num_pro"),
    ],
)
def test_more_ranks_than_groups_are_refused(
    world: World, make: Callable[[World], Tree], words: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        train({**make(world), "scale": {"learner_ranks": 6}}, quiet=True)
    assert words in str(caught.value) and "\n" not in str(caught.value)


SHARDED = {"learner_ranks": 2, "shard": True}
REFUSED: list[tuple[Callable[[World], Tree], Tree, str]] = [
    (traces, {"scale": {"shard": True}}, "found true; accepted: false without learner ranks"),
    (traces, {"optimizer": {"name": "adamw_8bit"}}, 'with optimizer.name = "adamw_8bit"'),
    (traces, {"optimizer": {"state_dtype": "bfloat16"}}, "found true with optimizer.state_dtype"),
    (
        pairs,
        {},
        "found true in a run of [preference]; accepted: false in a stage other than rl, sft",
    ),
    (with_critic, {}, "found true with a critic; accepted: false with a critic"),
    (World.tree, {"algorithm": {"name": "trpo"}}, "found true with a trust region"),
    (taught_by_policy_gradient, {}, "found true with [teacher]"),
]


@pytest.mark.parametrize(("make", "changes", "words"), REFUSED)
def test_what_sharded_weights_do_not_support_is_refused_before_weights_are_loaded(
    world: World,
    make: Callable[[World], Tree],
    changes: Tree,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tree = {**make(world), "scale": SHARDED}
    for section, values in changes.items():
        tree[section] = values if section == "scale" else {**tree.get(section, {}), **values}
    monkeypatch.setattr("assay.session.assemble.load_model", None)
    with pytest.raises(ConfigError) as caught:
        train(tree, quiet=True)
    said = str(caught.value)
    assert "scale.shard: found true" in said and words in said and "\n" not in said
