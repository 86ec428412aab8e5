"""What is resident in memory now, as the system counts it."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from pathlib import Path


def resident_mib() -> float | None:
    """Return this process's resident memory, what it freed given back first; None if not told."""
    with suppress(AttributeError, OSError, TypeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)
    return _line_mib(Path("/proc/self/status"), "VmRSS:")


def children_mib() -> float:
    """Return what all processes that this one started hold, pages that they share shared out."""
    return sum(_line_mib(Path(f"/proc/{n}/smaps_rollup"), "Pss:") or 0 for n in _below(os.getpid()))


def _below(pid: int) -> list[int]:
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # the thread has ended
            found += [int(text) for text in path.read_text(encoding="utf-8").split()]
    return [*found, *(one for child in found for one in _below(child))]


def _line_mib(path: Path, key: str) -> float | None:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:  # another system, or the process has ended
        return None
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith(key)), None)
