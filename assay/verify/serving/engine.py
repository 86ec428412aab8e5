"""Engine of a process's verifier service: lanes, cache, statistics and one lock."""

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
from assay.verify.serving.job import Call, Job
from assay.verify.serving.lanes import Lane, ThreadLane
from assay.verify.serving.pool import Pool, SpawnWorker
from assay.verify.serving.process import Worker
from assay.verify.serving.stats import VerifierStats, step_metrics
from assay.verify.serving.sums import Sum

# Seconds between two checks for overdue calls.
TICK = 0.05

Options = Mapping[str, Mapping[str, Any]]


class JobEngine:
    """Takes jobs, sends their calls to lanes, and collects the parts. Safe to use from any thread.

    Threads of lanes return parts by `deliver`.

    on_event: called by the threads that wait for verdicts, so it need not be thread-safe.
    options: configured options by verifier.
    spawn_worker: as in `Pool`.
    closed: no further calls are accepted.
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
        self.lock = threading.RLock()
        self.cache = VerdictCache(cache_bytes) if cache_bytes else None
        self.stats: dict[str, VerifierStats] = {}
        # Statistics since the last call of `take_metrics`.
        self._fresh: dict[str, VerifierStats] = {}
        self.closed = False
        how = (num_workers, deadline, options, spawn_worker)
        self.pool = Pool(self.lock, self.deliver, self._tell, *how)
        self._lanes: dict[str, ThreadLane] = {}
        self._news = threading.Condition(self.lock)
        self.on_event = on_event
        self._events: deque[tuple[str, dict[str, Any]]] = deque()
        self._process = os.getpid()
        self._told = {"kills": 0, "deaths": 0}

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
                for lane in self._all_lanes():
                    if lane.failure is not None:
                        raise lane.failure
                job.awaited = True
                self._news.wait(TICK)
                self._look()
            self._look()

    def deliver(self, call: Call, parts: Any) -> None:
        """Store the parts of a call. Called from threads of lanes."""
        with self.lock:
            if not call.job.cancelled:
                call.job.answer(call, parts)
                self._advance(call.job)
                if call.job.awaited and not call.job.num_missing:
                    self._news.notify_all()

    def cancel(self, jobs: Iterable[Job]) -> None:
        """Drop jobs whose verdicts are no longer needed. Their queued calls are never made."""
        with self.lock:
            for job in jobs:
                job.cancelled = job.num_missing > 0
            for lane in self._all_lanes():
                lane.forget_cancelled()

    def take_metrics(self) -> dict[str, float]:
        """Return the metrics since the last call, such as ``verify/NAME/p50``."""
        with self.lock:
            metrics, self._fresh = step_metrics(self._fresh), {}
            now = {"kills": self.pool.kills, "deaths": self.pool.deaths}
            if now != self._told:
                metrics |= {f"verify/{key}": float(now[key] - self._told[key]) for key in now}
            self._told = now
            busy, self.pool.busy = self.pool.busy, {}
            return metrics | {f"verify/worker_{place}": s for place, s in sorted(busy.items())}

    def keep_only(self, used: Mapping[str, str]) -> None:
        """Close idle lanes and drop statistics of verifiers not in ``used``: {name: label}."""
        with self.lock:
            labels = set(used.values())
            for label, lane in list(self._lanes.items()):
                if label not in labels and lane.is_idle:
                    self._lanes.pop(label).close()
            for stats in (self.stats, self._fresh):
                for name in stats.keys() - used.keys():
                    del stats[name]

    def close(self) -> None:
        """Close the lanes. No effect in a forked child."""
        if self._process == os.getpid():
            for lane in self._all_lanes():
                lane.close()

    def _check_open(self, words: str) -> None:
        if self.closed:
            raise RuntimeError(f"the verifier service {words}")

    def _count(self, name: str, part: Part, hit: bool, accepted: bool | None) -> None:
        for stats in (self.stats, self._fresh):
            stats.setdefault(name, VerifierStats()).add(part, hit, accepted)

    def _advance(self, job: Job) -> None:
        """Make the job's calls that are now possible: inline ones here, others in their lanes."""
        while calls := job.calls():
            by_lane: dict[tuple[str, str], list[Call]] = {}
            for call in calls:
                verifier = call.one.verifier
                own = call.one.label if verifier.lane in ("thread", "device") else ""
                by_lane.setdefault((verifier.lane, own), []).append(call)
            inline = by_lane.pop(("inline", ""), [])
            for (kind, _), together in by_lane.items():
                lane = self.pool if kind == "worker" else self._lane_of(together[0])
                lane.submit(together)
            for call in inline:
                one, firsts = call.one.verifier, None
                if one.takes == "verdicts":
                    firsts = job.firsts
                job.answer(call, judge_unit(one, call.group, call.sibling, firsts))

    def _lane_of(self, call: Call) -> ThreadLane:
        label = call.one.label
        if label not in self._lanes:
            self._lanes[label] = ThreadLane(self.lock, self.deliver, call.one)
        return self._lanes[label]

    def _all_lanes(self) -> Iterator[Lane]:
        yield from [*self._lanes.values(), self.pool]

    def _look(self) -> None:
        """Abandon overdue calls and report events."""
        for lane in self._lanes.values():
            if lost := lane.give_up_overdue():
                self._tell("verifier_call_lost", verifier=lane.verifier.name, calls=lost)
        while self._events:
            kind, facts = self._events.popleft()
            if self.on_event is not None:
                self.on_event(kind, **facts)

    def _tell(self, kind: str, **facts: Any) -> None:
        self._events.append((kind, facts))
