"""A small run that is killed again and again: a program, so that SIGKILL hits a process of its own.

    kill_harness.py FOLDER random SEED NUM_KILLS     kills at random moments, resuming in between
    kill_harness.py FOLDER sweep FIRST EVERY         one run for every so-manieth file operation,
                                                     killed just before it, then resumed

Prints one JSON line. Everything is imported once; each attempt is a fork.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from run_fakes import FakeLearner, make_config, make_rollouts

from assay.host.files import read_rows
from assay.run.directory import Run
from assay.run.metrics import is_timing
from assay.types import Group, Verdict

_FILE_OPERATIONS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree"}


class FakeCurriculum:
    """Draws with the process-wide generator, so that its state must come back too."""

    def __init__(self) -> None:
        self.num_draws = 0

    def draw(self) -> int:
        self.num_draws += 1
        return random.randrange(2**20) ^ self.num_draws

    def save_state(self, folder: Path) -> None:
        (folder / "curriculum.json").write_text(json.dumps(self.num_draws))

    def load_state(self, folder: Path) -> None:
        self.num_draws = json.loads((folder / "curriculum.json").read_text())


def train(parent: Path, num_steps: int) -> None:
    """Create or resume the run in this folder and take it to its end."""
    folder = parent / "test"
    learner, curriculum = FakeLearner(), FakeCurriculum()
    if (folder / "config.toml").exists():
        run = Run.resume(folder, quiet=True)
    else:
        settings: dict[str, Any] = {"checkpoint": {"every": 2}, "rl": {"steps": num_steps}}
        shutil.rmtree(folder, ignore_errors=True)  # killed before there was a run
        run = Run.create(make_config(parent, **settings), quiet=True)
    with run:
        run.attach(learner=learner, curriculum=curriculum)
        evaluate(run, learner)
        while run.step < num_steps:
            groups, verdicts = collect(run, learner, curriculum)
            run.record(groups, verdicts)
            run.finish_step(learner.learn(groups, verdicts))
            evaluate(run, learner)


def collect(
    run: Run, learner: FakeLearner, curriculum: FakeCurriculum
) -> tuple[list[Group], list[tuple[Verdict, ...]]]:
    seed = (zlib.crc32(learner.weights.tobytes()) ^ curriculum.draw()) & 0x7FFFFFFF
    made = make_rollouts(seed, num_groups=2)
    logged = run.recorded(run.step + 1)
    if logged is not None:
        assert [group.id for group in logged[0]] == [group.id for group in made[0]]
    return logged or made


def evaluate(run: Run, learner: FakeLearner) -> None:
    if run.step % 3 == 0 and not run.evaluations(run.step):
        accuracy = float(np.abs(learner.weights).mean())
        run.record_evaluation({"eval/pass_at_1": accuracy, "eval/seconds": time.time()})


def fingerprint(folder: Path) -> dict[str, Any]:
    """Return all of a finished run that does not depend on the clock."""
    rows = [*read_rows(folder / "metrics.jsonl"), *read_rows(folder / "evaluations.jsonl")]
    shards = sorted((folder / "rollouts").glob("*"))
    manifests = sorted((folder / "checkpoints").glob("*/manifest.json"))
    assert not find_leftovers(folder)
    return {
        "rows": [{k: v for k, v in row.items() if not is_timing(k)} for row in rows],
        "shards": {one.name: pq.ParquetFile(one).read().to_pylist() for one in shards},
        "checkpoints": {one.parent.name: one.read_text() for one in manifests},
        "files": sorted(path.name for path in folder.glob("*")),
    }


def find_leftovers(folder: Path) -> list[Path]:
    return [path for path in folder.rglob(".*") if path.name != ".lock"]


def attempt(parent: Path, num_steps: int, kill_after: float | None, kill_at: int | None) -> bool:
    """Fork a process that trains; return whether it came to its end before it was killed."""
    child = os.fork()
    if child == 0:
        try:
            if kill_at is not None:
                kill_before_operation(kill_at, str(parent))
            train(parent, num_steps)
            os._exit(0)
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            raise
        finally:
            os._exit(1)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return False
    assert os.WEXITSTATUS(status) == 0, "the run failed by itself"
    return True


def kill_before_operation(number: int, within: str) -> None:
    """Make this process kill itself just before its n-th file operation in a folder."""
    count = 0

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal count
        if event in _FILE_OPERATIONS and str(arguments[0]).startswith(within):
            count += 1
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)


def kill_at_random(parent: Path, seed: int, num_kills: int) -> dict[str, Any]:
    chance = random.Random(seed)
    num_steps, kills, runs, different = 60, 0, 0, []
    assert attempt(parent / "whole", num_steps, None, None)
    while kills < num_kills:
        runs += 1
        folder = parent / f"killed-{runs}"
        while kills < num_kills and not attempt(folder, num_steps, chance.uniform(0.0, 0.15), None):
            kills += 1
        assert attempt(folder, num_steps, None, None)
        different += compare(parent / "whole", folder)
    return {"kills": kills, "different": different}


def sweep(parent: Path, first: int, every: int) -> dict[str, Any]:
    num_steps, kills, different = 4, 0, []
    assert attempt(parent / "whole", num_steps, None, None)
    for number in range(first, 100_000, every):
        folder = parent / f"killed-{number}"
        if attempt(folder, num_steps, None, number):
            break
        kills += 1
        kills += not attempt(folder, num_steps, None, number % 17 + 1)  # now while it resumes
        assert attempt(folder, num_steps, None, None)
        different += [(number, what) for what in compare(parent / "whole", folder)]
    return {"kills": kills, "different": different}


def compare(whole: Path, killed: Path) -> list[str]:
    """Return what differs between two finished runs."""
    left, right = fingerprint(whole / "test"), fingerprint(killed / "test")
    return [key for key in left if left[key] != right[key]]


if __name__ == "__main__":
    mode, arguments = sys.argv[2], [int(one) for one in sys.argv[3:]]
    work = {"random": kill_at_random, "sweep": sweep}[mode]
    print(json.dumps(work(Path(sys.argv[1]), *arguments)))
