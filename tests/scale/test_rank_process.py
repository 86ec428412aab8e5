"""A learner rank's process ends after its rank failed, so that the other ranks stop waiting."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed import FileStore  # pyright: ignore[reportPrivateImportUsage]

from assay.errors import WorkerDied
from assay.scale import learner_ranks

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


class TaskError(Exception):
    """An exception of the rank's own code, as Ray wraps it."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.cause = error


def fake_ray(ends: dict[str, Exception]) -> Any:
    """Ray, some of whose actors have ended with an error."""

    def wait(running: Sequence[str], **_: Any) -> tuple[list[str], list[str]]:
        return [one for one in running if one in ends], [one for one in running if one not in ends]

    def get(name: str) -> None:
        raise ends[name]

    errors = SimpleNamespace(RayTaskError=TaskError)
    return SimpleNamespace(wait=wait, get=get, exceptions=errors)


LOST = TaskError(WorkerDied("learner rank 1 waited for the other 2"))
CASES: list[tuple[dict[str, Exception], str]] = [
    ({}, "learner ranks 1 and 2 have not answered (timed out)"),
    ({"one": LOST}, "learner rank 2 has not answered (timed out)"),
    ({"one": LOST, "two": OSError("killed")}, "learner rank 2 died (OSError: killed)"),
    ({"one": LOST, "two": TaskError(TypeError("no"))}, "learner rank 2: TypeError: no"),
    ({"one": LOST, "two": LOST}, "learner rank 1: WorkerDied: learner rank 1 waited for the"),
]


@pytest.mark.parametrize(("ends", "words"), CASES)
def test_the_rank_that_failed_or_hangs_is_named(ends: dict[str, Exception], words: str) -> None:
    """Ranks that wait for a hung rank end with an error of their own; the hung rank does not."""
    assert learner_ranks._reason(fake_ray(ends), ["one", "two"], "timed out").startswith(words)


def test_a_rank_that_ends_before_it_joins_ends_the_wait_at_once(tmp_path: Path) -> None:
    """torch itself would wait for the whole patience."""
    store = FileStore(str(tmp_path / "store"), 3)
    wait = learner_ranks._await_ranks
    with pytest.raises(RuntimeError, match="a rank ended"):
        wait(fake_ray({"two": OSError("killed")}), ["one", "two"], store, 1e9)
    with pytest.raises(RuntimeError, match="not all ranks started within 0 s"):
        wait(fake_ray({}), ["one", "two"], store, 0.0)
    for rank in (1, 2):
        store.set(f"{learner_ranks.JOINING}/{rank}", "")
    wait(fake_ray({}), ["one", "two"], store, 0.0)
