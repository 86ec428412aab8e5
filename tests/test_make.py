"""`make setup` without a suitable Python, and the script of continuous integration."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


def test_setup_without_a_suitable_python_says_so(tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    command = ["make", "--no-print-directory", "setup", "PYTHON=no-such-python"]
    failed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert failed.returncode != 0
    first = failed.stderr.splitlines()[0]
    assert first.startswith("setup: no Python 3.11 or newer with venv and ensurepip found")
    assert "no-such-python" in first and "make setup PYTHON=" in first
    assert not (tmp_path / ".venv").exists()


def test_the_ci_script_is_executable_shell() -> None:
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111, "must be executable"
    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0
