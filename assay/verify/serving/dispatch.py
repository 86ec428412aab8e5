"""Send units to their lanes, and bring the answers back: the engine of one process's verifier service.

Not thread-safe but for what lanes hand over: the service holds a lock.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from assay.types import Group, NotJudgedReason
from assay.verify.base import Part
from assay.verify.serving.cache import VerdictCache
from assay.verify.serving.calling import judge_unit
from assay.verify.serving.cards import Card
from assay.verify.serving.job import Job
from assay.verify.serving.lanes import Item, ThreadLane, Waker
from assay.verify.serving.options import with_options
from assay.verify.serving.pool import Pool
from assay.verify.serving.protocol import WHOLE_GROUP, decode_part, encode_group
from assay.verify.serving.stats import VerifierStats
from assay.verify.serving.worker_process import Task, Unit

Options = Mapping[str, Mapping[str, Any]]


class Dispatch:
    """The pool of workers, the lanes of threads, the cache, and the counts.

    options: by verifier, of the configuration. cache_bytes: 0 for no cache.
    """

    def __init__(
        self,
        num_workers: int,
        deadline: float,
        on_event: Callable[..., None] | None,
        options: Options,
        cache_bytes: int,
    ) -> None:
        greeting = pickle.dumps({key: dict(value) for key, value in options.items()})
        self.pool = Pool(num_workers, deadline, on_event, greeting if options else b"")
        self.waker = Waker()
        self.cache = VerdictCache(cache_bytes) if cache_bytes else None
        self.stats: dict[str, VerifierStats] = {}
        self._on_event = on_event
        self._lanes: dict[str, ThreadLane] = {}
        self._arrived: deque[tuple[Item, list[Part]]] = deque()

    def listen(self, on_event: Callable[..., None] | None) -> None:
        """Call ``on_event(kind, **facts)`` for what happens from now on."""
        self._on_event = self.pool.on_event = on_event

    def stats_of(self, name: str) -> VerifierStats:
        """Return the counts of a verifier."""
        if name not in self.stats:
            self.stats[name] = VerifierStats(fresh=VerifierStats())
        return self.stats[name]

    def send(self, job: Job, units: Sequence[Unit], firsts: Sequence[Part] | None) -> None:
        """Send the units of a job: at once to lanes of threads, together to a worker, last inline."""
        by_lane: dict[str, list[Unit]] = {}
        for unit in units:
            by_lane.setdefault(job.plan.cards[unit[0]].lane, []).append(unit)
        for lane in ("thread", "device"):
            for index in dict.fromkeys(unit[0] for unit in by_lane.get(lane, ())):
                self._to_threads(job, index, [unit for unit in by_lane[lane] if unit[0] == index])
        if "worker" in by_lane:
            self._to_workers(job, by_lane["worker"], firsts)
        for unit in by_lane.get("inline", ()):
            card = job.plan.cards[unit[0]]
            assert card.verifier is not None
            group = with_options(job.group, card.options)
            job.answer(unit, judge_unit(card.verifier, group, unit[1], firsts))

    def pump(self, timeout: float) -> None:
        """Take what has come back, waiting at most ``timeout`` seconds for something to come."""
        self.pool.pump(0 if self._arrived else timeout, self.waker.reader)
        self.waker.drain()
        for lane in self._lanes.values():
            if lost := lane.give_up_overdue():
                self._tell("verifier_call_lost", verifier=lane.verifier.name, calls=lost)
        while self._arrived:
            item, parts = self._arrived.popleft()
            assert isinstance(item.owner, Job)
            if not item.owner.cancelled:
                item.on_parts(parts)

    def cancel(self, jobs: Iterable[Job]) -> None:
        """Forget jobs that nobody waits for: what no worker and no thread has yet is never asked."""
        jobs = list(jobs)
        for job in jobs:
            job.cancelled = True
        self.pool.cancel([task for job in jobs for task in job.tasks])
        owners = set(map(id, jobs))
        for lane in self._lanes.values():
            lane.cancel(owners)

    def close(self) -> None:
        """End everything."""
        for lane in self._lanes.values():
            lane.close()
        self.waker.close()
        self.pool.close()

    def abandon(self) -> None:
        """After a fork, in the child: let go of what the parent works with."""
        self.pool.abandon()
        self.waker.abandon()

    def _to_threads(self, job: Job, index: int, units: Sequence[Unit]) -> None:
        card = job.plan.cards[index]
        if card.label not in self._lanes:
            self._lanes[card.label] = ThreadLane(card, self._hand_over)
        group = with_options(job.group, card.options)
        items = [
            Item(job, group, sibling, partial(job.answer, (index, sibling))) for _, sibling in units
        ]
        self._lanes[card.label].submit(items)

    def _hand_over(self, item: Item, parts: list[Part]) -> None:
        """Called by the threads of lanes."""
        self._arrived.append((item, parts))
        self.waker.wake()

    def _to_workers(self, job: Job, units: Sequence[Unit], firsts: Sequence[Part] | None) -> None:
        """Make one task of the units; a worker gets only the completions that it is asked about."""
        size = len(job.group.completions)
        whole = any(sibling == WHOLE_GROUP for _, sibling in units)
        siblings = list(range(size)) if whole else sorted({sibling for _, sibling in units})
        place = {sibling: number for number, sibling in enumerate(siblings)} | {-1: WHOLE_GROUP}
        back = {number: sibling for sibling, number in place.items()}

        def answered(unit: Unit, data: Any) -> None:
            parts = _decoded(data, size if unit[1] == WHOLE_GROUP else 1)
            job.answer((unit[0], back[unit[1]]), parts)

        def failed(unit: Unit, reason: NotJudgedReason, detail: str, seconds: float) -> None:
            part = Part.not_judged(reason, detail, seconds)
            parts = [part] * (size if unit[1] == WHOLE_GROUP else 1)
            job.answer((unit[0], back[unit[1]]), parts)

        cards = job.plan.cards
        text_only = all(cards[index].text_only for index, _ in units)
        task = Task(
            kind="judge",
            names=job.plan.names,
            encode=partial(_encoded, job.group, siblings, text_only, firsts),
            units=deque((index, place[sibling]) for index, sibling in units),
            num_completions=size,
            on_reply=answered,
            on_failure=failed,
            seconds=tuple(card.seconds for card in cards),
        )
        job.tasks.append(task)
        self.pool.submit(task)

    def _tell(self, kind: str, **facts: Any) -> None:
        if self._on_event is not None:
            self._on_event(kind, **facts)


def _encoded(
    group: Group, siblings: Sequence[int], text_only: bool, firsts: Sequence[Part] | None
) -> bytes:
    if len(siblings) < len(group.completions):
        chosen = tuple(group.completions[sibling] for sibling in siblings)
        group = Group(group.problem, group.prompt, chosen)
    return encode_group(group, text_only, firsts)


def _decoded(data: Any, count: int) -> list[Part]:
    if data is None:  # the worker could not even read the group
        return [Part.not_judged("error", "the group cannot be read by a worker")] * count
    if len(data) != count:
        raise ValueError(f"{len(data)} parts for {count} completions")
    return [decode_part(encoded) for encoded in data]


def start_workers(dispatch: Dispatch, cards: Iterable[Card]) -> None:
    """Start workers ahead of their first task, unless no verifier would use them."""
    if any(card.lane == "worker" and not card.error for card in cards):
        dispatch.pool.start()
