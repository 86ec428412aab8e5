"""Seconds by phase. A phase that runs inside another is counted once, in its own name."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
Result = TypeVar("Result")
Self = TypeVar("Self", bound="Clocked")


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


class Clocked:
    """What counts the seconds of its own work: on a clock of its own, until it is given a run's."""

    def __init__(self) -> None:
        self.clock = PhaseClock()


def phase(
    name: str,
) -> Callable[[Callable[Concatenate[Self, P], Result]], Callable[Concatenate[Self, P], Result]]:
    """Count every call of a `Clocked` object's method as a phase."""

    def decorate(
        method: Callable[Concatenate[Self, P], Result],
    ) -> Callable[Concatenate[Self, P], Result]:
        @functools.wraps(method)
        def wrapper(self: Self, *args: P.args, **kwargs: P.kwargs) -> Result:
            with self.clock.phase(name):
                return method(self, *args, **kwargs)

        return wrapper

    return decorate
