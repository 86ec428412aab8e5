"""A training that is killed and resumed ends as one that was never stopped; Ctrl-C ends it cleanly."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from train_worlds import World, events_of, rows_of

from assay import load_config
from assay.cli import main
from assay.generate import engine as engine_module
from assay.generate.threads import on_threads
from assay.training.api import train

HERE = Path(__file__).parent
ROOT = HERE.parent.parent  # this tree, wherever the package was installed from
PATHS = os.pathsep.join(map(str, (HERE, ROOT)))
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": PATHS}


def run_killer(world: World, seed: int, num_kills: int, *stages: str) -> dict[str, Any]:
    command = [sys.executable, str(HERE / "train_killer.py"), str(world.folder)]
    done = subprocess.run(
        [*command, str(seed), str(num_kills), *stages],
        capture_output=True,
        text=True,
        check=False,
        env=ENVIRONMENT,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def check_killed(world: World, seed: int, num_kills: int, *stages: str) -> None:
    found = run_killer(world, seed, num_kills, *stages)
    assert found.keys() == {*stages}
    for stage, result in found.items():
        assert result["different"] == [], stage
        assert result["workers_left"] == [], stage
        assert result["kills"] >= num_kills, stage
        assert result["resumes"] > 0, "some kills hit a run that had begun"


@pytest.mark.timeout(1200)
def test_killed_three_times(world: World) -> None:
    check_killed(world, 0, 3, "rl", "critic", "given", "on_policy")


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
    ],
)
def test_killed_again_and_again(world: World, seed: int, stage: str) -> None:
    check_killed(world, seed, 24, stage)


def start(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "assay.cli", *arguments],
        cwd=cwd,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for_step(run: Path, step: int) -> None:
    give_up = time.monotonic() + 120
    while time.monotonic() < give_up:
        try:
            if len(rows_of(run, "metrics")) >= step:
                return
        except (OSError, ValueError):  # not there yet, or half a line
            pass
        time.sleep(0.02)
    raise AssertionError(f"{run} has not come to step {step}")


def test_ctrl_c_stops_after_the_step_and_a_second_start_goes_on(
    world: World, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As on a terminal: the signal goes to the whole process group, workers included."""
    tree = world.tree(rl={"steps": 100_000}, checkpoint={"every": 100_000})
    path, run = world.config_file(tree), world.folder / "runs" / "run"
    process = start("train", str(path), cwd=world.folder)
    wait_for_step(run, 2)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "stopping cleanly after this step" in err
    assert "Traceback" not in err and "interrupted after" in out
    assert f"go on with: assay train --resume {run}" in out
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
