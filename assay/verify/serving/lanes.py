"""Lanes beside the workers: threads that wait on a network, and one thread beside a device.

A call that does not return is given up after the verifier's own limit: what it judged is not judged,
and its thread, which nobody can kill, is left behind and counted. Threads hand results over and wake
whoever reads them; they never take the service's lock, so that neither a fork nor a slow call can
stop others.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from assay.types import Group
from assay.verify.base import Part
from assay.verify.serving.calling import ANY_ERROR, judge_batch, judge_unit
from assay.verify.serving.cards import Card
from assay.verify.serving.options import lane_option

THREAD_SECONDS = 300.0  # for one call that waits on a network, where its verifier has no limit
DEVICE_SECONDS = 1800.0  # for one batch, the loading of a model included
LINGER = 0.002  # seconds in which a batch gathers
MAX_LOST = 64  # threads that never came back, after which a lane is not used again
JOIN_SECONDS = 1.0  # that closing waits for a device to finish a batch


@dataclass(eq=False, slots=True)
class Item:
    """One unit for a lane. owner: the job that it is cancelled with."""

    owner: object
    group: Group
    sibling: int
    on_parts: Callable[[list[Part]], None]


@dataclass(eq=False, slots=True)
class _Call:
    items: list[Item]
    started: float = field(default_factory=time.monotonic)


class Waker:
    """A pipe that ends a wait on sockets when a thread has something to hand over."""

    def __init__(self) -> None:
        self.reader, self._writer = os.pipe()
        os.set_blocking(self.reader, False)
        os.set_blocking(self._writer, False)
        self._lock = threading.Lock()
        self._open = True

    def wake(self) -> None:
        """End the wait that is under way, or the next one."""
        with self._lock, suppress(BlockingIOError):
            if self._open:
                os.write(self._writer, b"!")

    def drain(self) -> None:
        """Take every wake-up so far."""
        with suppress(BlockingIOError):
            os.read(self.reader, 1 << 16)

    def close(self) -> None:
        """Close both ends; waking is then without effect."""
        with self._lock:
            if self._open:
                self._open = False
                os.close(self.reader)
                os.close(self._writer)

    def abandon(self) -> None:
        """After a fork, in the child: close without the lock, which a thread of the parent may hold."""
        self._open = False
        for descriptor in (self.reader, self._writer):
            with suppress(OSError):
                os.close(descriptor)


class ThreadLane:
    """Calls one verifier in a few threads of this process, which start as they are needed."""

    def __init__(self, card: Card, deliver: Callable[[Item, list[Part]], None]) -> None:
        assert card.verifier is not None
        self.verifier = card.verifier
        self.is_device = card.lane == "device"
        self.max_threads = 1
        self.batch_size = 1
        if not self.is_device:
            self.max_threads = lane_option("thread", "concurrency", card.options)
        elif card.takes == "batch":
            self.batch_size = lane_option("device", "batch_size", card.options)
        self.seconds = card.seconds or (DEVICE_SECONDS if self.is_device else THREAD_SECONDS)
        self.seconds = max(self.seconds, 1.25 * float(card.options.get("patience", 0.0)))
        self.num_lost = 0
        self._deliver = deliver
        self._changed = threading.Condition()
        self._queue: deque[Item] = deque()
        self._running: set[_Call] = set()
        self._threads: list[threading.Thread] = []
        self._num_idle = 0
        self._closed = False

    def submit(self, items: Sequence[Item]) -> None:
        """Queue units; a lane that has lost too many threads answers that it is unavailable."""
        if self.num_lost >= MAX_LOST:
            detail = f"{self.num_lost} calls of {self.verifier.name} never came back"
            for item in items:
                self._deliver(item, [Part.not_judged("unavailable", detail)] * _size(item))
            return
        with self._changed:
            self._queue.extend(items)
            wanted = len(self._queue) - self._num_idle
            while wanted > 0 and len(self._threads) < self.max_threads:
                self._start()
                wanted -= 1
            self._changed.notify(len(items))

    def cancel(self, owners: set[int]) -> None:
        """Forget the queued units of jobs, given by `id`."""
        with self._changed:
            self._queue = deque(item for item in self._queue if id(item.owner) not in owners)

    def give_up_overdue(self) -> int:
        """Answer for calls that took too long, and let their threads go; return how many."""
        if not self._running:
            return 0
        now = time.monotonic()
        with self._changed:
            late = [call for call in self._running if now - call.started > self.seconds]
            for call in late:
                self._running.discard(call)
                self._threads.pop()  # which one is of no account: they are counted
                self.num_lost += 1
            if late and self._queue:
                self._start()
        for call in late:
            detail = f"no reply after {now - call.started:.1f} s; the call was given up"
            for item in call.items:
                part = Part.not_judged("timeout", detail, now - call.started)
                self._deliver(item, [part] * _size(item))
        return len(late)

    def close(self) -> None:
        """Take no more; a device's batch may finish, a call that waits on a network is left behind."""
        with self._changed:
            self._closed = True
            self._queue.clear()
            self._changed.notify_all()
        if self.is_device:
            for thread in self._threads:
                thread.join(JOIN_SECONDS)

    def _start(self) -> None:
        name = f"assay-{self.verifier.name}"
        thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _work(self) -> None:
        while call := self._take():
            if self.batch_size > 1:
                units = [(item.group, item.sibling) for item in call.items]
                parts = [[part] for part in judge_batch(self.verifier, units, ANY_ERROR)]
            else:
                parts = [
                    judge_unit(self.verifier, one.group, one.sibling, errors=ANY_ERROR)
                    for one in call.items
                ]
            with self._changed:
                if call not in self._running:
                    return  # it was given up, and somebody else has this thread's place
                self._running.discard(call)
            for item, each in zip(call.items, parts, strict=True):
                self._deliver(item, each)

    def _take(self) -> _Call | None:
        with self._changed:
            self._num_idle += 1
            while not self._queue and not self._closed:
                self._changed.wait()
                if self._queue and len(self._queue) < self.batch_size:
                    self._changed.wait(LINGER)
            self._num_idle -= 1
            if self._closed:
                return None
            count = min(len(self._queue), self.batch_size)
            call = _Call([self._queue.popleft() for _ in range(count)])
            self._running.add(call)
            return call


def _size(item: Item) -> int:
    return len(item.group.completions) if item.sibling < 0 else 1
