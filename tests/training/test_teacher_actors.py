"""A teacher in actors: it says what the one beside the policy says, whoever dies."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from teacher_mortal import MortalActor
from test_distill import SIZES, save_other_tokens
from test_teacher_cache import losses
from test_teacher_server import ALL, WAYS
from train_worlds import World

from assay.config import parse
from assay.errors import ConfigError, WorkerDied
from assay.plan.measured.measure import measure
from assay.scale import teacher as teacher_module
from assay.scale import verifying
from assay.testing import save_tiny_model
from assay.training.api import dry_run, train

pytestmark = [pytest.mark.usefixtures("cluster"), pytest.mark.filterwarnings("ignore")]


def bits(run: Any) -> tuple[Any, bytes]:
    return losses(run), (Path(run.checkpoint or "") / "model.safetensors").read_bytes()


def run_of(world: World, way: str, name: str, actors: int | None = None, **distill: Any) -> Any:
    tree = WAYS[way](world, name, **distill)
    if actors is not None:
        tree["scale"] = {"teacher_actors": actors}
    return train(tree, quiet=True)


@pytest.mark.parametrize("way", ["keep", "policy gradient"])
def test_one_actor_gives_the_bits_of_the_teacher_beside_the_policy(world: World, way: str) -> None:
    one, none = (run_of(world, way, name, actors=n) for name, n in {"one": 1, "none": None}.items())
    assert bits(one) == bits(none)


def test_two_actors_share_the_groups(world: World) -> None:
    """Over all tokens it is the divergence from the whole distribution."""
    far = losses(run_of(world, "on policy", "two", actors=2, keep_top=ALL, temperature=2.0))
    near = losses(run_of(world, "on policy", "none", temperature=2.0))
    for one, other in zip(far, near, strict=True):
        assert one["loss/divergence"] == pytest.approx(other["loss/divergence"], rel=1e-3)


@pytest.fixture
def killing(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Kill an actor when it is asked for the second time; the list is how often it was asked."""
    asked: list[int] = []
    shared = teacher_module.ActorTeacher._shared

    def kill(self: Any, batch: Any, ask: Any) -> Any:
        asked.append(batch.num_groups)
        if len(asked) == 2:
            ref = self._actors[0].process.remote()
            os.kill(teacher_module.answer(ref, "it", 60.0), signal.SIGKILL)
        return shared(self, batch, ask)

    monkeypatch.setattr(teacher_module, "TeacherActor", MortalActor)
    monkeypatch.setattr(teacher_module.ActorTeacher, "_shared", kill)
    return asked


def test_an_actor_that_dies_is_replaced_and_nothing_changes(
    world: World, killing: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    killed = run_of(world, "policy gradient", "killed", actors=1)
    assert len(killing) == 3
    assert "warning: teacher actor 1 is replaced: " in capsys.readouterr().err
    assert bits(killed) == bits(run_of(world, "policy gradient", "none"))


def test_a_run_whose_actors_all_die_ends_and_goes_on_to_the_same_bits(
    world: World, killing: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(teacher_module, "MOST_LOST", 1)
    with pytest.raises(WorkerDied) as told:
        run_of(world, "policy gradient", "part", actors=1)
    words = str(told.value)
    assert words.startswith("teacher actor 1: ") and "\n" not in words
    assert words.endswith("find the cause, then continue with assay train --resume RUN")
    again = train(resume=world.folder / "runs" / "part", quiet=True)
    assert bits(again) == bits(run_of(world, "policy gradient", "none"))


def test_a_teacher_with_other_tokens_is_refused(world: World) -> None:
    tree = WAYS["keep"](world, "bad")
    save_other_tokens(world.folder / "other", **SIZES)
    tree["teacher"] = {"path": str(world.folder / "other")}
    tree["scale"] = {"teacher_actors": 1}
    for start in (train, dry_run):
        with pytest.raises(ConfigError) as told:
            start(tree, quiet=True)
        found = "found a tokenizer in which 'A' is not token 65; accepted: a teacher with the"
        assert str(told.value).startswith(f"teacher.path {world.folder / 'other'}: {found}")
    assert not (world.folder / "runs").exists()


def test_a_plan_opens_the_cluster(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a dry run does: without one, Ray would start another on its own."""
    opened: list[Any] = []

    def actors_for(*given: Any) -> dict[str, Any]:
        opened.append(given)
        return verifying.actors_for(*given)

    monkeypatch.setattr("assay.session.assemble.actors_for", actors_for)
    tree = {**WAYS["on policy"](world, "plan"), "scale": {"teacher_actors": 1}}
    measure(parse(tree), 0, lambda text: None)
    assert len(opened) == 1


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a device": (
        {"teacher": {"path": "teacher", "device": "cpu"}},
        'teacher.device: found "cpu"; accepted: none with scale.teacher_actors',
    ),
    "a server": (
        {"teacher": {"path": "large", "url": "http://localhost:9/v1"}},
        "scale.teacher_actors: found 1; accepted: none without a teacher of teacher.path",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_settings_that_actors_reject(world: World, case: str) -> None:
    save_tiny_model(world.folder / "teacher", **SIZES)
    changes, words = WRONG[case]
    tree = {**WAYS["keep"](world, "bad"), "scale": {"teacher_actors": 1}, **changes}
    with pytest.raises(ConfigError) as told:
        train(tree, quiet=True)
    assert words in str(told.value) and "\n" not in str(told.value)
