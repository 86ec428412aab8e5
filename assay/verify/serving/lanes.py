"""Lanes: calls of verifiers that wait, and the threads that make them.

A call that does not return is given up after the verifier's own limit: what it judged is not
judged, and its thread, which nobody can kill, is left behind and counted.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from assay.verify.base import Part
from assay.verify.serving.calling import ANY_ERROR, judge_batch, judge_unit
from assay.verify.serving.configured import Configured
from assay.verify.serving.job import Call

THREAD_SECONDS = 300.0  # for one call that waits on a network, where its verifier has no limit
DEVICE_SECONDS = 1800.0  # for one batch, the loading of a model included
LINGER = 0.002  # seconds in which a batch gathers
MAX_LOST = 64  # threads that never came back, after which a lane is not used again
JOIN_SECONDS = 1.0  # that closing waits for a device to finish a batch

Deliver = Callable[[Call, Any], None]


class Lane:
    """A queue of calls. lock: the service's. deliver: takes a call's parts, from any thread."""

    def __init__(self, lock: threading.RLock, deliver: Deliver) -> None:
        self.changed = threading.Condition(lock)
        self.deliver = deliver
        self.queue: deque[Call] = deque()
        self.closed = False
        self.failure: BaseException | None = None

    def spawn(self, name: str, work: Callable[..., None], *arguments: Any) -> threading.Thread:
        """Start a thread; what it raises is the lane's `failure`, which whoever waits raises."""

        def run() -> None:
            try:
                work(*arguments)
            except BaseException as error:  # it is raised where verdicts are waited for
                self.failure = error

        thread = threading.Thread(target=run, name=name, daemon=True)
        thread.start()
        return thread

    def forget_cancelled(self) -> None:
        """Drop the queued calls that nobody waits for."""
        with self.changed:
            self.queue = deque(call for call in self.queue if not call.job.cancelled)

    def close(self) -> None:
        """Take no more, and let the threads that wait for calls end."""
        with self.changed:
            self.closed = True
            self.queue.clear()
            self.changed.notify_all()

    def wait_for_calls(self) -> bool:
        """Wait, with the lock held, until there is something to do; False: the lane was closed."""
        while not self.queue and not self.closed:
            self.changed.wait()
        return not self.closed


class ThreadLane(Lane):
    """Calls one verifier in a few threads of this process, which start as they are needed.

    The device's lane has one thread, and makes one call of many units where its verifier takes
    them.
    """

    def __init__(self, lock: threading.RLock, deliver: Deliver, one: Configured) -> None:
        super().__init__(lock, deliver)
        self.verifier = one.verifier
        self.is_device = one.verifier.lane == "device"
        self.max_threads, self.batch_size = 1, 1
        if not self.is_device:
            self.max_threads = one.lane_option("concurrency")
        elif one.verifier.takes == "batch":
            self.batch_size = one.lane_option("batch_size")
        limit = DEVICE_SECONDS if self.is_device else THREAD_SECONDS
        patience = 1.25 * float(one.options.get("patience", 0.0))
        self.seconds = max(one.verifier.limits.seconds or limit, patience)
        self.num_lost = 0
        self._threads: list[threading.Thread] = []
        self._running: dict[int, tuple[float, list[Call]]] = {}  # since when, by a call's number
        self._num_begun = 0
        self._num_idle = 0

    def submit(self, calls: Sequence[Call]) -> None:
        """Queue calls; a lane that has lost too many threads answers that it is unavailable."""
        if self.num_lost >= MAX_LOST:
            detail = f"{self.num_lost} calls of {self.verifier.name} never came back"
            for call in calls:
                self.deliver(call, [Part.not_judged("unavailable", detail)] * call.size)
            return
        with self.changed:
            self.queue.extend(calls)
            wanted = len(self.queue) - self._num_idle
            for _ in range(min(wanted, self.max_threads - len(self._threads))):
                self._start()
            self.changed.notify(len(calls))

    @property
    def is_idle(self) -> bool:
        """Whether it has nothing to do; asked with the lock held."""
        return not self.queue and not self._running

    def give_up_overdue(self) -> int:
        """Answer for calls that took too long, and let their threads go; return how many."""
        now = time.monotonic()
        with self.changed:
            late = [n for n, (since, _) in self._running.items() if now - since > self.seconds]
            for number in late:
                since, calls = self._running.pop(number)
                self._threads.pop()  # any of them: they are only counted
                self.num_lost += 1
                detail = f"no reply after {now - since:.1f} s; the call was given up"
                for call in calls:
                    part = Part.not_judged("timeout", detail, now - since)
                    self.deliver(call, [part] * call.size)
            if late and self.queue:
                self._start()
        return len(late)

    def close(self) -> None:
        """Take no more; a device's batch may finish, a call to a network is left behind."""
        super().close()
        for thread in self._threads if self.is_device else ():
            thread.join(JOIN_SECONDS)

    def _start(self) -> None:
        self._threads.append(self.spawn(f"assay-{self.verifier.name}", self._work))

    def _work(self) -> None:
        while taken := self._take():
            number, calls = taken
            if self.batch_size > 1:
                units = [(call.group, call.sibling) for call in calls]
                parts = [[part] for part in judge_batch(self.verifier, units)]
            else:
                (call,) = calls
                parts = [judge_unit(self.verifier, call.group, call.sibling, errors=ANY_ERROR)]
            with self.changed:
                if self._running.pop(number, None) is None:
                    return  # it was given up, and somebody else has this thread's place
            for call, each in zip(calls, parts, strict=True):
                self.deliver(call, each)

    def _take(self) -> tuple[int, list[Call]] | None:
        with self.changed:
            self._num_idle += 1
            there = self.wait_for_calls()
            while there and len(self.queue) < self.batch_size and self.changed.wait(LINGER):
                there = self.wait_for_calls()  # others came: wait for more of them
            self._num_idle -= 1
            if not there or not self.queue:
                return self._take() if there else None
            calls = [self.queue.popleft() for _ in range(min(len(self.queue), self.batch_size))]
            self._num_begun += 1
            self._running[self._num_begun] = time.monotonic(), calls
            return self._num_begun, calls
