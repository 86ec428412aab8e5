"""Waiting for what happens beside a test: no test counts on how soon it does."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path


def until(condition: Callable[[], object], seconds: float = 60.0) -> bool:
    """Whether a condition holds, now or soon."""
    end = time.monotonic() + seconds
    while not (held := condition()) and time.monotonic() < end:
        time.sleep(0.02)
    return bool(held)


def gone(pids: Iterable[int | str], seconds: float = 60.0) -> bool:
    """Whether all of them have ended, now or soon.

    One that has ended and waits for a parent of ours to ask for it counts as one that has not: that
    would be a leak. One that only waits for the system's first process, which is no matter of ours,
    has ended.
    """
    return until(lambda: all(_has_ended(int(pid)) for pid in pids), seconds)


def _has_ended(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    state, parent = stat.rpartition(")")[2].split()[:2]
    return state == "Z" and parent == "1"
