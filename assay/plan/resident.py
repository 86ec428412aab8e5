"""What is resident in memory now, as the system counts it."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from pathlib import Path

MIB = 2**20


def resident_mib() -> float | None:
    """Return this process's resident memory, what it has freed given back first; None where not told."""
    with suppress(AttributeError, OSError, TypeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)
    return _of_status("self", "VmRSS:")


def children_mib(pid: int | None = None) -> float:
    """Return what all processes that this one started hold, pages that they share shared out."""
    return sum(_proportional_mib(child) for child in _descendants(pid or os.getpid()))


def _of_status(pid: str, key: str) -> float | None:
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith(key)), None)


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [int(text) for text in path.read_text(encoding="utf-8").split()]
        except OSError:  # the thread has ended
            continue
    return [*found, *(one for child in found for one in _descendants(child))]


def _proportional_mib(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()
    except OSError:  # it has ended
        return 0.0
    return sum(int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:"))
