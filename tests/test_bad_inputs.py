"""A sweep: no bad input ends a command with a traceback, in silence, by a signal, or never."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import bad_inputs
import pytest
from bad_inputs import COMMANDS, MODULES, Case, write_world
from forked_commands import Ended, import_commands, patience, run_forked

CASES = bad_inputs.cases()


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which every command works, with a finished run."""
    from assay.testing import save_tiny_model

    import_commands()
    folder = tmp_path_factory.mktemp("world")
    save_tiny_model(folder / "model")
    write_world(folder)
    for name, text in MODULES.items():
        (folder / f"{name}.py").write_text(text)
    ended = run_forked(COMMANDS["train"], folder, 300.0)
    assert ended.code == 0, ended.err
    return folder


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
    codes = (1, 2) if case.code is None else (case.code,)
    assert ended.code in ((0, *codes) if case.tolerant else codes), ended
    assert "Traceback" not in ended.err, ended.err
    if ended.code:
        lines = [line for line in ended.err.splitlines() if line.startswith(("error: ", "Usage"))]
        assert len(lines) == 1, ended


def test_the_sweep_is_large() -> None:
    assert len(CASES) >= 1000
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
