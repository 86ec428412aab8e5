"""When a run saves a checkpoint, and which state it holds."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest
from run_fakes import FakeLearner, make_config, take_steps

from assay.config import CheckpointConfig
from assay.errors import RunError, RunStopped
from assay.run import checkpoints
from assay.run.directory import Run


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock that checkpoints go by, in seconds."""
    now = [1000.0]
    monkeypatch.setattr(checkpoints.time, "monotonic", lambda: now[0])
    return now


def saved_steps(run: Run) -> list[int]:
    return run.checkpoints.steps()


def test_a_checkpoint_comes_after_ten_minutes_or_fifty_steps(
    tmp_path: Path, clock: list[float]
) -> None:
    config = make_config(tmp_path, rl={"steps": 200}, checkpoint={"keep_last": 100})
    config = config.model_copy(update={"checkpoint": CheckpointConfig(keep_last=100)})
    with Run.create(config, quiet=True) as run:
        learner = FakeLearner()
        run.attach(learner=learner)
        clock[0] += 599
        take_steps(run, learner, 1)
        assert saved_steps(run) == []
        clock[0] += 1
        take_steps(run, learner, 2)
        assert saved_steps(run) == [2], "ten minutes after the start, and once"
        take_steps(run, learner, 48)
        assert saved_steps(run) == [2, 50]
        clock[0] += 599
        take_steps(run, learner, 1)
        clock[0] += 1
        take_steps(run, learner, 1)
        assert saved_steps(run) == [2, 50, 53], "ten minutes after the newest, whatever it is of"


def test_without_minutes_only_steps_count(tmp_path: Path, clock: list[float]) -> None:
    with Run.create(make_config(tmp_path, checkpoint={"minutes": None}), quiet=True) as run:
        run.attach(learner=FakeLearner())
        for _ in range(3):
            clock[0] += 1e6
            take_steps(run, FakeLearner(), 1)
        assert saved_steps(run) == []


def test_a_run_whose_only_checkpoint_by_the_clock_is_gone_is_not_trained_again(
    tmp_path: Path, clock: list[float]
) -> None:
    run = Run.create(make_config(tmp_path, checkpoint={"every": 50}), quiet=True)
    run.attach(learner=FakeLearner())
    clock[0] += 600
    take_steps(run, FakeLearner(), 1)
    run._release()  # what the system does for a killed process
    shutil.rmtree(run.checkpoints.folder)
    with pytest.raises(RunError, match="its checkpoints are missing"):
        Run.resume(run.folder, quiet=True)


class Drawn:
    """A part that a step changes before its update."""

    def __init__(self, number: int = 0) -> None:
        self.number = number

    def state_copy(self) -> Drawn:
        return Drawn(self.number)

    def save_state(self, folder: Path) -> None:
        (folder / "number").write_text(str(self.number))

    def load_state(self, folder: Path) -> None:
        self.number = int((folder / "number").read_text())


class Learning(FakeLearner):
    """A learner that says how often its state has changed."""

    @property
    def state_version(self) -> int:
        return self.policy_version


@pytest.mark.parametrize("has_learned", [False, True])
def test_a_run_that_is_stopped_within_a_step_saves_the_state_before_it(
    tmp_path: Path, has_learned: bool
) -> None:
    """Or nothing, where the weights are no longer those before it."""
    run, drawn, learner = Run.create(make_config(tmp_path), quiet=True), Drawn(), Learning()
    with pytest.raises(RunStopped), run:
        run.attach(learner=learner, drawn=drawn)
        for step in range(2):
            run.hold_state()
            drawn.number += 1
            if step == 0:
                take_steps(run, learner, 1)
            random.random()
        learner.policy_version += has_learned
        raise RunStopped("nobody answers")
    assert saved_steps(run) == ([] if has_learned else [1])
    if not has_learned:
        after = Drawn()
        after.load_state(run.checkpoints.path(1) / "drawn")
        assert (after.number, drawn.number) == (1, 2)
        used = json.loads((run.checkpoints.path(1) / "random" / "random.json").read_text())
        assert used["python"] != json.loads(json.dumps(random.getstate())), "as it was before"
