"""A training that is killed and resumed ends as one that was never stopped; Ctrl-C ends it cleanly."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from train_killer import STAGES, fingerprint, rl_tree
from train_worlds import World, events_of, rows_of

from assay import RunStopped, load_config
from assay.cli import main
from assay.generate import engine as engine_module
from assay.generate.engine import Engine
from assay.generate.slots import Slots
from assay.generate.threads import on_threads
from assay.learn.policy_update import PolicyUpdate
from assay.run.directory import Run
from assay.session import stage as stage_module
from assay.training.api import train

HERE = Path(__file__).parent
ROOT = HERE.parent.parent  # this tree, wherever the package was installed from
PATHS = os.pathsep.join(map(str, (HERE, HERE.parent, ROOT)))
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": PATHS}


def run_killer(world: World, seed: int, num_kills: int, *stages: str) -> dict[str, Any]:
    return run_program("train_killer.py", world, str(seed), str(num_kills), *stages)


def run_program(name: str, world: World, *arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(HERE / name), str(world.folder), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=ENVIRONMENT,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def check_killed(found: dict[str, Any], num_kills: int) -> None:
    for stage, result in found.items():
        assert result["different"] == [], stage
        assert result["workers_left"] == [], stage
        assert result["kills"] >= num_kills, stage
        assert result["resumes"] > 0, "some kills hit a run that had begun"


@pytest.mark.timeout(1200)
def test_trainings_that_are_killed_or_interrupted_go_on(
    world: World, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """One program does both: what it imports takes as long as either. The other stages are killed
    by the slow tests, more often."""
    stages = ("rl", "mixture", "given")
    found = run_killer(world, 0, 3, *stages, "ctrl_c")
    ended = found.pop("ctrl_c")
    assert found.keys() == {*stages}
    check_killed(found, 3)

    said, run = ended["said"], world.folder / "runs" / "run"
    assert ended["code"] == 130
    assert "stopping cleanly at the next micro-batch" in said
    assert "Traceback" not in said and "interrupted after" in said
    assert f"continue with: assay train --resume {run}" in said
    steps = len(rows_of(run, "metrics"))
    assert (run / "checkpoints" / f"step-{steps:06d}").is_dir()
    assert not {"worker_died", "worker_killed"} & {*events_of(run)}
    assert rows_of(run, "metrics")[-1]["verdict/not_judged"] == 0
    assert (run / "report.html").exists()
    more = ("--set", f"rl.steps={steps + 1}", "--json")
    monkeypatch.setattr(sys, "argv", ["assay", "train", "--resume", str(run), *more])
    capfd.readouterr()
    with pytest.raises(SystemExit) as end:
        main()
    out, err = capfd.readouterr()
    assert end.value.code == 0, err
    assert json.loads(out)["steps"] == steps + 1 and err == ""


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("seed", "stage"),
    [
        (1, "rl"),
        (2, "rl"),
        (3, "given"),
        (4, "on_policy"),
        (5, "critic"),
        (6, "shared"),
        (7, "pretrain"),
        (8, "thinking"),
        (9, "distill"),
        (10, "kept"),
        (11, "taught"),
        (12, "mixture"),
    ],
)
def test_killed_again_and_again(world: World, seed: int, stage: str) -> None:
    check_killed(run_killer(world, seed, 24, stage), 24)


@pytest.mark.timeout(1200)
def test_a_step_killed_during_sampling_resumes_from_finished_completions(
    world: World,
) -> None:
    for stage, result in run_program("step_killer.py", world, "rl", "growing", "thinking").items():
        assert result["different"] == [], stage
        assert result["logged"] >= 6, stage
        assert result["again"] == [], stage


def last_files(run: str) -> dict[str, Any]:
    """Return what a finished run holds that no clock decides: not which checkpoints it has kept."""
    found, last = fingerprint(Path(run)), f"checkpoints/step-{6:06d}"
    return {
        key: one for key, one in found.items() if not key.startswith("checkpoints") or last in key
    }


def test_a_checkpoint_by_the_clock_changes_no_result(world: World) -> None:
    """Here one comes after each step; in the other run after the last step alone."""
    runs = []
    for name, minutes in (("often", 1e-9), ("once", 1e9)):
        tree = rl_tree(world)
        tree["run"]["name"] = name
        tree["checkpoint"] = {"every": 1000, "minutes": minutes, "keep_best": False}
        tree["checkpoint"]["keep_last"] = 100
        runs.append(train(tree, quiet=True).run)
    saved = [sorted(one.name for one in (Path(run) / "checkpoints").iterdir()) for run in runs]
    assert saved == [[f"step-{n:06d}" for n in range(1, 7)], ["step-000006"]]
    often, once = map(last_files, runs)
    assert often == once


@pytest.mark.parametrize("stage", ["rl", "on_policy"])
def test_a_run_that_is_stopped_within_a_step_takes_that_step_again(
    world: World, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    """Its problems were drawn, and a checkpoint is saved: of the state before they were."""

    def tree(name: str) -> dict[str, Any]:
        found = STAGES[stage](world)
        found["run"]["name"] = name
        found["checkpoint"] = {"every": 1000, "keep_best": False}
        return found

    whole = train(tree("whole"), quiet=True).run
    run = world.folder / "runs" / "stopped"
    plain = Engine.generate

    def generate(engine: Engine, problems: Any, *rest: Any, **more: Any) -> Any:
        is_trained_on = problems[0].id.startswith("p")
        if is_trained_on and (run / "rollouts" / "step-000004.parquet").exists():
            raise RunStopped("nobody answers")
        return plain(engine, problems, *rest, **more)

    with monkeypatch.context() as patched, pytest.raises(RunStopped):
        patched.setattr(Engine, "generate", generate)
        train(tree("stopped"), quiet=True)
    assert [one.name for one in (run / "checkpoints").iterdir()] == ["step-000004"]
    train(resume=run, quiet=True)
    assert last_files(str(run)) == last_files(whole)


@pytest.mark.parametrize("place", ["sampling", "update", "between optimizer steps"])
def test_a_signal_ends_a_step_in_its_middle_and_the_run_goes_on_to_the_same_bits(
    world: World, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Where the weights have changed within the step, the last checkpoint is an earlier one."""

    def tree(name: str) -> dict[str, Any]:
        found = world.tree(algorithm={"name": "grpo", "kl_weight": 0.01})
        found["run"]["name"] = name
        parts = 2 if place == "between optimizer steps" else 1
        found["rl"] |= {"steps": 6, "max_tokens_per_micro_batch": 1, "num_minibatches": parts}
        found["checkpoint"] = {"every": 1000, "keep_best": False}
        return found

    whole = train(tree("whole"), quiet=True).run
    run = world.folder / "runs" / "stopped"
    places = {"sampling": (Slots, "record"), "update": (PolicyUpdate, "add_loss")}
    owner, name = places.get(place, (PolicyUpdate, "step"))
    plain, done = getattr(owner, name), list[int]()

    def signal_after_two_steps(one: Any, *rest: Any) -> Any:
        taken = (run / "metrics.jsonl").exists() and len(rows_of(run, "metrics"))
        if taken and taken >= 2:
            done.append(taken)
            if len(done) == 1:
                os.kill(os.getpid(), signal.SIGINT)
        return plain(one, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(owner, name, signal_after_two_steps)
        result = train(tree("stopped"), quiet=True)
    assert result.ended == "interrupted" and len(done) == 1, "nothing was done after it"
    saved = [one.name for one in (run / "checkpoints").glob("*")]
    steps = len(rows_of(run, "metrics"))
    assert steps == done[0] and steps < 6
    assert saved == ([] if place == "between optimizer steps" else [f"step-{steps:06d}"])
    assert train(resume=run, quiet=True).ended == "finished"
    assert last_files(str(run)) == last_files(whole)


def test_an_interrupted_last_evaluation_is_repeated_on_resume(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = stage_module._evaluate_at

    def signal_at_the_end(run: Run, *rest: Any) -> None:
        if run.step == run.num_steps:
            os.kill(os.getpid(), signal.SIGINT)
        plain(run, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(stage_module, "_evaluate_at", signal_at_the_end)
        result = train(world.tree(), quiet=True)
    assert result.ended == "interrupted"
    assert train(resume=result.run, quiet=True).ended == "finished"
    assert [row["step"] for row in rows_of(result.run, "evaluations")] == [0, 2, 3]


def test_a_resumed_run_keeps_its_number_of_decoding_threads(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Timed again, it would be another."""
    monkeypatch.setattr(engine_module, "fastest_threads", lambda *rest: 1)
    with on_threads(2):
        run = train(world.tree(rl={"steps": 1}, run={"threads": 2}), quiet=True).run
        assert load_config(Path(run) / "config.toml").engine.threads == 1
        monkeypatch.setattr(engine_module, "fastest_threads", lambda *rest: 2)
        train(resume=run, overrides=["rl.steps=2"], quiet=True)
        assert load_config(Path(run) / "config.toml").engine.threads == 1
