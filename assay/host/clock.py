"""Progress of a run: seconds by phase, and the state of the current work.

The time of a nested phase counts for the nested phase only.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

Item = TypeVar("Item")


@dataclass(eq=False)
class Work:
    """Work whose progress is displayed. total: number of units of the work; 0: unknown."""

    what: str
    total: int = 0
    unit: str = ""
    done: int = 0
    started: float = field(default_factory=time.perf_counter)

    def as_row(self) -> dict[str, Any]:
        """Return a progress row with elapsed seconds and the estimated remaining seconds."""
        seconds = time.perf_counter() - self.started
        row: dict[str, Any] = {"what": self.what, "seconds": seconds}
        if self.total:
            row |= {"done": self.done, "of": self.total, "unit": self.unit}
        if self.done:
            row["eta"] = seconds / self.done * (self.total - self.done)
        return row


class PhaseClock:
    """Accumulates the seconds spent in named phases. `drain` returns and resets all sums.

    `each` calls ``check`` before each item. ``check`` raises an exception to stop the work.
    num_signs: counter of signs of progress in work of unknown size, such as sampling.
    """

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._local = threading.local()
        self._lock = threading.Lock()
        self._at_hand: list[Work] = []
        self.num_signs = 0
        self.check: Callable[[], None] = lambda: None

    def now(self) -> dict[str, Any] | None:
        """Return the progress of the current work as a row. Thread-safe.

        For nested work, the row describes the outermost work of known size, or else the innermost.
        """
        # The list is copied, because the heartbeat thread calls this method while the list changes.
        at_hand = [*self._at_hand]
        known = [one for one in at_hand if one.total]
        row = (known[0] if known else at_hand[-1]).as_row() if at_hand else None
        return None if row is None else {**row, "signs": self.num_signs}

    @contextmanager
    def working(self, what: str, total: int = 0, unit: str = "") -> Generator[Work]:
        """Register the work of the ``with`` block. The caller updates ``done`` of the `Work`."""
        work = Work(what, total, unit)
        self._at_hand.append(work)
        try:
            yield work
        finally:
            self._at_hand.remove(work)

    def each(
        self,
        items: Sequence[Item],
        what: str,
        part: tuple[int, int] = (0, 1),
        can_stop: bool = True,
    ) -> Generator[Item]:
        """Yield micro-batches and count them for the progress display.

        part: (index, number) of this loop, if the work consists of several loops of equal length.
        can_stop: call ``check`` before each item.
        """
        number, parts = part
        with self.working(what, parts * len(items), "micro-batches") as work:
            for done, item in enumerate(items, number * len(items)):
                if can_stop:
                    self.check()
                work.done = done
                yield item

    @contextmanager
    def phase(self, name: str) -> Generator[None]:
        """Add the time of the ``with`` block to a phase, without the time of nested phases."""
        # One stack per thread: phases of different threads overlap instead of nesting.
        stack: list[float] = self._local.__dict__.setdefault("nested_seconds", [])
        stack.append(0.0)
        started = time.perf_counter()
        try:
            with self.working(name):
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
    """Clock of a run and its steps. elapsed_before: seconds of the run before the last resume.

    A metrics row cannot contain the time of its own write or of the checkpoint that follows, so
    both times count in the row of the next step.
    """

    def __init__(self) -> None:
        super().__init__()
        self.elapsed_before = 0.0
        self._started = self._step_started = time.perf_counter()
        self._after_row = 0.0

    @property
    def seconds(self) -> float:
        """Seconds since the run was started or resumed."""
        return time.perf_counter() - self._started

    def begin_step(self) -> None:
        """Start the next step. Time between two steps is not counted, except the time that
        `after_row` measures."""
        self._step_started = time.perf_counter()

    @contextmanager
    def after_row(self, name: str) -> Generator[None]:
        """Measure the time of the ``with`` block, and add that time to the next step."""
        started = time.perf_counter()
        with self.phase(name):
            yield
        self._after_row += time.perf_counter() - started

    def end_step(self) -> tuple[dict[str, float], float, float]:
        """Start the next step.

        Return (seconds by phase, seconds of the ended step, seconds of the run).
        """
        now = time.perf_counter()
        seconds = now - self._step_started + self._after_row
        self._step_started, self._after_row = now, 0.0
        return self.drain(), seconds, self.elapsed_before + now - self._started
