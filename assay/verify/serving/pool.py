"""Worker processes with a real deadline: killed when a unit overruns it, restarted, counted."""

from __future__ import annotations

import pickle
import select
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from assay.errors import WorkerDied
from assay.types import NotJudgedReason
from assay.verify.serving.protocol import WHOLE_GROUP, frame, load_reply, take_frames
from assay.verify.serving.remains import clear, new_family, start_watcher
from assay.verify.serving.worker_process import Task, Unit, WorkerProcess, start_worker

START_DEADLINE = 120.0  # seconds for a fresh interpreter
IMPORT_DEADLINE = 60.0  # seconds for an import inside a worker
CONFIRMATION = 0.25  # seconds between finding a worker overdue and killing it
MAX_FAILED_STARTS = 3
STALE = 1.0  # seconds that a worker may take for work that nobody waits for
UNITS_AHEAD = 24  # units given to a worker beyond the one it works on, so that it never waits

NONSENSE = (ValueError, TypeError, IndexError, KeyError, AttributeError)  # a reply of another form


class Pool:
    """Workers, a queue of tasks, and the clock. Not thread-safe: the service holds a lock.

    greeting: what every worker is told first. Workers start with the first task, or by `start`.
    """

    def __init__(
        self,
        num_workers: int,
        deadline: float,
        on_event: Callable[..., None] | None = None,
        greeting: bytes = b"",
    ) -> None:
        self.num_workers = num_workers
        self.deadline = deadline
        self.on_event = on_event
        self.num_kills = 0
        self.num_deaths = 0
        self._told = (0, 0)
        self.workers: list[WorkerProcess] = []
        self._queue: deque[Task] = deque()
        self._num_tasks = 0
        self._failed_starts = 0
        self._greeting = greeting
        self._family = new_family()
        self._watcher: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the workers that are not there yet; they load while others work."""
        while len(self.workers) < self.num_workers:
            self._start()

    def submit(self, task: Task) -> None:
        """Queue a task, and give it to a worker if one has room."""
        self._num_tasks += 1
        task.id = self._num_tasks
        self._queue.append(task)
        if not self.workers:
            self.start()
        self._dispatch()

    def take_losses(self) -> tuple[int, int]:
        """Return how many workers were killed and died since the last call."""
        now = self.num_kills, self.num_deaths
        before, self._told = self._told, now
        return now[0] - before[0], now[1] - before[1]

    def cancel(self, tasks: Sequence[Task]) -> None:
        """Forget tasks that no worker has yet; the others' replies are for their owner to ignore.

        A worker that is slow with one of them is replaced (see `_check_clock`).
        """
        for task in tasks:
            task.cancelled = True
        self._queue = deque(task for task in self._queue if not task.cancelled)

    def pump(self, timeout: float, waker: int | None = None) -> None:
        """Read replies and write requests, waiting at most ``timeout`` seconds, then look at the clock.

        waker: a descriptor that ends the wait when it can be read.
        """
        poll = select.poll()
        if waker is not None:
            poll.register(waker, select.POLLIN)
        by_descriptor = {worker.channel.fileno(): worker for worker in self.workers}
        for descriptor, worker in by_descriptor.items():
            poll.register(descriptor, select.POLLIN | (select.POLLOUT if worker.outbox else 0))
        ready = poll.poll(1000 * min(timeout, self._until_deadline()))
        for descriptor, events in ready:
            worker = by_descriptor.get(descriptor)
            if worker is None:
                continue
            if worker.outbox and events & select.POLLOUT:
                self._write(worker)
            if events & ~select.POLLOUT:
                self._read(worker)
        self._check_clock()
        self._dispatch()

    def close(self) -> None:
        """Kill and reap every worker."""
        workers, self.workers = self.workers, []
        for worker in workers:
            worker.kill()
        if workers:
            clear([worker.remains for worker in workers])
        if self._watcher is not None:
            self._watcher.kill()
            self._watcher.wait()
            self._watcher = None
        self._queue.clear()

    def abandon(self) -> None:
        """After a fork, in the child: let go of the parent's workers without touching them."""
        for worker in self.workers:
            worker.release()
        self.workers = []
        self._watcher = None
        self._queue.clear()

    def _start(self) -> None:
        if self._watcher is None:
            self._watcher = start_watcher(self._family)
        worker = start_worker(self._family)
        if self._greeting:
            worker.outbox += _request("options", 0, (), (), self._greeting)
        self.workers.append(worker)

    def _dispatch(self) -> None:
        while self._queue and self.workers:
            worker = min(self.workers, key=lambda w: w.num_units)
            if worker.num_units > UNITS_AHEAD:
                break
            if not worker.tasks:
                if worker.process.poll() is not None:  # it died idle: this task is not to blame
                    self._lose(worker, "error", "an idle worker died", died=True)
                    continue
                worker.since, worker.overdue = time.monotonic(), None
            task = self._queue.popleft()
            if not self._encoded(task):
                continue
            assert task.blob is not None
            worker.tasks.append(task)
            task.answered = 0
            worker.outbox += _request(task.kind, task.id, task.names, list(task.units), task.blob)
            self._write(worker)

    def _encoded(self, task: Task) -> bool:
        """Make a task's blob; where it cannot be made, none of its units is judged."""
        try:
            task.blob = task.encode() if task.blob is None else task.blob
            return True
        except Exception as error:  # a spec may hold what cannot be pickled
            detail = f"the group cannot be sent to a worker: {type(error).__name__}: {error}"
            while task.units:
                task.on_failure(task.units.popleft(), "error", detail, 0.0)
            return False

    def _write(self, worker: WorkerProcess) -> None:
        try:
            while worker.outbox:
                sent = worker.channel.send(worker.outbox)
                del worker.outbox[:sent]
        except BlockingIOError:
            pass
        except OSError:
            worker.outbox.clear()  # it died: reading will tell

    def _read(self, worker: WorkerProcess) -> None:
        ended = False
        try:
            while chunk := worker.channel.recv(1 << 18):
                worker.inbox += chunk
            ended = True
        except BlockingIOError:
            pass
        except OSError:
            ended = True
        try:
            for payload in take_frames(worker.inbox):
                self._take(worker, load_reply(payload))
        except NONSENSE as error:
            self._lose(worker, "error", f"a worker sent nonsense: {error}")
            return
        if ended:
            self._lose(worker, "error", "the worker died", died=True)

    def _take(self, worker: WorkerProcess, reply: list[Any]) -> None:
        worker.overdue = None
        if reply[0] == "hello":
            worker.ready = True
            worker.since = time.monotonic()
            self._failed_starts = 0
        elif reply[0] == "loading":
            worker.loading, worker.since = bool(reply[1]), _clock(reply[2])
        else:
            _, task_id, unit_index, clock, data = reply
            task = worker.tasks[0]
            if task.id != task_id or unit_index != task.answered:
                raise ValueError("a reply out of turn")
            worker.since = _clock(clock)
            task.answered += 1
            unit = task.units.popleft()
            if not task.units:
                worker.tasks.popleft().blob = None
            try:
                task.on_reply(unit, data)
            except NONSENSE as error:
                task.on_failure(unit, "error", f"a worker sent nonsense: {error}", 0.0)
                raise

    def _allowance(self, worker: WorkerProcess) -> float:
        """Seconds that the worker may take for what it does now; infinite for nothing."""
        if not worker.ready:
            return START_DEADLINE
        if worker.loading:
            return IMPORT_DEADLINE
        if not worker.tasks:
            return float("inf")
        task = worker.tasks[0]
        if task.kind == "describe":
            return IMPORT_DEADLINE
        index, sibling = task.units[0]
        own = task.seconds[index] if task.seconds else None
        deadline = self.deadline if own is None else own
        return deadline * (task.num_completions if sibling == WHOLE_GROUP else 1)

    def _until_deadline(self) -> float:
        now = time.monotonic()
        waits = [
            w.since + self._allowance(w) - now
            if w.overdue is None
            else w.overdue + CONFIRMATION - now
            for w in self.workers
        ]
        return max(0.0, min(waits, default=float("inf"))) + 0.001

    def _check_clock(self) -> None:
        """Kill what overran its deadline.

        A worker found overdue gets a moment more: after a time in which nobody read its replies it
        may only have waited for us.
        """
        now = time.monotonic()
        for worker in list(self.workers):
            seconds = now - worker.since
            if worker.ready and seconds > STALE and worker.tasks and _is_stale(worker):
                self._replace(worker)
            elif seconds <= self._allowance(worker):
                worker.overdue = None
            elif worker.overdue is None:
                worker.overdue = now
            elif now - worker.overdue >= CONFIRMATION:
                self._lose(worker, "timeout", f"killed after {seconds:.1f} s")

    def _replace(self, worker: WorkerProcess) -> None:
        """Start another in the place of a worker that is busy with what nobody waits for."""
        self.workers.remove(worker)
        worker.kill()
        clear([worker.remains])
        self._queue.extendleft(reversed([task for task in worker.tasks if not task.cancelled]))
        self._start()

    def _lose(
        self, worker: WorkerProcess, reason: NotJudgedReason, detail: str, died: bool = False
    ) -> None:
        """Kill a worker, blame the unit at its head, requeue the rest, and start another."""
        if worker not in self.workers:
            return
        self.workers.remove(worker)
        seconds = time.monotonic() - worker.since
        worker.errors.seek(0)
        said = worker.errors.read()[-2000:].decode(errors="replace").strip()
        code = worker.kill()
        clear([worker.remains])
        if died:
            detail = f"{detail} ({_cause(code)})"
        if not worker.ready:
            self._failed_starts += 1
            if self._failed_starts >= MAX_FAILED_STARTS:
                raise WorkerDied(
                    f"a verifier worker does not start ({_cause(code)}): {said or detail}"
                )
        culprit: tuple[Task, Unit] | None = None
        if worker.ready and worker.tasks:
            task = worker.tasks[0]
            culprit = task, task.units.popleft()
            if not task.units:
                worker.tasks.popleft().blob = None
        self._queue.extendleft(reversed(worker.tasks))
        self._start()
        if culprit is not None:
            culprit[0].on_failure(culprit[1], reason, detail, seconds)
        self._count(reason, detail, seconds, culprit)
        self._dispatch()

    def _count(
        self, reason: str, detail: str, seconds: float, culprit: tuple[Task, Unit] | None
    ) -> None:
        self.num_kills += reason == "timeout"
        self.num_deaths += reason != "timeout"
        if self.on_event is None:
            return
        name = culprit[0].names[culprit[1][0]] if culprit else ""
        kind = "worker_killed" if reason == "timeout" else "worker_died"
        self.on_event(kind, verifier=name, detail=detail, seconds=round(seconds, 3))


def _is_stale(worker: WorkerProcess) -> bool:
    return not worker.loading and worker.tasks[0].cancelled


def _request(kind: str, task: int, names: Any, units: Any, blob: bytes) -> bytes:
    return frame(pickle.dumps((kind, task, names, units, blob), pickle.HIGHEST_PROTOCOL))


def _clock(value: Any) -> float:
    """Return a worker's clock, which on one machine is ours, never ahead of now."""
    return min(float(value), time.monotonic())


def _cause(code: int) -> str:
    if code < 0:
        with suppress(ValueError):
            return signal.Signals(-code).name
    return f"exit code {code}"
