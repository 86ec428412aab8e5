"""A run that is killed and resumed ends as one that was never killed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HARNESS = Path(__file__).with_name("kill_harness.py")


def run_harness(folder: Path, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, str(HARNESS), str(folder), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_killed_at_random_moments(tmp_path: Path) -> None:
    result = run_harness(tmp_path, "random", "0", "20")
    assert result == {"kills": 20, "different": []}


def test_killed_before_every_twelfth_file_operation(tmp_path: Path) -> None:
    result = run_harness(tmp_path, "sweep", "3", "12")
    assert not result["different"]
    assert result["kills"] >= 15


@pytest.mark.slow
def test_killed_before_every_file_operation(tmp_path: Path) -> None:
    result = run_harness(tmp_path, "sweep", "1", "1")
    assert not result["different"]
    assert result["kills"] >= 160


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
def test_killed_very_often(tmp_path: Path, seed: int) -> None:
    result = run_harness(tmp_path, "random", str(seed), "60")
    assert result == {"kills": 60, "different": []}
