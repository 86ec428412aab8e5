"""Seconds by phase. A phase that runs inside another is counted once, in its own name."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class PhaseClock:
    """Adds up the seconds spent in named phases; `drain` hands them out and starts anew."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._local = threading.local()
        self._lock = threading.Lock()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time inside; a nested phase's time is taken from the one around it."""
        stack: list[float] = self._local.__dict__.setdefault("nested_seconds", [])
        stack.append(0.0)
        started = time.perf_counter()
        try:
            yield
        finally:
            total = time.perf_counter() - started
            own = total - stack.pop()
            if stack:
                stack[-1] += total
            with self._lock:
                self._seconds[name] = self._seconds.get(name, 0.0) + own

    def drain(self) -> dict[str, float]:
        """Return the seconds by phase since the last call."""
        with self._lock:
            seconds, self._seconds = self._seconds, {}
        return seconds


class RunClock(PhaseClock):
    """The clock of a run, by step. elapsed_before: seconds of its earlier starts.

    A row of metrics cannot hold the time that it takes to write it, nor to save the checkpoint
    behind it. Both are in the row of the next step.
    """

    def __init__(self) -> None:
        super().__init__()
        self.elapsed_before = 0.0
        self._started = self._step_started = time.perf_counter()
        self._after_row = 0.0

    @property
    def seconds(self) -> float:
        """Seconds since this start of the run."""
        return time.perf_counter() - self._started

    def begin_step(self) -> None:
        """Begin the coming step: what came before is no part of it, but what `after_row` counts."""
        self._step_started = time.perf_counter()

    @contextmanager
    def after_row(self, name: str) -> Iterator[None]:
        """Count the time inside, in its phase, to the next step."""
        started = time.perf_counter()
        with self.phase(name):
            yield
        self._after_row += time.perf_counter() - started

    def end_step(self) -> tuple[dict[str, float], float, float]:
        """Return the seconds by phase, of the step, and of the run until now; a step begins."""
        now = time.perf_counter()
        seconds = now - self._step_started + self._after_row
        self._step_started, self._after_row = now, 0.0
        return self.drain(), seconds, self.elapsed_before + now - self._started
