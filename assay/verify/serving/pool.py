"""Worker processes with a hard deadline: an overdue worker is killed, counted and replaced."""

from __future__ import annotations

import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from assay.errors import WorkerDied
from assay.host.orphans import end_orphans, new_family, start_watcher
from assay.host.worker_process import IMPORT_DEADLINE, NONSENSE, Lost, cause_of
from assay.types import Group
from assay.verify.base import Part
from assay.verify.serving.calling import WHOLE_GROUP
from assay.verify.serving.executors import Deliver, Executor
from assay.verify.serving.job import Call
from assay.verify.serving.process import Worker
from assay.verify.serving.protocol import decode_part, encode_group

MAX_FAILED_STARTS = 3
# Maximum number of calls per request to a worker.
# If the calls are fast, a request may contain more calls.
MOST_AT_ONCE = 64
# If a request has more bytes than this, no further group is added to it.
BYTES_AT_ONCE = 1 << 16
# Seconds of overhead per call, for encoding the request and decoding the reply.
QUICKEST = 1e-4
# If the queued work takes more seconds than this, several workers share the queue.
# If the queued work takes fewer seconds, waking a second thread costs more time than it saves.
WORTH_SHARING = 0.02

SpawnWorker = Callable[[str], Worker]


class Pool(Executor):
    """Worker processes, each with a thread that sends calls and receives parts.

    notify: function that is called as ``notify(kind, **facts)`` when a worker is killed or dies.
    options: configured options by verifier.
    spawn_worker: function that starts a worker, given a prefix of the environment mark by which
        orphaned processes are found.

    Workers start at the first call of a verifier or by `start`.
    """

    def __init__(
        self,
        lock: threading.RLock,
        deliver: Deliver,
        notify: Callable[..., None],
        num_workers: int,
        deadline: float,
        options: Mapping[str, Mapping[str, Any]],
        spawn_worker: SpawnWorker = Worker,
    ) -> None:
        super().__init__(lock, deliver)
        self._spawn_worker = spawn_worker
        self.notify = notify
        self.num_workers = num_workers
        self.deadline = deadline
        self.options = {name: dict(table) for name, table in options.items()}
        self.kills = 0
        self.deaths = 0
        # Estimate of the seconds per call; the estimate decreases slowly and is rather too high.
        self.pace = 1.0
        self.workers: list[Worker] = []
        # Busy seconds by worker. Workers are numbered from 1.
        self.busy: dict[int, float] = {}
        self.watcher: subprocess.Popen[bytes] | None = None
        self._family = new_family()
        self._failed_starts = 0

    def start(self) -> None:
        """Start the missing workers in background threads."""
        with self.changed:
            self.failure = None
            while len(self.workers) < self.num_workers and not self.closed:
                self._employ(self._new_worker())

    def submit(self, calls: Sequence[Call]) -> None:
        """Queue the calls of one judging job."""
        with self.changed:
            is_first = not self.queue
            self.queue.extend(calls)
            if len(self.workers) < self.num_workers:
                self.start()
            if len(self.queue) * self.pace > WORTH_SHARING:
                self.changed.notify(len(calls))
            # If older calls are queued, a thread is already awake and takes the new calls too.
            elif is_first:
                self.changed.notify()

    def describe(self, name: str) -> Mapping[str, Any]:
        """Let a verifier worker import a user's verifier.

        Return the verifier's `facts_of`, or {error: reason}.

        The returned worker is new, and it joins the pool if the pool has room. Raises WorkerDied if
        workers are lost for a reason other than the import.
        """
        num_lost = 0
        while True:
            worker = self._new_worker()
            try:
                worker.greet(self.options)
                worker.send(1, "describe", name)
                facts = dict(worker.reply(IMPORT_DEADLINE, lambda: self.closed))
                break
            except Lost as lost:
                detail, code = self._end(worker, lost, name)
                # Only a worker that was asked for the import can have died of the import.
                if worker.ready and not lost.idle:
                    return {"error": f"verifier {name}: its module cannot be imported: {detail}"}
                num_lost += 1
                if num_lost == MAX_FAILED_STARTS:
                    why = f"a verifier worker does not start ({code}): {detail}"
                    raise WorkerDied(why) from lost
        with self.changed:
            if len(self.workers) < self.num_workers and not self.closed:
                self._employ(worker)
                self.start()
                return facts
        worker.kill()
        end_orphans([worker.mark])
        return facts

    def close(self) -> None:
        """Kill and reap all workers."""
        super().close()
        with self.changed:
            workers, self.workers = self.workers, []
        for worker in workers:
            worker.kill()
        if workers:
            end_orphans([worker.mark for worker in workers])
        if self.watcher is not None:
            self.watcher.kill()
            self.watcher.wait()
            self.watcher = None

    def abandon(self) -> None:
        """Release the parent process's verifier workers in a forked child.

        The workers keep running.
        """
        for worker in self.workers:
            worker.release()

    def _new_worker(self) -> Worker:
        with self.changed:
            if self.watcher is None:
                self.watcher = start_watcher(self._family)
        return self._spawn_worker(self._family)

    def _employ(self, worker: Worker) -> None:
        self.workers.append(worker)
        self.spawn("assay-worker", self._work, worker, len(self.workers))

    def _work(self, worker: Worker | None, place: int) -> None:
        """Send calls to one worker, and to its replacements, until the pool is closed.

        place: number of the worker, used by `busy`.
        """
        while worker is not None and (calls := self._take()):
            while worker is not None and calls:
                started = time.monotonic()
                worker = self._have_answered(worker, calls)
                with self.changed:
                    self.busy[place] = self.busy.get(place, 0.0) + time.monotonic() - started

    def _take(self) -> deque[Call]:
        """Wait for calls, and remove one worker's share from the queue."""
        with self.changed:
            # If the executor was closed, its queue is empty and the result is empty.
            self.wait_for_calls()
            # An equal share of the queue keeps all workers busy.
            # Fast calls are sent together in one request, because a request costs more time than
            # such calls.
            share = min(MOST_AT_ONCE, -(-len(self.queue) // self.num_workers))
            count = min(len(self.queue), max(share, int(WORTH_SHARING / self.pace)))
            return deque(self.queue.popleft() for _ in range(count))

    def _have_answered(self, worker: Worker, calls: deque[Call]) -> Worker | None:
        """Send calls to a worker and deliver the worker's parts, until the calls are done or the
        worker is lost.

        Return the worker to use next: the same worker, a replacement, or None if the pool was
        closed.
        """
        try:
            worker.greet(self.options)
            self._failed_starts = 0
            seconds, num_calls = 0.0, len(calls)
            while calls:
                if not worker.num_waiting:
                    self._ask(worker, calls)
                call = calls[0]
                allowed = (call.one.verifier.limits.seconds or self.deadline) * call.size
                data = worker.reply(allowed, lambda: calls[0].job.cancelled)
                parts = _read(call, data)
                seconds += sum(part.seconds for part in parts)
                calls.popleft()
                self.deliver(call, parts)
            # A slow call raises the estimate of seconds per call at once; a fast call lowers it
            # slowly.
            # A low estimate of the seconds per call would put many slow calls into one request to a
            # single worker.
            self.pace = max(0.7 * self.pace, seconds / num_calls, QUICKEST)
            return worker
        except Lost as lost:
            return self._replace(worker, lost, calls)

    def _ask(self, worker: Worker, calls: Iterable[Call]) -> None:
        """Send a request for the calls of the first job, and of further jobs if they are small.

        The request is built just before it is sent, so that queued calls have no copy of their
        groups.
        """
        groups: list[tuple[Any, ...]] = []
        num_calls = num_bytes = 0
        for _, each in groupby(calls, key=lambda call: id(call.job)):
            together = list(each)
            groups.append(_of_one_job(together))
            num_calls, num_bytes = num_calls + len(together), num_bytes + len(groups[-1][-1])
            if num_bytes > BYTES_AT_ONCE:
                break
        worker.send(num_calls, "judge", groups)

    def _replace(self, worker: Worker, lost: Lost, calls: deque[Call]) -> Worker | None:
        """Kill a worker, fail its current call, and return a replacement.

        None: the pool is closed.
        """
        with self.changed:
            if self.closed:
                return None
        # Only the call that was running can have killed the worker.
        # If a worker dies while it starts or is idle, the cause is not a call, but for example a
        # lack of memory.
        is_blamed = worker.ready and not lost.idle and lost.kind != "stale"
        culprit = calls.popleft() if is_blamed else None
        # The other calls of the request were not running, so the next worker makes these calls.
        kept = [call for call in calls if not call.job.cancelled]
        calls.clear()
        calls.extend(kept)
        seconds = time.monotonic() - worker.since
        detail, code = self._end(worker, lost, culprit.name if culprit else "")
        if not worker.ready:
            self._failed_starts += 1
            if self._failed_starts >= MAX_FAILED_STARTS:
                with self.changed:
                    self.workers.remove(worker)
                # Without this limit of lost workers, a broken installation would start workers for
                # ever.
                raise WorkerDied(f"a verifier worker does not start ({code}): {detail}")
        if culprit is not None:
            reason = "timeout" if lost.kind == "overdue" else "error"
            part = Part.not_judged(reason, detail, seconds)
            self.deliver(culprit, [part] * culprit.size)
        with self.changed:
            if self.closed:
                return None
            new = self._new_worker()
            self.workers[self.workers.index(worker)] = new
            return new

    def _end(self, worker: Worker, lost: Lost, name: str) -> tuple[str, str]:
        """Kill and count a lost worker with its children.

        Return (detail, cause of the worker's end).
        """
        seconds, said = time.monotonic() - worker.since, worker.last_words()
        code = cause_of(worker.kill())
        end_orphans([worker.mark])
        detail = f"{lost} ({code})" if lost.kind == "died" else str(lost)
        if lost.kind != "stale":
            killed = lost.kind == "overdue"
            self.kills += killed
            self.deaths += not killed
            kind = "worker_killed" if killed else "worker_died"
            self.notify(kind, verifier=name, detail=detail, seconds=round(seconds, 3))
        return said if said and not worker.ready else detail, code


def _of_one_job(calls: Sequence[Call]) -> tuple[Any, ...]:
    """Return the request for calls of one job, with only the completions that the calls judge."""
    job = calls[0].job
    siblings: Sequence[int] = range(len(job.group.completions))
    if all(call.sibling != WHOLE_GROUP for call in calls):
        # All workers share the calls of a job.
        # Each worker receives only the completions that it judges.
        siblings = sorted({call.sibling for call in calls})
    place = {sibling: n for n, sibling in enumerate(siblings)} | {WHOLE_GROUP: WHOLE_GROUP}
    chosen = tuple(job.group.completions[sibling] for sibling in siblings)
    group = Group(job.group.problem, job.group.prompt, chosen)
    text_only = all(call.one.verifier.text_only for call in calls)
    reads_firsts = any(call.one.verifier.takes == "verdicts" for call in calls)
    try:
        blob = encode_group(group, text_only, job.firsts if reads_firsts else None)
    except Exception as error:  # A spec can contain values that pickle does not support.
        blob = f"the group cannot be sent to a worker: {type(error).__name__}: {error}"
    units = [(call.index, place[call.sibling]) for call in calls]
    return job.sum.names, units, blob


def _read(call: Call, data: Any) -> list[Part]:
    """Return the verifier parts in the reply to a call.

    Raises Lost if the worker's reply is invalid.
    """
    try:
        if data is None:
            return [Part.not_judged("error", "the group cannot be read by a worker")] * call.size
        if len(data) != call.size:
            raise ValueError(f"{len(data)} parts for {call.size} completions")
        return [decode_part(encoded) for encoded in data]
    except NONSENSE as error:
        raise Lost("nonsense", f"a worker sent nonsense: {error}") from error
