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
