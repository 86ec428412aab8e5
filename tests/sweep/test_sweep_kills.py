"""A whole sweep in processes of its own, killed by SIGKILL, ends with the results of one that was not."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from processes import gone, until
from sweep_worlds import Sweeps

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "assay.cli", "sweep", "lengths.toml", "--parallel", "2"]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_killed_sweep_leaves_no_run_behind_and_goes_on(finished: Sweeps) -> None:
    results = Path("sweeps/lengths/results.json")
    expected = results.read_text()
    shutil.rmtree("sweeps")
    finished.base()
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "tests" / "recipes")))
    environment = {**os.environ, "PYTHONPATH": paths}
    lock = Path("sweeps/lengths/usual-seed0/.lock")
    with subprocess.Popen(COMMAND, env=environment, stderr=subprocess.DEVNULL) as first:
        assert until(lambda: lock.exists() and lock.read_text().strip(), 240)
        run = lock.read_text().removeprefix("process ").strip()
        first.send_signal(signal.SIGKILL)
    assert first.returncode == -signal.SIGKILL and gone([run])
    assert not results.exists()
    second = subprocess.run(COMMAND, env=environment, capture_output=True, text=True, check=False)
    assert second.returncode == 0, second.stderr
    assert results.read_text() == expected
    assert second.stdout.startswith("accuracy, seeds 0, 1")
