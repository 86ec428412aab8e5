"""Runs whose updates are shared by learner ranks."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from test_reward_model_stage import KINDS, config_of
from train_worlds import World, rows_of

from assay.config import dump
from assay.errors import ConfigError, ModelError, WorkerDied
from assay.learn.ranks import Ranks
from assay.scale import learner_ranks
from assay.training.api import train

TWO = {"learner_ranks": 2, "patience": 120.0}
ONE_LINE = [
    ({"scale": {"learner_ranks": 0}}, "scale.learner_ranks: found 0"),
    (
        {"scale": {"learner_ranks": 5}},
        "scale.learner_ranks: found 5; accepted: at most 2, the groups of an optimizer step",
    ),
    (
        {"scale": {**TWO, "cpus_per_actor": 99.0}},
        "scale.cpus_per_actor: found 99, 99 for all actors",
    ),
]


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(("sections", "words"), ONE_LINE)
def test_settings_that_ranks_cannot_share_are_refused_before_weights_are_loaded(
    world: World, sections: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("assay.session.assemble.load_model", None)
    with pytest.raises(ConfigError) as caught:
        run_of(world, "wrong", **sections)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def run_of(world: World, name: str, resume: Path | None = None, **sections: Any) -> Path:
    """Train, and return the run's folder."""
    if resume is not None:
        return Path(train(resume=resume, quiet=True).run)
    tree = world.tree(**sections)
    tree["run"]["name"] = name
    return Path(train(tree, quiet=True).run)


def check_same_training(run: Path, plain: Path) -> None:
    """Metrics and weights agree but for rounding."""
    mine, theirs = rows_of(run, "metrics"), rows_of(plain, "metrics")
    assert len(mine) == len(theirs) > 1
    learned = ("loss/", "entropy/", "optimizer/", "reward/", "length/", "ratio/", "kl/", "tokens/")
    learned += ("preference/", "scores/")
    for row, other in zip(mine, theirs, strict=True):
        names = [name for name in other if name.startswith(learned)]
        assert len(names) > 5 and all(name in row for name in names)
        for name in names:
            assert row[name] == pytest.approx(other[name], rel=1e-3, abs=1e-5), name
    for name, tensor in weights_of(run).items():
        torch.testing.assert_close(tensor, weights_of(plain)[name], rtol=1e-2, atol=1e-4)


def weights_of(run: Path) -> dict[str, torch.Tensor]:
    found = max((run / "checkpoints").glob("step-*")).glob("**/*model.safetensors")
    return load_file(min(found, key=lambda file: len(file.parts)))  # the critic's is deeper


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("cluster")
def test_two_ranks_train_as_one_process(world: World) -> None:
    plain = run_of(world, "plain")
    check_same_training(run_of(world, "ranks", scale=TWO), plain)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("cluster")
def test_a_lost_rank_ends_the_run_in_one_line_and_it_resumes_to_the_same_bits(
    world: World, monkeypatch: pytest.MonkeyPatch, cluster: Any
) -> None:
    whole = run_of(world, "whole", scale=TWO)
    kill_a_rank_in_the_second_update(monkeypatch, cluster)
    with pytest.raises(WorkerDied) as caught:
        run_of(world, "killed", scale=TWO)
    said = str(caught.value)
    assert "learner rank 1 died" in said and "--resume" in said and "\n" not in said
    monkeypatch.undo()
    run = run_of(world, "", resume=whole.parent / "killed")
    mine, wanted = weights_of(run), weights_of(whole)
    assert all(torch.equal(mine[name], wanted[name]) for name in wanted)


def kill_a_rank_in_the_second_update(monkeypatch: pytest.MonkeyPatch, cluster: Any) -> None:
    members: list[Any] = []
    spawn, calling, calls = learner_ranks.spawn, Ranks.calling, list[str]()

    def recorded(*arguments: Any) -> Any:
        members.append(spawn(*arguments))
        return members[-1]

    def killing(self: Ranks, name: str, *rest: Any) -> Any:
        calls.append(name)
        if calls.count("update") == 2 and name == "update":
            cluster.kill(members[-1])
        return calling(self, name, *rest)

    monkeypatch.setattr(learner_ranks, "spawn", recorded)
    monkeypatch.setattr(Ranks, "calling", killing)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("cluster")
def test_a_reward_model_that_loses_a_rank_resumes(
    world: World, monkeypatch: pytest.MonkeyPatch, cluster: Any
) -> None:
    """This stage samples nothing: it opens the cluster for its ranks alone."""
    tree = tomllib.loads(dump(config_of(world, KINDS["preference"])))
    plain = train(tree, overrides=["run.name=plain"], quiet=True).run
    kill_a_rank_in_the_second_update(monkeypatch, cluster)
    with pytest.raises(WorkerDied, match=r"^[^\n]*learner rank 1 died[^\n]*--resume[^\n]*$"):
        train({**tree, "scale": TWO}, overrides=["run.name=killed"], quiet=True)
    monkeypatch.undo()
    resumed = train(resume=Path(plain).parent / "killed", quiet=True).run
    check_same_training(Path(resumed), Path(plain))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("cluster")
def test_a_rank_whose_model_does_not_load_says_why(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("assay.session.placement._build_rank", refuse)
    with pytest.raises(WorkerDied, match=r"learner rank 1: ModelError: no weights here.*--resume"):
        run_of(world, "odd", scale=TWO)


def refuse(*_: Any) -> Any:
    raise ModelError("no weights here")
