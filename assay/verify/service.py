"""The verifier service: groups in, verdicts out, whatever the verifiers do.

Work is done in `assay.verify.worker` processes. A completion that overruns its deadline costs its
worker its life and is not judged; so is one whose verifier raises, dies or returns nonsense. The
rest of the batch is judged all the same.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from assay.errors import VerifierError
from assay.types import Completion, Group, GroupStream, NotJudgedReason, Problem, Prompt, Verdict
from assay.verify.base import Part, combine, resolve
from assay.verify.expression import BUILT_IN, Term, parse_expression
from assay.verify.pool import Pool, Task, Unit
from assay.verify.protocol import WHOLE_GROUP, decode_part, encode_group
from assay.verify.stats import VerifierStats

GATHER = 0.0005  # seconds in which replies gather: waking up for each costs more than reading it
IDLE_WAIT = 0.05  # seconds that one waiting thread holds the service before another may


@dataclass(frozen=True, slots=True)
class Card:
    """What the service knows of a verifier; error: why it cannot be used."""

    name: str
    version: int = 0
    hash: str = ""
    takes: str = "completion"
    text_only: bool = False
    error: str = ""

    @property
    def label(self) -> str:
        """``name@version``, or the name alone of one that cannot be used."""
        return self.name if self.error else f"{self.name}@{self.version}"


class VerifierService:
    """Judges groups by verifier expressions in worker processes; usable from any thread.

    default_expression: for problems that name none. num_workers: None means one for every two
    cores. deadline: seconds for one completion. on_event: called as ``on_event(kind, **facts)`` when
    a worker is killed (``worker_killed``) or dies (``worker_died``).
    """

    def __init__(
        self,
        default_expression: str = "math",
        *,
        num_workers: int | None = None,
        deadline: float = 5.0,
        on_event: Callable[..., None] | None = None,
    ) -> None:
        self.default_expression = default_expression
        parse_expression(default_expression)
        self._settings = (num_workers or max(1, (os.cpu_count() or 1) // 2), deadline, on_event)
        self._lock = threading.RLock()
        self._cards: dict[str, Card] = {}
        self._plans: dict[str, _Plan] = {}
        self._stats: dict[str, VerifierStats] = {}
        self._closed = False
        self._open()

    def _open(self) -> None:
        self._pool = Pool(*self._settings)
        self._process = os.getpid()
        self._finalizer = weakref.finalize(self, _close_in, self._process, self._pool)

    def judge(self, groups: GroupStream | Sequence[Group]) -> list[tuple[Verdict, ...]]:
        """Return the verdicts of every completion, aligned with ``groups``.

        Groups of a stream are judged as they finish, while the generator works on the others.
        """
        jobs: dict[int, _Job] = {}
        arrivals = groups.as_finished() if isinstance(groups, GroupStream) else enumerate(groups)
        try:
            for position, group in arrivals:
                jobs[position] = self._submit(group)
            for position in range(len(groups)):  # those that were taken off the stream before
                if position not in jobs:
                    jobs[position] = self._submit(groups[position])
            return [self._finish(jobs[position]) for position in range(len(groups))]
        except BaseException:
            with self._lock:
                self._pool.cancel([task for job in jobs.values() for task in job.tasks])
            raise

    def judge_text(
        self, pairs: Iterable[tuple[Problem, Completion | str]], window: int = 256
    ) -> Iterator[Verdict]:
        """Yield a verdict for each (problem, completion), in order; ``window`` of them are under way."""
        waiting: deque[_Job] = deque()
        for problem, completion in pairs:
            if isinstance(completion, str):
                completion = Completion.from_text(completion)
            prompt = Prompt(problem.question, completion.tokens[:0], completion.think)
            waiting.append(self._submit(Group(problem, prompt, (completion,))))
            if len(waiting) >= window:
                yield self._finish(waiting.popleft())[0]
        while waiting:
            yield self._finish(waiting.popleft())[0]

    def check(self, expressions: Iterable[str | None]) -> None:
        """Raise VerifierError for the first expression that cannot be used."""
        for expression in dict.fromkeys(expressions):
            for term in parse_expression(expression or self.default_expression):
                if error := self._card(term.name).error:
                    raise VerifierError(error)

    def describe(self) -> dict[str, dict[str, Any]]:
        """Return {name: {version, hash}} of the default expression's verifiers and those used since.

        Raises VerifierError where the default expression cannot be used.
        """
        self.check([None])
        cards = {card.name: card for card in self._cards.values() if not card.error}
        return {
            name: {"version": card.version, "hash": card.hash}
            for name, card in sorted(cards.items())
        }

    @property
    def stats(self) -> dict[str, Any]:
        """Of each verifier: count, p50, p95, p99 in seconds, not judged by reason; and kills and deaths."""
        with self._lock:
            found: dict[str, Any] = {name: each.summary() for name, each in self._stats.items()}
            return {
                "verifiers": found,
                "kills": self._pool.num_kills,
                "deaths": self._pool.num_deaths,
            }

    def close(self) -> None:
        """Kill and reap the workers; a second call does nothing."""
        with self._lock:
            self._closed = True
            self._finalizer()

    def __enter__(self) -> VerifierService:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _submit(self, group: Group) -> _Job:
        with self._lock:
            self._same_process()
            plan = self._plan(group.problem.verifier or self.default_expression)
            job = _Job(plan, group, self._stats)
            for task in job.tasks:
                self._pool.submit(task)
            self._pool.pump(0)
            return job

    def _finish(self, job: _Job) -> tuple[Verdict, ...]:
        while job.num_missing:
            with self._lock:
                if self._closed:
                    raise RuntimeError("the verifier service was closed while it judged")
                self._pool.pump(IDLE_WAIT if job.num_missing else 0)
            if job.num_missing:
                time.sleep(GATHER)
        return job.verdicts()

    def _same_process(self) -> None:
        """A fork of this process must not talk to the workers of its parent."""
        if self._closed:
            raise RuntimeError("the verifier service is closed")
        if self._process != os.getpid():
            self._pool.abandon()
            self._open()

    def _plan(self, expression: str) -> _Plan:
        if expression not in self._plans:
            try:
                terms, error = tuple(t.resolved(1.0) for t in parse_expression(expression)), ""
            except VerifierError as complaint:
                terms, error = (Term(expression),), str(complaint)
            names = tuple(dict.fromkeys(term.name for term in terms))
            cards = (Card(expression, error=error),) if error else tuple(map(self._card, names))
            self._plans[expression] = _Plan(terms, names, cards)
        return self._plans[expression]

    def _card(self, name: str) -> Card:
        with self._lock:
            if name not in self._cards:
                known = name.partition("@")[0] in BUILT_IN
                self._cards[name] = _built_in_card(name) if known else self._ask_for_card(name)
            return self._cards[name]

    def _ask_for_card(self, name: str) -> Card:
        """Have a worker import a user's verifier: their code never runs in this process."""
        answers: list[dict[str, Any]] = []

        def failed(unit: Unit, reason: NotJudgedReason, detail: str, seconds: float) -> None:
            answers.append({"error": f"verifier {name}: its module cannot be imported: {detail}"})

        def answered(unit: Unit, data: Any) -> None:
            answers.append(data)

        self._same_process()
        self._pool.submit(Task("describe", (name,), b"", deque([(0, 0)]), 1, answered, failed))
        while not answers:
            self._pool.pump(IDLE_WAIT)
        facts: dict[str, Any] = {"name": name} | answers[0]
        return Card(**facts)


@dataclass(frozen=True, slots=True)
class _Plan:
    """How an expression is judged: each of its verifiers once."""

    terms: tuple[Term, ...]
    names: tuple[str, ...]
    cards: tuple[Card, ...]

    @property
    def label(self) -> str:
        """``math@1`` of a single term, else the sum with versions."""
        labels = {name: card.label for name, card in zip(self.names, self.cards, strict=True)}
        if len(self.terms) == 1 and self.terms[0].weight == 1.0:
            return labels[self.terms[0].name]
        return " + ".join(f"{labels[term.name]}*{term.weight:g}" for term in self.terms)


class _Job:
    """The parts of one group as they arrive."""

    def __init__(self, plan: _Plan, group: Group, stats: dict[str, VerifierStats]) -> None:
        self.plan = plan
        self.size = len(group.completions)
        self.stats = [stats.setdefault(card.name, VerifierStats()) for card in plan.cards]
        self.parts: list[list[Part | None]] = [[None] * self.size for _ in plan.names]
        self.num_missing = self.size * len(plan.names)
        usable = [index for index, card in enumerate(plan.cards) if not card.error]
        for index, card in enumerate(plan.cards):
            if card.error:
                self._fill((index, WHOLE_GROUP), Part.not_judged("error", card.error))
        single = [index for index in usable if plan.cards[index].takes == "completion"]
        units = deque((index, sibling) for sibling in range(self.size) for index in single)
        units += ((index, WHOLE_GROUP) for index in usable if index not in single and self.size)
        self.tasks: list[Task] = []
        if not units:
            return
        try:
            blob = encode_group(group, all(plan.cards[index].text_only for index in usable))
        except Exception as error:  # a spec may hold what cannot be pickled
            detail = f"the group cannot be sent to a worker: {type(error).__name__}: {error}"
            for unit in units:
                self._failed(unit, "error", detail, 0.0)
            return
        task = Task("judge", plan.names, blob, units, self.size, self._answered, self._failed)
        self.tasks.append(task)

    def _answered(self, unit: Unit, data: Any) -> None:
        index, sibling = unit
        siblings = range(self.size) if sibling == WHOLE_GROUP else (sibling,)
        for each, encoded in zip(siblings, data, strict=True):
            self._fill((index, each), decode_part(encoded))

    def _failed(self, unit: Unit, reason: NotJudgedReason, detail: str, seconds: float) -> None:
        self._fill(unit, Part.not_judged(reason, detail, seconds))

    def _fill(self, unit: Unit, part: Part) -> None:
        index, sibling = unit
        for each in range(self.size) if sibling == WHOLE_GROUP else (sibling,):
            assert self.parts[index][each] is None, "a unit was answered twice"
            self.parts[index][each] = part
            self.num_missing -= 1
            self.stats[index].add(part)

    def verdicts(self) -> tuple[Verdict, ...]:
        where = {name: index for index, name in enumerate(self.plan.names)}
        order = [where[term.name] for term in self.plan.terms]
        label = self.plan.label
        found: list[Verdict] = []
        for sibling in range(self.size):
            parts = [part for index in order if (part := self.parts[index][sibling]) is not None]
            found.append(combine(self.plan.terms, parts, label))
        return tuple(found)


def _built_in_card(name: str) -> Card:
    try:
        verifier = resolve(name)
    except VerifierError as error:
        return Card(name, error=str(error))
    return Card(verifier.name, verifier.version, verifier.hash, verifier.takes, verifier.text_only)


def _close_in(process: int, pool: Pool) -> None:
    if process == os.getpid():
        pool.close()
