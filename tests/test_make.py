"""The commands of the house: what `make` offers, and how setup fails where it must."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


def make(*arguments: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", "--no-print-directory", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def test_help_lists_every_target() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    phony = re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE)
    assert phony is not None
    listed = re.findall(r"^make ([a-z-]+) +\S", make("help").stdout, re.MULTILINE)
    assert sorted(listed) == sorted(phony[1].split())
    assert {"setup", "demo", "test", "lint", "test-all", "clean", "help"} <= {*listed}


@pytest.mark.parametrize("target", ["demo", "test", "test-all", "gpu-check", "lint"])
def test_every_command_prepares_what_it_needs(target: str, tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    planned = make("--dry-run", target, folder=tmp_path).stdout
    assert planned.index("setup 1/3") < planned.index("setup 3/3")
    assert make("--dry-run", target, folder=tmp_path).returncode == 0
    assert not (tmp_path / ".venv").exists()


@pytest.mark.parametrize("target", ["test", "test-all"])
def test_tests_run_side_by_side_and_take_arguments(target: str) -> None:
    planned = make("--dry-run", target, "ARGS=tests/learn -k loss").stdout
    (command,) = [line for line in planned.splitlines() if " -m pytest " in line]
    assert " -n auto " in command and command.endswith(" tests/learn -k loss")


@pytest.mark.parametrize(
    ("cores", "given", "processes"),
    [
        (2, ["tests"], 2),
        (2, ["tests/learn", "tests/verify"], 2),
        (64, ["tests"], 8),
        (1, ["tests"], 0),
        (2, ["tests/test_make.py"], 0),
        (2, ["tests/test_make.py::test_help_lists_every_target", "tests/test_house.py"], 0),
    ],
)
def test_a_process_for_each_core_but_none_for_a_few_files(
    cores: int,
    given: list[str],
    processes: int,
    monkeypatch: pytest.MonkeyPatch,
    pytestconfig: pytest.Config,
) -> None:
    conftest: Any = pytestconfig.pluginmanager.get_plugin(str(ROOT / "tests" / "conftest.py"))
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(conftest, "count_cores", lambda: cores)
    assert conftest.pytest_xdist_auto_num_workers(SimpleNamespace(args=given)) == processes


def test_setup_without_a_suitable_python_says_so(tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    failed = make("setup", "PYTHON=no-such-python", folder=tmp_path)
    assert failed.returncode != 0
    first = failed.stderr.splitlines()[0]
    assert first.startswith("setup: no Python 3.11 or newer with venv and ensurepip found")
    assert "no-such-python" in first and "make setup PYTHON=" in first
    assert not (tmp_path / ".venv").exists()


def test_ci_runs_as_it_is() -> None:
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111, "must be executable"
    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0
