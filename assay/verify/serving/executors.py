"""Threads for verifiers that wait for a network or a device.

A call that exceeds the verifier's limit is abandoned, and its completions are not judged. Python
cannot kill an overdue call's thread, so the thread is left running and counted.
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

# Time limit of one network call in seconds, if the verifier has no limit.
THREAD_SECONDS = 300.0
# Seconds for one batch on the device.
# The limit is long, because the first batch also loads the model.
DEVICE_SECONDS = 1800.0
# Seconds to wait for a further call, while a batch is not full.
LINGER = 0.002
# Number of abandoned threads after which an executor is disabled.
MAX_LOST = 64
# Seconds that `close` waits for the device's current batch.
JOIN_SECONDS = 1.0

Deliver = Callable[[Call, Any], None]


class Executor:
    """An executor is a queue of calls, and the threads that make the calls.

    lock: the service's lock.
    deliver: function that stores the parts of a call. Any thread may call it.
    """

    def __init__(self, lock: threading.RLock, deliver: Deliver) -> None:
        self.changed = threading.Condition(lock)
        self.deliver = deliver
        self.queue: deque[Call] = deque()
        self.closed = False
        self.failure: BaseException | None = None

    def spawn(self, name: str, work: Callable[..., None], *arguments: Any) -> threading.Thread:
        """Start a thread.

        An exception in the executor's thread becomes `failure`, which is raised in the threads that
        wait.
        """

        def run() -> None:
            try:
                work(*arguments)
            except BaseException as error:  # The waiting threads raise the exception again.
                self.failure = error

        thread = threading.Thread(target=run, name=name, daemon=True)
        thread.start()
        return thread

    def forget_cancelled(self) -> None:
        """Drop queued calls whose verdicts are no longer needed."""
        with self.changed:
            self.queue = deque(call for call in self.queue if not call.job.cancelled)

    def close(self) -> None:
        """Accept no more calls, and wake the threads of the executor so that they end."""
        with self.changed:
            self.closed = True
            self.queue.clear()
            self.changed.notify_all()

    def wait_for_calls(self) -> bool:
        """Wait for a call. Return False if the executor was closed. Needs the lock."""
        while not self.queue and not self.closed:
            self.changed.wait()
        return not self.closed


class ThreadExecutor(Executor):
    """Calls one verifier in threads of this process. Threads start when they are needed.

    A device's executor has a single thread. If the verifier judges batches, the executor combines
    many completions in one call.
    """

    def __init__(self, lock: threading.RLock, deliver: Deliver, one: Configured) -> None:
        super().__init__(lock, deliver)
        self.verifier = one.verifier
        self.is_device = one.verifier.executor == "device"
        self.max_threads, self.batch_size = 1, 1
        if not self.is_device:
            self.max_threads = one.executor_option("concurrency")
        elif one.verifier.takes == "batch":
            self.batch_size = one.executor_option("batch_size")
        limit = DEVICE_SECONDS if self.is_device else THREAD_SECONDS
        # A judge retries for `patience` seconds, and its last request may end even later.
        patience = 1.25 * float(one.options.get("patience", 0.0))
        self.seconds = max(one.verifier.limits.seconds or limit, patience)
        self.num_lost = 0
        self._threads: list[threading.Thread] = []
        # Values are (start time, calls), keyed by the number of the batch.
        self._running: dict[int, tuple[float, list[Call]]] = {}
        self._num_begun = 0
        self._num_idle = 0

    def submit(self, calls: Sequence[Call]) -> None:
        """Queue calls. A disabled executor returns parts with the reason ``unavailable``."""
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
        """Whether the executor has no calls. Needs the lock."""
        return not self.queue and not self._running

    def give_up_overdue(self) -> int:
        """Abandon overdue calls together with their threads.

        Return the number of abandoned calls.
        """
        now = time.monotonic()
        with self.changed:
            late = [n for n, (since, _) in self._running.items() if now - since > self.seconds]
            for number in late:
                since, calls = self._running.pop(number)
                # Any thread may be removed from the list, because only the length of the list
                # matters.
                self._threads.pop()
                self.num_lost += 1
                detail = f"no reply after {now - since:.1f} s; the call was given up"
                for call in calls:
                    part = Part.not_judged("timeout", detail, now - since)
                    self.deliver(call, [part] * call.size)
            if late and self.queue:
                self._start()
        return len(late)

    def close(self) -> None:
        """Accept no more calls.

        The thread of a device gets some time to finish its current batch.
        """
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
                    # The call of this thread was abandoned, and another thread has replaced this
                    # thread.
                    return
            for call, each in zip(calls, parts, strict=True):
                self.deliver(call, each)

    def _take(self) -> tuple[int, list[Call]] | None:
        with self.changed:
            self._num_idle += 1
            there = self.wait_for_calls()
            # Completions end one by one, but a device judges a whole batch in nearly the time of
            # one completion.
            while there and len(self.queue) < self.batch_size and self.changed.wait(LINGER):
                # A call arrived within LINGER seconds, so another call may follow.
                there = self.wait_for_calls()
            self._num_idle -= 1
            if not there or not self.queue:
                return self._take() if there else None
            calls = [self.queue.popleft() for _ in range(min(len(self.queue), self.batch_size))]
            self._num_begun += 1
            self._running[self._num_begun] = time.monotonic(), calls
            return self._num_begun, calls
