"""The verifier service: groups in, verdicts out, whatever the verifiers do.

Verifiers run in lanes: in `assay.verify.serving.worker` processes, in threads that wait on a network, in one
thread beside the learner's device, or, where they are arithmetic, at once. A completion that overruns
its deadline in a worker costs the worker its life and is not judged; so is one whose verifier raises,
dies or returns nonsense. The rest of the batch is judged all the same.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from assay.errors import VerifierError, message
from assay.types import Completion, Group, NotJudgedReason, Problem, Prompt, Verdict
from assay.verify.expression import (
    BUILT_IN,
    check_importable,
    is_allowed,
    nearest_built_in,
    parse_expression,
)
from assay.verify.serving.cards import Card, built_in_card, is_built_in, user_card
from assay.verify.serving.dispatch import Dispatch, start_workers
from assay.verify.serving.job import Job
from assay.verify.serving.patience import Patience
from assay.verify.serving.plan import Plan, plan_terms
from assay.verify.serving.remains import clear_of_dead_parents
from assay.verify.serving.schedule import Schedule
from assay.verify.serving.stats import step_metrics
from assay.verify.serving.waiting import run_in_thread
from assay.verify.serving.worker_process import Task, Unit

GATHER = 0.0005  # seconds in which replies gather: waking up for each costs more than reading it
WORKERS_A_CORE = 16
NOTICE_SECONDS = 10.0  # after which a slow import is spoken of
IDLE_WAIT = 0.05  # seconds that one waiting thread holds the service before another may

Options = Mapping[str, Mapping[str, Any]]

_services: weakref.WeakSet[VerifierService] = weakref.WeakSet()


class Judging:
    """Groups on their way through the verifiers; what is still under way at the context's end is cancelled.

    submit begins to judge a group, finish waits for its verdicts, cancel gives jobs up.
    """

    def __init__(
        self,
        submit: Callable[[Group], Job],
        finish: Callable[[Job], tuple[Verdict, ...]],
        cancel: Callable[[Iterable[Job]], None],
    ) -> None:
        self._submit, self._finish, self._cancel = submit, finish, cancel
        self._jobs: dict[Group, Job] = {}
        self._found: dict[Group, tuple[Verdict, ...]] = {}
        self._waiting: deque[Group] = deque()

    def add(self, group: Group) -> None:
        """Begin to judge a group. Raises VerifierError as soon as it is clear that a reward never works."""
        if group not in self._jobs:
            self._jobs[group] = self._submit(group)
            self._waiting.append(group)
        while self._waiting and not self._jobs[self._waiting[0]].num_missing:
            self._take()

    def verdicts(self, groups: Iterable[Group]) -> list[tuple[Verdict, ...]]:
        """Return the verdicts of groups that were handed over, once all are there."""
        while self._waiting:
            self._take()
        return [self._found[group] for group in groups]

    def _take(self) -> None:
        group = self._waiting.popleft()
        self._found[group] = self._finish(self._jobs[group])

    def __enter__(self) -> Judging:
        return self

    def __exit__(self, *_: object) -> None:
        self._cancel(self._jobs.values())


class VerifierService:
    """Judges groups by verifier expressions; usable from any thread and from asyncio.

    default_expression: for problems that name none. num_workers: None means one for every two
    cores. deadline: seconds for one completion in a worker, where its verifier has no limit of its
    own. on_event: called as ``on_event(kind, **facts)`` when a worker is killed (``worker_killed``)
    or dies (``worker_died``) and when a thread's call is given up (``verifier_call_lost``). options:
    of verifiers, by name, under the keys of rows. schedule: multipliers of terms' weights, by
    policy version (see `Schedule`). cache_mib: memory for verdicts of verifiers that may be looked
    up; 0: none. give_up_after: completions of which none was judged, for errors and deadlines, after
    which judging raises VerifierError in the verifier's own words; None: never. allow: Python modules,
    or ``module:object``, that a problem may name beside those of the default expression; no other code
    is imported for it. Raises VerifierError for an expression, an option or a schedule that is wrong.
    """

    def __init__(
        self,
        default_expression: str = "math",
        *,
        num_workers: int | None = None,
        deadline: float = 5.0,
        on_event: Callable[..., None] | None = None,
        options: Options | None = None,
        schedule: Mapping[str, Sequence[Any]] | None = None,
        cache_mib: float = 64.0,
        give_up_after: int | None = None,
        allow: Iterable[str] = (),
    ) -> None:
        self.default_expression = default_expression
        names = plan_terms(default_expression)[1]
        allow = tuple(allow)
        check_importable(allow)
        self._allow = frozenset([*allow, *(name.partition("@")[0] for name in names)])
        self._options = {name: dict(table) for name, table in (options or {}).items()}
        self._schedule = Schedule(schedule or {})
        for where in (*self._options, *self._schedule.points):
            _check_names(where)
        cores = os.cpu_count() or 1
        if num_workers is not None and num_workers > WORKERS_A_CORE * cores:
            accepted = f"at most {WORKERS_A_CORE * cores} on this machine ({WORKERS_A_CORE} a core)"
            raise VerifierError(message("worker processes", num_workers, accepted))
        num_workers = num_workers or max(1, cores // 2)
        cache_bytes = int(cache_mib * 2**20)
        self._settings = (num_workers, deadline, on_event, self._options, cache_bytes)
        self._lock = threading.RLock()
        self._patience = Patience(give_up_after)
        self._cards: dict[str, Card] = {}
        self._plans: dict[str, Plan] = {}
        self._closed = False
        self._check_options()
        self._open()
        clear_of_dead_parents()
        start_workers(self._dispatch, map(self._quick_card, names))
        _services.add(self)

    def _open(self) -> None:
        self._dispatch = Dispatch(*self._settings)
        self._process = os.getpid()
        self._finalizer = weakref.finalize(self, _close_in, self._process, self._dispatch)

    def listen(self, on_event: Callable[..., None] | None) -> None:
        """Tell of events from now on as the parameter ``on_event`` does."""
        self._settings = (*self._settings[:2], on_event, *self._settings[3:])
        self._dispatch.listen(on_event)

    def _check_options(self) -> None:
        """A wrong option of a built-in verifier is told at once; of a user's, when it is first used."""
        for name in self._options:
            if is_built_in(name) and (error := self._card(name).error):
                raise VerifierError(error)

    def _quick_card(self, name: str) -> Card:
        """A user's verifier is not imported for the question whether workers are needed: they are."""
        return self._card(name) if is_built_in(name) else Card(name)

    def judge(self, groups: Sequence[Group]) -> list[tuple[Verdict, ...]]:
        """Return the verdicts of every completion, aligned with ``groups``."""
        return self._judge(groups, None)

    def judging(self) -> Judging:
        """Judge groups that are handed over one by one, while others are still sampled."""
        return Judging(self._submit, self._finish, self._cancel)

    async def judge_async(self, groups: Sequence[Group]) -> list[tuple[Verdict, ...]]:
        """Judge without blocking the event loop; a call that is cancelled leaves nothing under way."""
        cancelled = threading.Event()
        return await run_in_thread(lambda: self._judge(groups, cancelled), cancelled)

    def _judge(
        self, groups: Sequence[Group], cancelled: threading.Event | None
    ) -> list[tuple[Verdict, ...]]:
        with Judging(self._submit, lambda job: self._finish(job, cancelled), self._cancel) as jobs:
            for group in groups:
                jobs.add(group)
            return jobs.verdicts(groups)

    def judge_text(
        self, pairs: Iterable[tuple[Problem, Completion | str]], window: int = 256
    ) -> Iterator[Verdict]:
        """Yield a verdict for each (problem, completion), in order; ``window`` of them are under way."""
        waiting: deque[Job] = deque()
        try:
            for problem, completion in pairs:
                if isinstance(completion, str):
                    completion = Completion.from_text(completion)
                prompt = Prompt(problem.question, completion.tokens[:0], completion.think)
                waiting.append(self._submit(Group(problem, prompt, (completion,))))
                if len(waiting) >= window:
                    yield self._finish(waiting.popleft())[0]
            while waiting:
                yield self._finish(waiting.popleft())[0]
        finally:
            self._cancel(waiting)

    def check(self, expressions: Iterable[str | None]) -> None:
        """Raise VerifierError for the first expression that cannot be used."""
        for expression in dict.fromkeys(expressions):
            parse_expression(expression or self.default_expression)
            if error := self._plan(expression).error:
                raise VerifierError(error)

    def check_problem(self, problem: Problem) -> None:
        """Raise VerifierError where a problem's spec is not what its verifiers read.

        The message names the key, what was found and what is accepted. It takes microseconds.
        """
        plan = self._plans.get(problem.verifier or self.default_expression)
        if plan is None:
            plan = self._plan(problem.verifier)
        if plan.error:
            raise VerifierError(plan.error)
        plan.check_row(problem)

    def compares(self, problem: Problem) -> tuple[str, str] | None:
        """Return (verifier, key of the spec) that say whether two answers to a problem are equal.

        Of the first term's first verifier, where one of its fields `equates`; None where there is none.
        """
        plan = self._plan(problem.verifier)
        if plan.error:
            return None
        name = plan.terms[0].names[0]
        return next(((name, one.name) for one in self._card(name).fields if one.equates), None)

    def warnings(self, expression: str | None = None) -> list[str]:
        """Return what is doubtful about an expression that can be used, one line each."""
        self.check([expression])
        return self._plan(expression).warnings()

    def describe(self) -> dict[str, dict[str, Any]]:
        """Return {name: facts} of the default expression's verifiers and those used since.

        Facts: version, hash, and where they apply ``options`` (a digest) and ``checkpoint``. Raises
        VerifierError where the default expression cannot be used.
        """
        self.check([None])
        cards = {card.name: card for card in self._cards.values() if not card.error}
        return {name: card.describe() for name, card in sorted(cards.items())}

    @property
    def stats(self) -> dict[str, Any]:
        """Of each verifier what `VerifierStats.summary` says; and kills and deaths of workers."""
        with self._lock:
            counts = self._dispatch.stats
            return {
                "verifiers": {name: each.summary() for name, each in counts.items()},
                "kills": self._dispatch.pool.num_kills,
                "deaths": self._dispatch.pool.num_deaths,
            }

    def take_metrics(self) -> dict[str, float]:
        """Return the metrics of what was judged since the last call, as ``verify/NAME/p50``."""
        with self._lock:
            fresh = {name: each.take_fresh() for name, each in self._dispatch.stats.items()}
            metrics = step_metrics({name: each for name, each in fresh.items() if each.count})
            kills, deaths = self._dispatch.pool.take_losses()
            if kills or deaths:
                metrics |= {"verify/kills": float(kills), "verify/deaths": float(deaths)}
            return metrics

    def close(self) -> None:
        """Kill and reap the workers and end the lanes; a second call does nothing."""
        with self._lock:
            self._closed = True
            self._finalizer()

    def __enter__(self) -> VerifierService:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _submit(self, group: Group) -> Job:
        if not self._lock.acquire(blocking=False):
            self._dispatch.waker.wake()  # whoever waits for replies lets us in
            self._lock.acquire()
        try:
            self._same_process()
            job = Job(self._plan(group.problem.verifier), group, self._dispatch)
            job.start()
            self._dispatch.pump(0)
            return job
        finally:
            self._lock.release()

    def _finish(self, job: Job, cancelled: threading.Event | None = None) -> tuple[Verdict, ...]:
        while job.num_missing:
            with self._lock:
                if self._closed:
                    raise RuntimeError("the verifier service was closed while it judged")
                if cancelled is not None and cancelled.is_set():
                    raise InterruptedError("nobody waits for these verdicts")
                self._dispatch.pump(IDLE_WAIT if job.num_missing else 0)
            if job.num_missing:
                time.sleep(GATHER)
        verdicts = job.verdicts()
        self._patience.take(verdicts)
        return verdicts

    def _cancel(self, jobs: Iterable[Job]) -> None:
        with self._lock:
            self._dispatch.cancel([job for job in jobs if job.num_missing])

    def _same_process(self) -> None:
        """A fork of this process must not talk to the workers of its parent."""
        if self._closed:
            raise RuntimeError("the verifier service is closed")
        if self._process != os.getpid():
            self._dispatch.abandon()
            self._finalizer.detach()
            self._open()

    def _plan(self, expression: str | None) -> Plan:
        expression = expression or self.default_expression
        with self._lock:
            if expression not in self._plans:
                try:
                    terms, names = plan_terms(expression)
                    cards = [self._card(name) for name in names]
                    plan = Plan(terms, names, cards, self._schedule)
                except VerifierError as complaint:
                    plan = Plan.of_error(expression, str(complaint))
                self._plans[expression] = plan
            return self._plans[expression]

    def _card(self, name: str) -> Card:
        with self._lock:
            if name not in self._cards:
                self._check_allowed(name)
                options = self._options.get(name.partition("@")[0], {})
                known = is_built_in(name)
                self._cards[name] = (
                    built_in_card(name, options)
                    if known
                    else user_card(name, self._ask_for_facts(name), options)
                )
            return self._cards[name]

    def allows(self, name: str) -> bool:
        """Whether a problem may name this verifier."""
        return is_allowed(name, self._allow)

    def _check_allowed(self, name: str) -> None:
        if not self.allows(name):
            module = name.partition(":")[0]
            raise VerifierError(
                f"found {name}, Python code; accepted: built-in verifiers, and code that you allow; "
                f'read it, then add --allow {module} (in a configuration: verification.allow = ["{module}"])'
            )

    def _ask_for_facts(self, name: str) -> dict[str, Any]:
        """Have a worker import a user's verifier: their code never runs in this process."""
        answers: list[dict[str, Any]] = []

        def failed(unit: Unit, reason: NotJudgedReason, detail: str, seconds: float) -> None:
            answers.append({"error": f"verifier {name}: its module cannot be imported: {detail}"})

        def answered(unit: Unit, data: Any) -> None:
            answers.append(dict(data))

        self._same_process()
        units = deque([(0, 0)])
        task = Task("describe", (name,), lambda: b"", units, 1, answered, failed)
        self._dispatch.pool.submit(task)
        asked = time.monotonic()
        while not answers:
            self._dispatch.pump(IDLE_WAIT)
            if time.monotonic() - asked > NOTICE_SECONDS:
                asked = float("inf")
                print(f"verifier {name}: its module is still being imported", file=sys.stderr)
        return answers[0]


def _check_names(where: str) -> None:
    """Refuse a table of options or a schedule for a name that is no verifier's."""
    for name in where.split("|"):
        if name not in BUILT_IN and ":" not in name:
            accepted = "a verifier's name without a version, or package.module:object"
            raise VerifierError(
                message("verification", repr(name), accepted, nearest_built_in(name))
            )


def _close_in(process: int, dispatch: Dispatch) -> None:
    if process == os.getpid():
        dispatch.close()


def _renew_locks() -> None:
    """In the child of a fork: a thread of the parent may have held a lock, and is not here."""
    for service in list(_services):
        service._lock = threading.RLock()  # pyright: ignore[reportPrivateUsage]


os.register_at_fork(after_in_child=_renew_locks)
