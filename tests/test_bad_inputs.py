"""A sweep: no bad input ends a command with a traceback, in silence, by a signal, or never."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import bad_inputs
import pytest
from bad_inputs import COMMANDS, MODULES, Case, write_world

SECONDS = 30.0
CASES = bad_inputs.cases()


@dataclass(frozen=True)
class Ended:
    """How a command ended. code: -9 and the like for a signal, None where it had to be killed."""

    code: int | None
    out: str
    err: str


def run_forked(arguments: tuple[str, ...], folder: Path, patience: float) -> Ended:
    """Run a command in a fork of this process, which has imported all that it needs."""
    files = [folder / ".out", folder / ".err"]
    child = os.fork()
    if child == 0:
        _be_the_command(arguments, folder, files)
    give_up = time.monotonic() + patience
    status, code = 0, None
    while time.monotonic() < give_up:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            break
        time.sleep(0.01)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if code is None:
        os.waitpid(child, 0)
    return Ended(code, *(path.read_text(errors="replace") for path in files))


def _be_the_command(arguments: tuple[str, ...], folder: Path, files: list[Path]) -> NoReturn:
    code = 70
    try:
        os.setsid()
        os.chdir(folder)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, path in enumerate(files, 1):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        sys.stdin, sys.stdout, sys.stderr = (os.fdopen(n, "w" if n else "r") for n in range(3))
        sys.argv = ["assay", *arguments]
        from assay import cli, foreign
        from assay.verify.serving import pool, process

        foreign.IMPORT_SECONDS = pool.IMPORT_DEADLINE = process.IMPORT_DEADLINE = 3.0
        try:
            cli.main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 71
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which every command works, with a finished run."""
    import torch

    import assay.recipes.demo
    import assay.run.report
    import assay.start.plan
    import assay.training.api
    import assay.training.preference
    import assay.training.rescore
    import assay.training.reward_model
    import assay.training.step_labels
    import assay.verify.redteam.team  # noqa: F401
    from assay.testing import save_tiny_model

    torch.set_num_threads(1)  # a fork has none of its parent's threads
    folder = tmp_path_factory.mktemp("world")
    save_tiny_model(folder / "model")
    write_world(folder)
    for name, text in MODULES.items():
        (folder / f"{name}.py").write_text(text)
    ended = run_forked(COMMANDS["train"], folder, 300.0)
    assert ended.code == 0, ended.err
    return folder


def patience() -> float:
    """Seconds for a command: more on a machine that does other things as well."""
    return SECONDS * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_the_good_world_is_good(world: Path, tmp_path: Path, command: str) -> None:
    folder = tmp_path / "world"
    shutil.copytree(world, folder)
    if command == "train":
        shutil.rmtree(folder / "runs")
    ended = run_forked(COMMANDS[command], folder, 2 * patience())
    assert ended.code == 0, ended


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", CASES, ids=[case.name.encode("unicode_escape").decode() for case in CASES]
)
def test_a_bad_input_is_told_in_one_line(world: Path, tmp_path: Path, case: Case) -> None:
    folder = tmp_path / "world"
    shutil.copytree(world, folder)
    case.spoil(folder)
    ended = run_forked(case.arguments, folder, patience())
    assert ended.code is not None, f"still running: {ended}"
    assert ended.code in ((0, 1, 2) if case.tolerant else (1, 2)), ended
    assert "Traceback" not in ended.err, ended.err
    if ended.code:
        lines = [line for line in ended.err.splitlines() if line.startswith(("error: ", "Usage"))]
        assert len(lines) == 1, ended


def test_the_sweep_is_large() -> None:
    assert len(CASES) >= 300
    assert len({case.name for case in CASES}) == len(CASES)


def test_the_sweep_finds_what_it_looks_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A traceback, a death and a hang are seen as such."""
    import assay.cli

    def run(command: Callable[[], None], seconds: float) -> Ended:
        monkeypatch.setattr(assay.cli, "main", command)
        return run_forked((), tmp_path, seconds)

    assert "Traceback" in run(lambda: 1 / 0, 30.0).err  # pyright: ignore[reportArgumentType]
    assert run(lambda: os.kill(os.getpid(), signal.SIGKILL), 30.0).code == -signal.SIGKILL
    assert run(lambda: time.sleep(60), 0.2).code is None
