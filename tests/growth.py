"""How the work of a function grows: a ratio of processor times, which holds on any machine."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

LINEAR = 9.0
"""Four times the size takes four times the work where it grows with the size, sixteen times where
it grows with the square: at most three times for each doubling leaves room for noise on both sides."""


def cost(work: Callable[..., object], *inputs: Any) -> float:
    """Return the processor seconds of this thread that one call takes, without collections."""
    collecting = gc.isenabled()
    gc.disable()  # a collection walks all that other tests have left
    try:
        started = time.thread_time()
        work(*inputs)
        return time.thread_time() - started
    finally:
        if collecting:
            gc.enable()


def growth(work: Callable[[int], object], size: int) -> float:
    """Return how many times as much work a size takes as a quarter of it: the median of three ratios."""
    work(size // 4)  # what is loaded and compiled at first use
    return times(lambda: work(size), lambda: work(size // 4))


def times(work: Callable[[], object], measure: Callable[[], object]) -> float:
    """Return how many times as long ``work`` takes as ``measure``: the median of three ratios."""
    return median(cost(work) / max(cost(measure), 1e-9) for _ in range(3))


def calls(work: Callable[[], object]) -> int:
    """Return how many functions one call of ``work`` calls, in Python and in C: the same on any machine."""
    count = 0

    def note(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count
