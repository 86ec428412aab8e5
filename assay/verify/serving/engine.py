"""Engine of a verifier service: executors, cache and statistics, with one common lock."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from assay.types import Group
from assay.verify.base import Part
from assay.verify.serving.cache import VerdictCache
from assay.verify.serving.calling import judge_unit
from assay.verify.serving.executors import Executor, ThreadExecutor
from assay.verify.serving.job import Call, Job
from assay.verify.serving.pool import Pool, SpawnWorker
from assay.verify.serving.process import Worker
from assay.verify.serving.stats import VerifierStats, step_metrics
from assay.verify.serving.sums import Sum

# Seconds between two checks for overdue calls.
TICK = 0.05

Options = Mapping[str, Mapping[str, Any]]


class JobEngine:
    """Engine that sends the calls of jobs to executors, and collects the parts.

    The engine can be used from any thread. The executors' threads return parts by calling
    `deliver`.

    on_event: function that is called with the lock held, so it need not be thread-safe.
    options: configured options by verifier.
    spawn_worker: as in `Pool`.
    closed: whether the engine accepts no further calls.
    """

    def __init__(
        self,
        num_workers: int,
        deadline: float,
        on_event: Callable[..., None] | None,
        options: Options,
        cache_bytes: int,
        spawn_worker: SpawnWorker = Worker,
    ) -> None:
        # The lock is reentrant, because `submit` calls executors, which use the same lock.
        self.lock = threading.RLock()
        self.cache = VerdictCache(cache_bytes) if cache_bytes else None
        self.stats: dict[str, VerifierStats] = {}
        # Statistics that were collected since the last call of `take_metrics`.
        self._fresh: dict[str, VerifierStats] = {}
        self.closed = False
        how = (num_workers, deadline, options, spawn_worker)
        self.pool = Pool(self.lock, self.deliver, self._notify, *how)
        self._executors: dict[str, ThreadExecutor] = {}
        self._news = threading.Condition(self.lock)
        self.on_event = on_event
        self._events: deque[tuple[str, dict[str, Any]]] = deque()
        self._process = os.getpid()
        self._reported = {"kills": 0, "deaths": 0}

    def submit(self, sum: Sum, group: Group) -> Job:
        """Start judging a group."""
        with self.lock:
            self._check_open("is closed")
            job = Job(sum, group, self.cache, self._count)
            self._advance(job)
            return job

    def wait(self, job: Job, cancelled: threading.Event | None = None) -> None:
        """Wait until all parts of a job have arrived."""
        with self.lock:
            while job.num_missing:
                self._check_open("was closed while it judged")
                if cancelled is not None and cancelled.is_set():
                    raise InterruptedError("nobody waits for these verdicts")
                for executor in self._all_executors():
                    if executor.failure is not None:
                        raise executor.failure
                job.awaited = True
                self._news.wait(TICK)
                self._look()
            self._look()

    def deliver(self, call: Call, parts: Any) -> None:
        """Store the parts that a call returned. This method is called by the executors' threads."""
        with self.lock:
            if not call.job.cancelled:
                call.job.answer(call, parts)
                self._advance(call.job)
                # Only the last part of an awaited job wakes the waiting threads.
                if call.job.awaited and not call.job.num_missing:
                    self._news.notify_all()

    def cancel(self, jobs: Iterable[Job]) -> None:
        """Drop judging jobs whose verdicts are no longer needed, and remove their calls from the
        queues."""
        with self.lock:
            for job in jobs:
                job.cancelled = job.num_missing > 0
            for executor in self._all_executors():
                executor.forget_cancelled()

    def take_metrics(self) -> dict[str, float]:
        """Return the metrics since the last call, such as ``verify/NAME/p50``."""
        with self.lock:
            metrics, self._fresh = step_metrics(self._fresh), {}
            now = {"kills": self.pool.kills, "deaths": self.pool.deaths}
            if now != self._reported:
                metrics |= {f"verify/{key}": float(now[key] - self._reported[key]) for key in now}
            self._reported = now
            busy, self.pool.busy = self.pool.busy, {}
            return metrics | {f"verify/worker_{place}": s for place, s in sorted(busy.items())}

    def keep_only(self, used: Mapping[str, str]) -> None:
        """Close idle executors and drop the statistics of unused verifiers.

        used: {name: label} of the verifiers that are still in use.
        """
        with self.lock:
            labels = set(used.values())
            for label, executor in list(self._executors.items()):
                if label not in labels and executor.is_idle:
                    self._executors.pop(label).close()
            for stats in (self.stats, self._fresh):
                for name in stats.keys() - used.keys():
                    del stats[name]

    def close(self) -> None:
        """Close the executors. Called in a forked child, the method has no effect."""
        # A forked child has copies of the executors, but its parent owns the workers.
        if self._process == os.getpid():
            for executor in self._all_executors():
                executor.close()

    def _check_open(self, words: str) -> None:
        if self.closed:
            raise RuntimeError(f"the verifier service {words}")

    def _count(self, name: str, part: Part, hit: bool, accepted: bool | None) -> None:
        for stats in (self.stats, self._fresh):
            stats.setdefault(name, VerifierStats()).add(part, hit, accepted)

    def _advance(self, job: Job) -> None:
        """Start those calls of a job that have become possible.

        Calls of inline verifiers run in the calling thread.
        """
        # Inline parts can make further calls possible, such as calls of a later alternative.
        while calls := job.calls():
            by_executor: dict[tuple[str, str], list[Call]] = {}
            for call in calls:
                verifier = call.one.verifier
                own = call.one.label if verifier.executor in ("thread", "device") else ""
                by_executor.setdefault((verifier.executor, own), []).append(call)
            inline = by_executor.pop(("inline", ""), [])
            for (kind, _), together in by_executor.items():
                executor = self.pool if kind == "worker" else self._executor_of(together[0])
                executor.submit(together)
            for call in inline:
                one, firsts = call.one.verifier, None
                if one.takes == "verdicts":
                    firsts = job.firsts
                job.answer(call, judge_unit(one, call.group, call.sibling, firsts))

    def _executor_of(self, call: Call) -> ThreadExecutor:
        label = call.one.label
        if label not in self._executors:
            self._executors[label] = ThreadExecutor(self.lock, self.deliver, call.one)
        return self._executors[label]

    def _all_executors(self) -> Iterator[Executor]:
        yield from [*self._executors.values(), self.pool]

    def _look(self) -> None:
        """Abandon overdue calls and report them as events."""
        for executor in self._executors.values():
            if lost := executor.give_up_overdue():
                self._notify("verifier_call_lost", verifier=executor.verifier.name, calls=lost)
        while self._events:
            kind, facts = self._events.popleft()
            if self.on_event is not None:
                self.on_event(kind, **facts)

    def _notify(self, kind: str, **facts: Any) -> None:
        self._events.append((kind, facts))
