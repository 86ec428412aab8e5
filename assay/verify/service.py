"""The verifier service: groups in, verdicts out, whatever the verifiers do.

Verifiers run in lanes: in worker processes, in threads that wait on a network, in one thread beside
the learner's device, or, where they are arithmetic, at once. A completion that overruns its
deadline in a worker costs the worker its life and is not judged; so is one whose verifier raises,
dies or returns nonsense. The rest of the batch is judged all the same.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from assay.errors import VerifierError, message
from assay.host.orphans import clear_of_dead_parents
from assay.host.terminal import say
from assay.types import Completion, Group, Problem, Prompt, Verdict
from assay.verify.expression import (
    BUILT_IN,
    REMOTE,
    check_importable,
    is_allowed,
    is_built_in,
    nearest_built_in,
    parse_expression,
)
from assay.verify.serving.configured import Configured
from assay.verify.serving.engine import JobEngine, Options
from assay.verify.serving.job import Job
from assay.verify.serving.pool import Hire
from assay.verify.serving.process import Worker
from assay.verify.serving.schedule import Schedule
from assay.verify.serving.sums import Sum, names_in

WORKERS_A_CORE = 16
NOTICE_SECONDS = 10.0  # after which a slow import is spoken of

_services: weakref.WeakSet[VerifierService] = weakref.WeakSet()


class GroupsJudging:
    """Groups on their way through the verifiers; at the context's end what is left is cancelled.

    cancelled: set where nobody waits for their verdicts any more.
    """

    def __init__(self, service: VerifierService, cancelled: threading.Event | None = None) -> None:
        self._service, self._cancelled = service, cancelled
        self._jobs: dict[Group, Job] = {}
        self._found: dict[Group, tuple[Verdict, ...]] = {}
        self._waiting: deque[Group] = deque()

    def add(self, group: Group) -> None:
        """Begin to judge a group; raises VerifierError where a reward never works."""
        if group not in self._jobs:
            self._jobs[group] = self._service.submit(group)
            self._waiting.append(group)
        while self._waiting and not self._jobs[self._waiting[0]].num_missing:
            self._take()

    def verdicts(self, groups: Iterable[Group]) -> list[tuple[Verdict, ...]]:
        """Return the verdicts of groups that were handed over, once all are there."""
        if self._waiting and not self._service.is_wary:  # wake up once, and not for every group
            self._service.engine.wait(self._jobs[self._waiting[-1]], self._cancelled)
        while self._waiting:
            self._take()
        return [self._found[group] for group in groups]

    def _take(self) -> None:
        group = self._waiting.popleft()
        self._found[group] = self._service.finish(self._jobs[group], self._cancelled)

    def __enter__(self) -> GroupsJudging:
        return self

    def __exit__(self, *_: object) -> None:
        self._service.engine.cancel(self._jobs.values())


class VerifierService:
    """Judges groups by verifier expressions; usable from any thread and from asyncio.

    default_expression: for problems that name none. by_tag: for those of them that have one of its
    tags; the first one counts. num_workers: None means one for every two
    cores. deadline: seconds for one completion in a worker, where its verifier has no limit of its
    own. on_event: called as ``on_event(kind, **facts)`` when a worker is killed (``worker_killed``)
    or dies (``worker_died``) and when a thread's call is given up (``verifier_call_lost``).
    options: of verifiers, by name, under the keys of rows. schedule: multipliers of terms' weights,
    by policy version (see `Schedule`). cache_mib: memory for verdicts of verifiers that may be
    looked up; 0: none. give_up_after: completions of which none was judged, for errors and
    deadlines, after which judging raises VerifierError in the verifier's own words; None: never.
    allow: Python modules, or ``module:object``, that a problem may name beside those of the default
    expression; no other code is imported for it. max_open: expressions of problems that stay open,
    as a server needs it whose clients may send ever new ones: the one used longest ago is closed.
    None: all, so that `describe` tells of each verifier that was used. hire: makes a worker, where
    they are not processes of this machine. Raises VerifierError for an expression, an option
    or a schedule that is wrong.
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
        by_tag: Mapping[str, str] | None = None,
        max_open: int | None = None,
        hire: Hire = Worker,
    ) -> None:
        self.default_expression = default_expression
        self._by_tag = dict(by_tag or {})
        names = [
            name
            for expression in (default_expression, *self._by_tag.values())
            for name in names_in(expression)
        ]
        allow = tuple(allow)
        check_importable(allow)
        self._allow = frozenset([*allow, *(_bare(name) for name in names)])
        self._options = {name: dict(table) for name, table in (options or {}).items()}
        self._schedule = Schedule(schedule or {})
        for where in (*self._options, *self._schedule.points):
            _check_names(where)
        cores = os.cpu_count() or 1
        if hire is Worker and num_workers is not None and num_workers > WORKERS_A_CORE * cores:
            accepted = f"at most {WORKERS_A_CORE * cores} on this machine ({WORKERS_A_CORE} a core)"
            raise VerifierError(message("worker processes", num_workers, accepted))
        workers, cache_bytes = num_workers or max(1, cores // 2), int(cache_mib * 2**20)
        self._settings = (workers, deadline, on_event, self._options, cache_bytes, hire)
        self._give_up_after = give_up_after
        self._max_open, self._own = max_open, {default_expression, *self._by_tag.values()}
        self._failures: Counter[str] = Counter()  # words of those that were not judged
        self._verifiers: dict[str, Configured] = {}
        self._sums: OrderedDict[str, Sum] = OrderedDict()  # the one used last is the last
        for name in self._options:  # of a user's, a wrong option is told when it is first used
            if is_built_in(name) and (error := self._verifier(name).error):
                raise VerifierError(error)
        self._open()
        clear_of_dead_parents()
        asked = [self._verifier(name) for name in names if is_built_in(name)]
        if any(one.verifier.lane == "worker" and not one.error for one in asked):
            self.engine.pool.start()
        _services.add(self)

    def _open(self) -> None:
        self._building = threading.RLock()  # held while a verifier is looked up
        self._ordering = threading.Lock()  # of the sums; never held for long
        self.engine = JobEngine(*self._settings)
        self._finalizer = weakref.finalize(self, self.engine.close)

    def listen(self, on_event: Callable[..., None] | None) -> None:
        """Tell of events from now on as the parameter ``on_event`` does."""
        self._settings = (*self._settings[:2], on_event, *self._settings[3:])
        self.engine.on_event = on_event

    def after_fork(self) -> None:
        """In the child of a fork: threads, locks and workers are the parent's; have new ones."""
        self.engine.pool.abandon()
        self._finalizer.detach()
        closed = self.engine.closed
        self._open()
        self.engine.closed = closed

    def judge(
        self, groups: Sequence[Group], cancelled: threading.Event | None = None
    ) -> list[tuple[Verdict, ...]]:
        """Return the verdicts of every completion, aligned with ``groups``."""
        with GroupsJudging(self, cancelled) as jobs:
            for group in groups:
                jobs.add(group)
            return jobs.verdicts(groups)

    def judging(self) -> GroupsJudging:
        """Judge groups that are handed over one by one, while others are still sampled."""
        return GroupsJudging(self)

    async def judge_async(self, groups: Sequence[Group]) -> list[tuple[Verdict, ...]]:
        """Judge without blocking the event loop; a cancelled call leaves nothing under way."""
        cancelled = threading.Event()
        future: Future[list[tuple[Verdict, ...]]] = Future()

        def work() -> None:
            try:
                future.set_result(self.judge(groups, cancelled))
            except BaseException as error:  # it is raised again where it is awaited
                future.set_exception(error)

        # a thread of our own: one of a pool would keep the interpreter from ending
        threading.Thread(target=work, name="assay-judge", daemon=True).start()
        done = asyncio.wrap_future(future)
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            cancelled.set()
            await asyncio.wait([done])
            done.exception()  # so that it counts as read
            raise

    def judge_text(
        self, pairs: Iterable[tuple[Problem, Completion | str]], window: int = 256
    ) -> Iterator[Verdict]:
        """Yield a verdict for each (problem, completion), in order; ``window`` are under way."""
        waiting: deque[Job] = deque()
        try:
            for problem, completion in pairs:
                if isinstance(completion, str):
                    completion = Completion.from_text(completion)
                prompt = Prompt(problem.question, completion.tokens[:0], completion.think)
                waiting.append(self.submit(Group(problem, prompt, (completion,))))
                if len(waiting) >= window:
                    yield self.finish(waiting.popleft())[0]
            while waiting:
                yield self.finish(waiting.popleft())[0]
        finally:
            self.engine.cancel(waiting)

    def submit(self, group: Group) -> Job:
        """Begin to judge a group."""
        return self.engine.submit(self._sum(self._expression(group.problem)), group)

    def finish(self, job: Job, cancelled: threading.Event | None = None) -> tuple[Verdict, ...]:
        """Wait for a group, and return its verdicts."""
        self.engine.wait(job, cancelled)
        verdicts = job.verdicts()
        if self.is_wary:
            self._be_patient(verdicts)
        return verdicts

    @property
    def is_wary(self) -> bool:
        """Whether no completion was judged yet, so that each verdict is to be seen at once."""
        return self._give_up_after is not None

    def _be_patient(self, verdicts: Iterable[Verdict]) -> None:
        """Raise VerifierError where a reward has failed on each of its first completions.

        Errors and deadlines are failures; what is unavailable, or judged None by its verifier, is
        not.
        """
        for verdict in verdicts:
            if verdict.judged or self._give_up_after is None:
                self._give_up_after = None
                return
            self._failures[verdict.detail] += verdict.reason in ("error", "timeout")
            if self._failures.total() >= self._give_up_after:
                ((words, times),) = self._failures.most_common(1)
                often = "" if times == self._failures.total() else f", {times} times with"
                raise VerifierError(
                    f"verifier {verdict.verifier}: it failed on each of the first "
                    f"{self._give_up_after} completions{often}: {words}; mend it, then start again"
                )

    def check(self, expressions: Iterable[str | None]) -> None:
        """Raise VerifierError for the first expression that cannot be used."""
        for expression in dict.fromkeys(expressions):
            parse_expression(expression or self.default_expression)
            if error := self._sum(expression).error:
                raise VerifierError(error)

    def check_problem(self, problem: Problem) -> None:
        """Raise VerifierError where a problem's spec is not what its verifiers read.

        The message names the key, what was found and what is accepted. It takes microseconds.
        """
        sum = self._sum(self._expression(problem))
        if sum.error:
            raise VerifierError(sum.error)
        sum.check_row(problem)

    def functions(self, problem: Problem) -> list[tuple[Configured, bool]]:
        """Return the users' functions that judge a problem, and which one is the correctness."""
        sum = self._sum(self._expression(problem))
        return [
            (one, index == sum.chains[0][0])
            for index, one in enumerate(sum.verifiers)
            if not is_built_in(one.name) and not one.error and one.verifier.takes != "verdicts"
        ]

    def compares(self, problem: Problem) -> tuple[str, str] | None:
        """Return (verifier, key of the spec) that say whether two answers to a problem are equal.

        Of the first term's first verifier, where one of its fields `equates`; None where there is
        none.
        """
        sum = self._sum(self._expression(problem))
        first = sum.verifiers[sum.chains[0][0]].verifier.fields
        found = ((sum.names[sum.chains[0][0]], one.name) for one in first if one.equates)
        return None if sum.error else next(found, None)

    def compares_siblings(self, problem: Problem) -> list[str]:
        """Return the names of a problem's verifiers that judge a group as a whole."""
        verifiers = self._sum(self._expression(problem)).verifiers
        return [one.name for one in verifiers if one.verifier.compares_siblings]

    def warnings(self, expression: str | None = None) -> list[str]:
        """Return what is doubtful about an expression that can be used, one line each."""
        self.check([expression])
        return self._sum(expression).warnings()

    def describe(self, also: Iterable[str] = ()) -> dict[str, dict[str, Any]]:
        """Return {name: facts} of the default expression's verifiers and those used since.

        Facts: version, hash, and where they apply ``options`` (a digest), ``checkpoint`` and
        ``source`` (the text of each module). also:
        names of other verifiers, each a term of some row's expression. Raises VerifierError where
        the default expression, or one of these verifiers, cannot be used.
        """
        self.check([None, *self._by_tag.values()])
        with self._building:
            if error := next((one.error for one in map(self._verifier, also) if one.error), ""):
                raise VerifierError(error)
        known = {one.name: one for one in list(self._verifiers.values()) if not one.error}
        return {name: one.describe() for name, one in sorted(known.items())}

    @property
    def stats(self) -> dict[str, Any]:
        """Of each verifier what `VerifierStats.summary` says; and kills and deaths of workers."""
        with self.engine.lock:
            counts = {name: each.summary() for name, each in self.engine.stats.items()}
            pool = self.engine.pool
            return {"verifiers": counts, "kills": pool.kills, "deaths": pool.deaths}

    def take_metrics(self) -> dict[str, float]:
        """Return the metrics of what was judged since the last call, as ``verify/NAME/p50``."""
        return self.engine.take_metrics()

    def close(self) -> None:
        """Kill and reap the workers and end the lanes; a second call does nothing."""
        self.engine.closed = True
        self._finalizer()

    def __enter__(self) -> VerifierService:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def allows(self, name: str) -> bool:
        """Whether a problem may name this verifier."""
        return is_allowed(name, self._allow)

    def _expression(self, problem: Problem) -> str | None:
        by_tag = (self._by_tag[tag] for tag in problem.tags if tag in self._by_tag)
        return problem.verifier or next(by_tag, None)

    def _sum(self, expression: str | None) -> Sum:
        expression = expression or self.default_expression
        with self._ordering:
            found = self._sums.get(expression)
            if found is not None:
                self._sums.move_to_end(expression)
                return found
        with self._building:
            try:
                verifiers = {name: self._verifier(name) for name in names_in(expression)}
                found = Sum(parse_expression(expression), verifiers, self._schedule)
            except VerifierError as error:
                found = Sum.of_error(expression, str(error))
            with self._ordering:
                self._sums[expression] = found
                others = [one for one in self._sums if one not in self._own]
                excess = len(others) - (self._max_open or len(others))
                for oldest in others[: max(0, excess)]:
                    del self._sums[oldest]
            if excess > 0:
                self._close_unused()
        return found

    def _close_unused(self) -> None:
        """Forget verifiers that no open expression names, and end their lanes."""
        with self._ordering:
            used = {one.name: one.label for sum in self._sums.values() for one in sum.verifiers}
        self._verifiers = {name: one for name, one in self._verifiers.items() if name in used}
        self.engine.keep_only(used)

    def _verifier(self, name: str) -> Configured:
        if name not in self._verifiers:
            key = "remote" if name.startswith(REMOTE) else _bare(name)
            options = self._options.get(key, {})
            if not self.allows(name):
                module = name.partition(":")[0]
                raise VerifierError(
                    f"found {name}, Python code; accepted: built-in verifiers, and code that you "
                    f"allow; read it, then add --allow {module} (in a configuration: "
                    f'verification.allow = ["{module}"])'
                )
            if is_built_in(name):
                self._verifiers[name] = Configured.built_in(name, options)
            else:
                facts = self._ask_for_facts(name)
                self._verifiers[name] = Configured.described(name, facts, options)
        return self._verifiers[name]

    def _ask_for_facts(self, name: str) -> Mapping[str, Any]:
        """Have a worker import a user's verifier: their code never runs in this process."""
        words = f"verifier {name}: its module is still being imported"
        notice = threading.Timer(NOTICE_SECONDS, say, [words])
        notice.daemon = True
        notice.start()
        try:
            return self.engine.pool.describe(name)
        finally:
            notice.cancel()


def checker(expression: str = "math", **settings: Any) -> Callable[..., Verdict]:
    """Return a verifier as a plain function ``(text, gold=None, **spec)`` that gives a `Verdict`.

    gold: the accepted answer; it stands under the key of the spec by which the verifier compares
    answers, or else ``answer``. settings: of `VerifierService`. The function keeps its deadlines,
    may be called from any thread, and ends its workers when it is no longer used.
    Raises VerifierError for an expression, a setting or a spec that is wrong.
    """
    service = VerifierService(expression, **settings)
    service.check([expression])
    compares = service.compares(Problem("problem", ""))
    key = compares[1] if compares else "answer"

    def check(text: str, gold: Any = None, **spec: Any) -> Verdict:
        problem = Problem("problem", "", {key: gold, **spec} if gold is not None else spec)
        service.check_problem(problem)
        return next(service.judge_text([(problem, text)]))

    return check


def _bare(name: str) -> str:
    return name.partition("@")[0]


def _check_names(where: str) -> None:
    """Refuse a table of options or a schedule for a name that is no verifier's."""
    for name in where.split("|"):
        if name not in (*BUILT_IN, "remote") and ":" not in name:
            accepted = "a verifier's name without a version, or package.module:object"
            remedy = nearest_built_in(name)
            raise VerifierError(message("verification", repr(name), accepted, remedy))


def _renew() -> None:
    for service in list(_services):
        service.after_fork()


os.register_at_fork(after_in_child=_renew)
