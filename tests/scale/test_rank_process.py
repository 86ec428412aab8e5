"""A learner rank's process ends after its rank failed, so that the other ranks stop waiting."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys, time
import torch
from assay.scale import learner_ranks
from assay.scale.learner_ranks import LearnerRank, Meeting, RankOpening

def build(ranks):
    raise {error}

learner_ranks.FAILED_SECONDS = 0.1
opening = RankOpening(build, Meeting(1, 60.0, sys.argv[1]), 1, "cpu", [])
try:
    LearnerRank().run(opening, 0)
except {error}:
    print("reported", flush=True)
time.sleep(60)  # an actor's process waits for the next call
"""


@pytest.mark.parametrize("error", ["TypeError", "KeyboardInterrupt"])
def test_the_process_of_a_failed_rank_ends_after_its_error_is_reported(
    error: str, tmp_path: Path
) -> None:
    program = PROGRAM.format(error=error)
    command = [sys.executable, "-c", program, str(tmp_path / "store")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert (ended.returncode, ended.stdout) == (1, "reported\n"), ended.stderr
