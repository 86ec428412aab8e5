"""The verifier service takes groups of completions and returns verdicts.

Verifiers run in worker processes, in threads (network calls), in one thread that shares the
learner's device, or inline (arithmetic). A worker that exceeds its deadline is killed, and its
completion is not judged. A completion is also not judged if its verifier raises, dies or returns an
invalid result. The other completions of the batch are judged normally.
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
    names_of,
    nearest_built_in,
    parse_expression,
)
from assay.verify.serving.configured import Configured
from assay.verify.serving.engine import JobEngine, Options
from assay.verify.serving.job import Job
from assay.verify.serving.pool import SpawnWorker
from assay.verify.serving.process import Worker
from assay.verify.serving.schedule import Schedule
from assay.verify.serving.sums import Sum, names_in

# More worker processes than this are probably a typing error. Each process imports numpy.
WORKERS_A_CORE = 16
# Seconds that an import of a verifier's module may take before a message reports the slow import.
NOTICE_SECONDS = 10.0

# For `after_fork`. Weak references let an unused service be collected and closed.
_services: weakref.WeakSet[VerifierService] = weakref.WeakSet()


class GroupsJudging:
    """Groups that are being judged. Leaving the context cancels unfinished groups.

    cancelled: event that the caller sets when the verdicts are no longer needed.
    """

    def __init__(self, service: VerifierService, cancelled: threading.Event | None = None) -> None:
        self._service, self._cancelled = service, cancelled
        self._jobs: dict[Group, Job] = {}
        self._found: dict[Group, tuple[Verdict, ...]] = {}
        self._waiting: deque[Group] = deque()

    def add(self, group: Group) -> None:
        """Start judging a group. Raises VerifierError if a reward verifier always fails."""
        if group not in self._jobs:
            self._jobs[group] = self._service.submit(group)
            self._waiting.append(group)
        # Finished groups are read here to report, while sampling, a reward that always fails.
        while self._waiting and not self._jobs[self._waiting[0]].num_missing:
            self._take()

    def verdicts(self, groups: Iterable[Group]) -> list[tuple[Verdict, ...]]:
        """Return the verdicts of all submitted groups, once all verdicts are available."""
        # Waiting for the last group first wakes this thread once instead of once per group.
        if self._waiting and not self._service.nothing_judged_yet:
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
    """Judges groups by verifier expressions, from any thread or from asyncio.

    default_expression: expression for problems without an expression of their own.
    by_tag: expressions by tag, for problems without an expression. The first known tag applies.
    num_workers: number of worker processes. None: one per two cores.
    deadline: seconds for one completion in a worker, unless its verifier has its own limit.
    on_event: called as ``on_event(kind, **facts)`` when a worker is killed (``worker_killed``) or
        dies (``worker_died``), and when a thread's call is abandoned (``verifier_call_lost``).
    options: options by verifier name. A row can set the same options by keys of the same names.
    schedule: multipliers of terms' weights by policy version (see `Schedule`).
    cache_mib: MiB for the cached verdicts of verifiers that allow a cache. 0: no cache.
    give_up_after: number of first completions. If errors or deadlines leave all of the first ones
        without a verdict, judging raises VerifierError with the verifier's message. None: never.
    allow: Python modules, or ``module:object``, that a problem may name in addition to the names in
        the default expression. For a problem, no code is imported except the allowed modules.
    max_open: maximum number of problems' expressions that stay open, for a server whose clients
        send many expressions. If too many expressions are open, the least recently used expression
        is closed. None: no limit, so that `describe` covers each verifier that was used.
    spawn_worker: function that starts a worker, for example as a Ray actor.

    Raises VerifierError for an invalid expression, option or schedule.
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
        spawn_worker: SpawnWorker = Worker,
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
        if (
            spawn_worker is Worker
            and num_workers is not None
            and num_workers > WORKERS_A_CORE * cores
        ):
            accepted = f"at most {WORKERS_A_CORE * cores} on this machine ({WORKERS_A_CORE} a core)"
            raise VerifierError(message("worker processes", num_workers, accepted))
        workers, cache_bytes = num_workers or max(1, cores // 2), int(cache_mib * 2**20)
        self._settings = (workers, deadline, on_event, self._options, cache_bytes, spawn_worker)
        self._give_up_after = give_up_after
        self._max_open, self._own = max_open, {default_expression, *self._by_tag.values()}
        self._failures: Counter[str] = Counter()
        self._verifiers: dict[str, Configured] = {}
        self._sums: OrderedDict[str, Sum] = OrderedDict()
        # A worker imports a user's verifier at its first use and then also checks its options.
        for name in self._options:
            if is_built_in(name) and (error := self._verifier(name).error):
                raise VerifierError(error)
        self._open()
        clear_of_dead_parents()
        # Workers start early, so that their imports run while the caller loads its model.
        asked = [self._verifier(name) for name in names if is_built_in(name)]
        if any(one.verifier.executor == "worker" and not one.error for one in asked):
            self.engine.pool.start()
        _services.add(self)

    def _open(self) -> None:
        # This lock is held while a verifier is built, which can take a minute if an import is slow.
        self._building = threading.RLock()
        # The lock guards `_sums` only, so that known expressions are found during a slow import.
        self._ordering = threading.Lock()
        self.engine = JobEngine(*self._settings)
        self._finalizer = weakref.finalize(self, self.engine.close)

    def listen(self, on_event: Callable[..., None] | None) -> None:
        """Send future events to ``on_event`` instead of the constructor's ``on_event``."""
        self._settings = (*self._settings[:2], on_event, *self._settings[3:])
        self.engine.on_event = on_event

    def after_fork(self) -> None:
        """Replace the parent's threads, locks and workers in a forked child."""
        self.engine.pool.abandon()
        # The child must not close the parent's workers, and a lost thread can hold a lock.
        self._finalizer.detach()
        closed = self.engine.closed
        self._open()
        self.engine.closed = closed

    def judge(
        self, groups: Sequence[Group], cancelled: threading.Event | None = None
    ) -> list[tuple[Verdict, ...]]:
        """Return the verdicts of all completions, aligned with ``groups``."""
        with GroupsJudging(self, cancelled) as jobs:
            for group in groups:
                jobs.add(group)
            return jobs.verdicts(groups)

    def judging(self) -> GroupsJudging:
        """Return a context that judges each added group during the sampling of later groups."""
        return GroupsJudging(self)

    async def judge_async(self, groups: Sequence[Group]) -> list[tuple[Verdict, ...]]:
        """Judge without blocking the event loop. Cancelling a call stops judging its groups."""
        cancelled = threading.Event()
        future: Future[list[tuple[Verdict, ...]]] = Future()

        def work() -> None:
            try:
                future.set_result(self.judge(groups, cancelled))
            except BaseException as error:  # `await` raises the exception again.
                future.set_exception(error)

        # The thread is a daemon, because the interpreter would wait for a thread pool at exit.
        threading.Thread(target=work, name="assay-judge", daemon=True).start()
        done = asyncio.wrap_future(future)
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            cancelled.set()
            await asyncio.wait([done])
            # Retrieve the exception, because asyncio logs exceptions that nobody retrieved.
            done.exception()
            raise

    def judge_text(
        self, pairs: Iterable[tuple[Problem, Completion | str]], window: int = 256
    ) -> Iterator[Verdict]:
        """Yield a verdict for each (problem, completion), in order.

        window: number of completions that are judged concurrently.
        """
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
        """Start judging a group."""
        return self.engine.submit(self._sum(self._expression(group.problem)), group)

    def finish(self, job: Job, cancelled: threading.Event | None = None) -> tuple[Verdict, ...]:
        """Wait for a group and return its verdicts."""
        self.engine.wait(job, cancelled)
        verdicts = job.verdicts()
        if self.nothing_judged_yet:
            self._raise_if_always_failing(verdicts)
        return verdicts

    @property
    def nothing_judged_yet(self) -> bool:
        """Whether `give_up_after` is set and no completion was judged so far."""
        return self._give_up_after is not None

    def _raise_if_always_failing(self, verdicts: Iterable[Verdict]) -> None:
        """Raise VerifierError if a reward verifier failed on each of its first completions.

        Exceptions and deadlines count as failures. Verdicts with the reason ``unavailable`` do not,
        because a server can be down for a while, and a verifier can return None.
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
                    f"{self._give_up_after} completions{often}: {words}; fix it, then start again"
                )

    def check(self, expressions: Iterable[str | None]) -> None:
        """Raise VerifierError for the first invalid expression or unusable verifier."""
        for expression in dict.fromkeys(expressions):
            parse_expression(expression or self.default_expression)
            if error := self._sum(expression).error:
                raise VerifierError(error)

    def check_problem(self, problem: Problem) -> None:
        """Raise VerifierError if a problem's spec is invalid for its verifiers.

        The message has the key, its value and the accepted values. A check takes microseconds.
        """
        sum = self._sum(self._expression(problem))
        if sum.error:
            raise VerifierError(sum.error)
        sum.check_row(problem)

    def lacks(self, problem: Problem) -> str:
        """Return why this machine cannot judge any completion of a problem, or "".

        Only the first term decides. A reason is returned only if the machine lacks a requirement of
        every alternative of the first term, or of one verifier joined by ``&``.
        """
        sum = self._sum(self._expression(problem))
        first = [sum.verifiers[index] for index in sum.chains[0]]
        checks = [(one.verifier.lacks, one.reads(problem).spec) for one in first]
        reasons = [lacks(spec) if lacks else "" for lacks, spec in checks]
        decides = any if sum.terms[0].is_conjunction else all
        return max(reasons) if decides(reasons) else ""

    def functions(self, problem: Problem) -> list[tuple[Configured, bool]]:
        """Return (verifier, whether it measures correctness) of a problem's user functions."""
        sum = self._sum(self._expression(problem))
        return [
            (one, index == sum.chains[0][0])
            for index, one in enumerate(sum.verifiers)
            if not is_built_in(one.name) and not one.error and one.verifier.takes != "verdicts"
        ]

    def compares(self, problem: Problem) -> tuple[str, str] | None:
        """Return the verifier and the spec key with which two answers to a problem can be compared.

        The first alternative of the first term compares. Returns None if this verifier has no field
        with `equates`.
        """
        sum = self._sum(self._expression(problem))
        first = sum.verifiers[sum.chains[0][0]].verifier.fields
        found = ((sum.names[sum.chains[0][0]], one.name) for one in first if one.equates)
        return None if sum.error else next(found, None)

    def compares_siblings(self, problem: Problem) -> list[str]:
        """Return the names of a problem's verifiers that compare the completions of a group."""
        verifiers = self._sum(self._expression(problem)).verifiers
        return [one.name for one in verifiers if one.verifier.compares_siblings]

    def warnings(self, expression: str | None = None) -> list[str]:
        """Return warnings about a valid expression, one line each."""
        self.check([expression])
        return self._sum(expression).warnings()

    def describe(self, also: Iterable[str] = ()) -> dict[str, dict[str, Any]]:
        """Return {name: facts} of all verifiers in the default expression or used so far.

        The facts are ``version`` and ``hash``, and if applicable ``options`` (a digest),
        ``checkpoint`` and ``source`` (the text of each module).

        also: names of further verifiers, such as those that rows name.

        Raises VerifierError if one of the expression's verifiers cannot be used.
        """
        self.check([None, *self._by_tag.values()])
        with self._building:
            if error := next((one.error for one in map(self._verifier, also) if one.error), ""):
                raise VerifierError(error)
        known = {one.name: one for one in list(self._verifiers.values()) if not one.error}
        return {name: one.describe() for name, one in sorted(known.items())}

    @property
    def stats(self) -> dict[str, Any]:
        """`VerifierStats.summary` by verifier, and the numbers of killed and of died workers."""
        with self.engine.lock:
            counts = {name: each.summary() for name, each in self.engine.stats.items()}
            pool = self.engine.pool
            return {"verifiers": counts, "kills": pool.kills, "deaths": pool.deaths}

    def take_metrics(self) -> dict[str, float]:
        """Return the metrics since the last call of the method, such as ``verify/NAME/p50``."""
        return self.engine.take_metrics()

    def close(self) -> None:
        """Kill and reap all workers, and close the executors. A repeated call does nothing."""
        self.engine.closed = True
        self._finalizer()

    def __enter__(self) -> VerifierService:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def allows(self, name: str) -> bool:
        """Return whether a problem may name this verifier."""
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
        """Remove verifiers that no open expression uses, and close their executors."""
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
        """Let a worker import a user's verifier, because user code never runs in this process."""
        words = f"verifier {name}: its module is still being imported"
        notice = threading.Timer(NOTICE_SECONDS, say, [words])
        notice.daemon = True
        notice.start()
        try:
            return self.engine.pool.describe(name)
        finally:
            notice.cancel()


def checker(expression: str = "math", **settings: Any) -> Callable[..., Verdict]:
    """Return a verifier as a plain function ``(text, gold=None, **spec)`` that returns a `Verdict`.

    gold: the accepted answer. A problem's spec has the answer under the key by which the verifier
        compares answers, or under ``answer`` if the verifier has no such key.
    settings: parameters of `VerifierService`.

    The returned function applies deadlines and can be called from any thread. The workers of the
    returned function end when the function object is garbage-collected.

    Raises VerifierError for an invalid expression, setting or spec.
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
    """Raise VerifierError if a table of options or a schedule has an invalid name."""
    for name in names_of(where):
        if name not in (*BUILT_IN, "remote") and ":" not in name:
            accepted = "a verifier's name without a version, or package.module:object"
            remedy = nearest_built_in(name)
            raise VerifierError(message("verification", repr(name), accepted, remedy))


def _renew() -> None:
    for service in list(_services):
        service.after_fork()


# A forked child, as of a data loader, has copies of a service's objects but no threads.
os.register_at_fork(after_in_child=_renew)
