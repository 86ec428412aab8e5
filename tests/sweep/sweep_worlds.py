"""A sweep over a tiny model, whose runs are forks of the test's process."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import tomli_w
from recipe_worlds import World

from assay.sweep.page import SweepResult
from assay.sweep.run import Runner, run_sweep

COMMAND = ("assay",)
REWARD = "recipe_worlds:even_text*1.0 + think_format*0.1"


class ForkedRun:
    """In place of `subprocess.Popen`: runs ``assay ...`` in a fork, without a start of seconds."""

    def __init__(
        self, command: Sequence[str], *, stdout: Any, stderr: Any, env: Mapping[str, str], **_: Any
    ) -> None:
        assert tuple(command[: len(COMMAND)]) == COMMAND
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            _be_command(command[len(COMMAND) :], stdout, stderr, env)

    def poll(self) -> int | None:
        if self.returncode is None:
            done, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if done else None
        return self.returncode

    def wait(self) -> int:
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode

    def terminate(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)


def _be_command(
    arguments: Sequence[str], out: Any, err: Any, environment: Mapping[str, str]
) -> NoReturn:
    code = 70
    try:
        os.setsid()
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.default_int_handler)
        sys.argv = ["assay", *arguments]
        from assay.cli import main

        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(bool(end.code))
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


@dataclass(frozen=True)
class Sweeps:
    """A folder with a model and rows, in which sweeps are run."""

    world: World

    @property
    def folder(self) -> Path:
        return self.world.folder

    def base(self, name: str = "base", **changes: Any) -> Path:
        """Write a run file."""
        tree: dict[str, Any] = {
            "model": {"path": "model"},
            "run": {"threads": 1},
            "data": {
                # Relative paths: a copied folder holds the same sweep.
                "train": ["train.jsonl"],
                "heldout": ["held.jsonl"],
                "verifier": REWARD,
            },
            "sampling": {"max_tokens": 8},
            "engine": {"num_slots": 8},
            "optimizer": {"learning_rate": 1e-3},
            "verification": {"num_workers": 1},
            "rl": {"steps": 3, "num_prompts": 2, "group_size": 4},
            "evaluation": {"temperatures": [1.0], "num_samples": 4},
            "checkpoint": {"every": 1},
        }
        return self.world.file({**tree, **changes}, name)

    def sweep(self, name: str = "lengths", **changes: Any) -> Path:
        """Write a sweep file over the run file."""
        tree: dict[str, Any] = {
            "base": "base.toml",
            "baseline": "usual",
            "seeds": [0, 1],
            "arms": {"usual": {}, "faster": {"set": ["optimizer.learning_rate=1e-2"]}},
        }
        path = self.folder / f"{name}.toml"
        tree = {key: value for key, value in {**tree, **changes}.items() if value is not None}
        path.write_text(tomli_w.dumps(tree), encoding="utf-8")
        return path

    def run(
        self, path: Path, told: list[str] | None = None, parallel: int = 1, **how: Any
    ) -> SweepResult:
        """Run a sweep in this folder. told: gets what is said."""
        say: Callable[[str], None] = [].append if told is None else told.append
        return run_sweep(path, Runner(COMMAND, parallel, say), **how)


def signal_later(steps_of: Path, number: int, pid: Callable[[], int]) -> int:
    """Send a signal, from a fork, when a run has taken its first step. Returns the fork's id."""
    child = os.fork()
    if child:
        return child
    with suppress(BaseException):
        give_up = time.monotonic() + 60
        while time.monotonic() < give_up:
            if steps_of.exists() and steps_of.read_bytes().count(b"\n") >= 1:
                os.kill(pid(), number)
                break
            time.sleep(0.002)
    os._exit(0)
