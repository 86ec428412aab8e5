"""Run the tests of one completion in two sandboxed processes, controlled by this process.

The process of the submission receives arguments and returns plain data. No expected value, test or
verdict ever enters the submission's process. Test code runs in a second process (`test_process`),
with stand-ins for the submission's objects. Each use of a stand-in is a request to the worker,
which forwards it to the submission's process.
"""

from __future__ import annotations

import marshal
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, cast

from assay.errors import VerifierError, message
from assay.verify.base import Limits
from assay.verify.programs.compare import compare, equal, same_output
from assay.verify.programs.program import Program, last_function
from assay.verify.programs.setup import (
    DirectCall,
    TestCode,
    direct_call,
    for_tests,
    implied_entry_point,
    is_available_to_tests,
    tree_of,
)
from assay.verify.programs.spec import CodeSpec, CodeTest
from assay.verify.sandbox import (
    Answer,
    Handle,
    Outcome,
    Sandbox,
    SandboxTrouble,
    Session,
    SubmissionError,
)
from assay.verify.sandbox.values import Unsupported

# Maximum number of new processes that are started after tests ended the submission's process.
MAX_RELOADS = 3
# Number of timed-out tests after which the remaining tests are skipped.
MAX_TIMEOUTS = 2
# Number of values after which the process that sent them is replaced.
# The limit MAX_DECODED of a session, in the module `session`, is higher.
MAX_DECODED = 400_000
# Maximum number of submission calls in one test.
MAX_CALLS = 40_000
# Maximum number of characters of the submission's output that tests can read.
MAX_PRINTED = 100_000
# CPU seconds that a test's own code may use.
TEST_CPU = 10.0
# Seconds for which a test's own code may be idle.
TEST_IDLE = 15.0
OUTPUT_KIB = 4096
# Seconds for which a submission may sleep in all its tests together.
MAX_IDLE = 10.0
# Limit of wall time for all tests of a program: MAX_WALL plus three times the limit of CPU time.
MAX_WALL = 30.0
# A call with a lower share of CPU time has slept, even on a busy machine.
IDLE_SHARE = 0.1
# Idle time of a call counts as sleep from this number of seconds on.
# A shorter wait can be a delay of the operating system's scheduler.
MIN_COUNTED = 0.5
NOT_SUPPORTED = "not supported"
ACCEPTED_TESTS = (
    "tests that call the program, pass plain data, and need the standard library or a package of "
    "verification.options.code.packages"
)
# Seconds for which each test may sleep, even if its limit of CPU time is lower.
MIN_IDLE = 2.0
SHOWN = 200
# Statuses after which the process has ended or the process's result is unusable.
FATAL = ("timeout", "memory", "output", "died", "unsupported", "compile_error")
# Program that loads the modules of the tests' process, which has no access to Assay's files.
START = """
import marshal, sys, types


def start(code):
    *modules, main = marshal.loads(code)
    for name, each in modules:
        sys.modules[name] = types.ModuleType(name)
        exec(each, vars(sys.modules[name]))
    exec(main[1], globals())
"""
_MODULES = ("standard_names", "expressions", "stand_ins", "test_process")


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one test.

    why: reason of a failure.
    fault: ``type`` if only the type of a value is wrong, a status in `FATAL`, or "".
    """

    passed: bool
    why: str = ""
    fault: str = ""


class Fault(Exception):
    """Raised if the submission causes the end of a test. kind: a status in `FATAL`, or ""."""

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(kind, why)
        self.kind, self.why = kind, why


class Unsendable(Fault):
    """Raised for arguments that are too large or too deep for the channel."""


@dataclass(eq=False)
class ProgramRun:
    """Run the tests of one program in order.

    direct: whether the worker compares simple asserts itself, without the tests' process.
    seen: return values and output of the submission, recorded for ``check_determinism``.
    submission: session of the submission's process.
    bench: session of the process that runs tests.
    """

    sandbox: Sandbox
    spec: CodeSpec
    program: Program
    direct: bool = True
    seen: list[Any] = field(default_factory=list[Any])
    submission: Session | None = None
    bench: Session | None = None
    num_loads: int = 0
    num_calls: int = 0
    total_cpu: float = 0.0
    total_idle: float = 0.0
    total_wall: float = 0.0
    test_cpu: float = 0.0
    num_timeouts: int = 0
    num_printed: int = 0
    # Whether the submission's process is executing a test's request.
    calling: bool = False
    # Whether the submission is using a function of the test.
    asked: bool = False
    load_fault: Fault | None = None
    own: TestCode = field(init=False)

    def __post_init__(self) -> None:
        spec = self.spec
        self.own = for_tests(spec.setup, spec.prompt_code, spec.entry, self.program.written)

    def results(self) -> list[Result]:
        """Run all tests. Raises SandboxTrouble if the sandbox fails, and VerifierError for tests
        that cannot run."""
        return list(self.each())

    def passes(self) -> bool:
        """Return whether all tests pass. Stops at the first failure. Raises as `results` does."""
        with closing(self.each()) as results:
            return all(each.passed for each in results)

    def each(self) -> Generator[Result]:
        """Yield each test's result, then end the processes. Raises as `results` does."""
        try:
            for test in self.spec.tests:
                yield self._result(test)
        finally:
            self.close()

    def close(self) -> None:
        """End the processes of the submission and of the tests."""
        for session in (self.submission, self.bench):
            if session is not None:
                session.close()

    def _result(self, test: CodeTest) -> Result:
        if self.total_cpu >= self.spec.total_time:
            return Result(False, f"not run: {self.spec.total_time:g} s were used up", "timeout")
        if self.total_idle > MAX_IDLE or self.total_wall > MAX_WALL + 3 * self.spec.total_time:
            return Result(False, "not run: the tests before it waited for too long", "timeout")
        if self.num_timeouts >= MAX_TIMEOUTS:
            return Result(False, "not run: tests before it ran out of time", "timeout")
        self.test_cpu, self.num_calls = 0.0, 0
        run = {"stdin": self._stdin, "args": self._with_data, "generate": self._generated}
        try:
            if test.kind != "stdin":
                self._load()
            result = run.get(test.kind, self._tested)(test)
        except Fault as fault:
            result = Result(False, fault.why, fault.kind)
        self.num_timeouts += result.fault == "timeout"
        return result

    # Requests to the submission's process.

    def _limits(self) -> Limits:
        left = min(self.spec.time_limit - self.test_cpu, self.spec.total_time - self.total_cpu)
        return Limits(
            cpu_seconds=max(0.01, left),
            memory_mib=self.spec.memory_limit,
            output_kib=OUTPUT_KIB,
            seconds=max(MIN_IDLE, self.spec.time_limit),
        )

    def _spend(self, outcome: Outcome) -> Outcome:
        self.test_cpu += outcome.cpu_seconds
        self.total_cpu += outcome.cpu_seconds
        idle = outcome.wall_seconds - outcome.cpu_seconds
        # While the submission waits for a function of the test, the submission is not idle by its
        # own fault.
        if not self.asked and outcome.cpu_seconds < IDLE_SHARE * outcome.wall_seconds:
            self.total_idle += idle if idle > MIN_COUNTED else 0.0
        self.total_wall += outcome.wall_seconds
        return outcome

    def _load(self) -> None:
        if self.load_fault is not None:
            raise self.load_fault
        # A long test must not use up the decoding budget of the tests that follow.
        worn = self.submission is not None and self.submission.decoded > MAX_DECODED
        if self.submission is not None and self.submission.ended is None and not worn:
            return
        self.num_loads -= worn
        if self.num_loads > MAX_RELOADS:
            raise Fault("died", "not run: its process ended too often")
        if self.submission is not None:
            self.submission.close()
        self.num_loads += 1
        text, limits = self.program.text, self._limits()
        shared = self.own.shared
        self.submission = self.sandbox.load(
            text, limits, on_call=self._forward_to_test, shared=shared
        )
        loaded = self._spend(self.submission.loaded)
        if loaded.status != "ok":
            self.submission.close()
            self.submission = None
            # No further process is started, because a further process would fail in the same way.
            self.num_loads = MAX_RELOADS + 1
            self.load_fault = Fault(kind_of(loaded), f"at its top level: {self._words(loaded)}")
            raise self.load_fault

    def _call(
        self,
        verb: str,
        target: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Outcome:
        """Send a request to the process that runs the submission. Raises Fault if the submission's
        request ends the test."""
        session = self.submission
        assert session is not None
        # Looking up a global name executes no code of the submission.
        if verb != "get" or args:
            self._count_call()
        if self.test_cpu >= self.spec.time_limit:
            raise Fault("timeout", f"more than {self.spec.time_limit:g} s of CPU time in a test")
        self.calling, self.asked = True, False
        try:
            outcome = self._spend(session.call(target, args, kwargs, self._limits(), verb))
        except Unsupported as error:
            raise Unsendable("unsupported", f"its arguments cannot be sent: {error}") from None
        finally:
            self.calling = False
        if self.spec.check_determinism:
            self.seen.append((outcome.status, outcome.value, outcome.stdout))
        if outcome.status in FATAL or outcome.error_type == "SystemExit":
            raise Fault(kind_of(outcome), self._words(outcome))
        return outcome

    def _count_call(self) -> None:
        self.num_calls += 1
        if self.num_calls > MAX_CALLS:
            raise Fault("timeout", f"more than {MAX_CALLS} calls in a test")

    def _words(self, outcome: Outcome) -> str:
        if outcome.status == "timeout" and "CPU" in outcome.error:
            return f"timeout: more than {self.spec.time_limit:g} s of CPU time"
        return words(outcome)

    def _call_entry(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Outcome:
        """Call the submission's entry point: ``f``, ``Class.method`` or ``Class().method``."""
        first, *rest = self._entry().split(".")
        if not rest:
            return self._call("call", first, args, kwargs)
        name = first.removesuffix("()")
        place = self._call("call" if name != first else "get", name)
        for part in rest[:-1]:
            if place.status == "ok":
                place = self._call("get", place.value, (part,))
        if place.status != "ok" or not isinstance(place.value, Handle):
            return place
        outcome = self._call("method", place.value, (rest[-1], *args), kwargs)
        return replace(outcome, args_after=outcome.args_after and outcome.args_after[1:])

    def _entry(self) -> str:
        found = self.spec.entry_point or last_function(self.program.tree)
        if not found:
            raise Fault("", "the program defines no function")
        return found

    # Tests that consist of data.

    def _with_data(self, test: CodeTest) -> Result:
        try:
            return self._compared(test.args, test.kwargs or {}, test.expected, True)
        except Unsendable as error:
            raise VerifierError(message("spec args", error.why, "smaller arguments")) from None

    def _compared(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        expected: Any,
        from_json: bool,
        after: tuple[Any, ...] | None = None,
    ) -> Result:
        outcome = self._call_entry(args, kwargs)
        if outcome.status != "ok":
            return Result(False, words(outcome))
        match = compare(expected, outcome.value, self.spec.float_tolerance, from_json=from_json)
        if match == "same":
            return self._changed(outcome.args_after, after)
        found = f"returned {shown(outcome.value)}; expected {shown(expected)}"
        if match == "type":
            return Result(False, f"{found}: the type is wrong", "type")
        return Result(False, found)

    def _changed(self, found: Sequence[Any] | None, after: tuple[Any, ...] | None) -> Result:
        """Compare the arguments after the call with the arguments after the reference's call, if
        the latter are known."""
        tolerance = self.spec.float_tolerance
        if after is None or compare(after, found, tolerance, from_json=False) == "same":
            return Result(True)
        return Result(False, f"left the arguments {shown(found)}; expected {shown(after)}")

    def _stdin(self, test: CodeTest) -> Result:
        longest = max(map(len, test.outputs))
        limits = replace(self._limits(), output_kib=max(OUTPUT_KIB, longest // 256))
        # Each input gets a fresh process, because a script reads standard input at its top level.
        outcome = self._spend(self.sandbox.run(self.program.text, test.stdin, limits))
        if self.spec.check_determinism:
            self.seen.append((outcome.status, outcome.stdout))
        if outcome.status != "ok":
            return Result(False, self._words(outcome), kind_of(outcome))
        rule, tolerance = self.spec.stdout_rule, self.spec.float_tolerance
        if any(same_output(each, outcome.stdout, rule, tolerance) for each in test.outputs):
            return Result(True)
        return Result(False, f"printed {shown(outcome.stdout)}")

    def cases(self, test: CodeTest) -> list[Any]:
        """Return the arguments of each test case from the row's generator. Raises VerifierError."""
        plan = {"setup": self.spec.setup} | _seeded(test)
        limits = Limits(cpu_seconds=TEST_CPU, memory_mib=self.spec.memory_limit)
        made = self._bench().call("generate", (plan,), {}, limits)
        return cast("list[Any]", self._of_row(made, "generate"))

    def _generated(self, test: CodeTest) -> Result:
        cases = self.cases(test)
        limits = Limits(cpu_seconds=TEST_CPU, memory_mib=self.spec.memory_limit)
        reference = last_function(tree_of(test.reference), self.spec.entry_point)
        # The reference program runs in a process of its own, which the submission cannot reach.
        with self.sandbox.load(test.reference, limits) as solution:
            self._of_row(solution.loaded, "reference")
            for number, args in enumerate(cases):
                given = args if isinstance(args, tuple) else (args,)
                found = solution.call(reference, given, {}, limits)
                expected = self._of_row(found, "reference")
                # The changed arguments count only if the reference returns None, as list.sort does.
                after = found.args_after if expected is None else None
                result = self._compared(given, {}, expected, False, after)
                if not result.passed:
                    return replace(result, why=f"case {number}, {shown(given)}: {result.why}")
        return Result(True)

    def _of_row(self, outcome: Outcome, what: str) -> Any:
        """Return the value that the row's own code computes. Raises VerifierError if the row's own
        code failed."""
        if outcome.status != "ok":
            raise VerifierError(message(f"spec {what}", words(outcome), "code that runs"))
        return outcome.value

    # Tests with their own code.

    def _bench(self) -> Session:
        if self.bench is None or self.bench.ended or self.bench.decoded > MAX_DECODED:
            if self.bench is not None:
                self.bench.close()
            limits = Limits(
                cpu_seconds=TEST_CPU, memory_mib=self.spec.memory_limit, seconds=TEST_IDLE
            )
            self.bench = self.sandbox.load(START, limits, on_call=self._answer)
            started = self.bench.call("start", (bench_code(),))
            if started.status != "ok":
                raise SandboxTrouble(f"the tests' process does not start: {words(started)}")
        return self.bench

    def _tested(self, test: CodeTest) -> Result:
        own, entry = self.own, self.spec.entry
        if test.kind != "assert":
            entry = self._entry().partition(".")[0].removesuffix("()")
        entry = entry or implied_entry_point(test.source, own.names)
        call = direct_call(test.source) if test.kind == "assert" and self.direct else None
        if (
            call
            and call.name not in own.names
            and (call.name == entry or not is_available_to_tests(call.name))
        ):
            return self._direct(call, test.source)
        plan = {
            "kind": test.kind,
            "parts": own.parts,
            "shared": own.shared,
            "entry": "" if entry in own.names else entry,
            "candidate": "" if test.kind == "assert" else self._entry(),
        } | _seeded(test)
        try:
            outcome = self._bench().call("run_test", (plan,))
        except Unsupported as error:
            raise VerifierError(message("spec tests", str(error), "smaller tests")) from None
        if outcome.status != "ok":
            raise Fault(kind_of(outcome), f"the test's own code: {words(outcome)}")
        said, why = outcome.value
        # A test that cannot be sent before its first call is a fault of the row, not of the
        # submission.
        if said == "broken" or (said == "unsent" and (self.num_calls == 0 or NOT_SUPPORTED in why)):
            raise VerifierError(message("spec tests", why, ACCEPTED_TESTS))
        return Result(said == "passed", why, "unsupported" if said == "unsent" else "")

    def _direct(self, call: DirectCall, source: str) -> Result:
        outcome = self._call("call", call.name, call.args, call.kwargs)
        if outcome.status == "ok" and equal(outcome.value, call.expected):
            return Result(True)
        found = f"returned {shown(outcome.value)}" if outcome.status == "ok" else words(outcome)
        return Result(False, f"{found}: {source[:SHOWN]}")

    def _answer(self, verb: str, target: Any, args: Any, kwargs: Any) -> Answer:
        """Forward a request from the tests' process to the submission's process."""
        # The submission is waiting for a function of the test, so the submission cannot take
        # another call.
        if self.calling:
            text = "a function that a test passes on cannot call the program"
            raise SubmissionError(("RuntimeError",), text)
        outcome = self._call(verb, target, args, kwargs)
        printed = outcome.stdout[: MAX_PRINTED - self.num_printed]
        self.num_printed += len(printed)
        if outcome.status != "ok":
            raise SubmissionError(outcome.error_names, outcome.error, printed)
        return Answer(outcome.value, outcome.args_after, outcome.kwargs_after, printed)

    def _forward_to_test(self, verb: str, target: Any, args: Any, kwargs: Any) -> Answer:
        """Forward a call from the submission's process to the tests' process, which has the called
        function."""
        if not self.calling or self.bench is None or type(target) is not Handle:
            raise SubmissionError(("NameError",), "NameError: name 'call_out' is not defined")
        if verb != "call" or target.origin != self.bench.origin or target.kind != "function":
            raise SubmissionError(("TypeError",), "TypeError: no function of the test")
        self._count_call()
        self.asked = True
        return self.bench.ask(target, args, kwargs)


def _seeded(test: CodeTest) -> dict[str, Any]:
    return {"source": test.source, "cases": test.cases, "seed": test.seed}


def kind_of(outcome: Outcome) -> str:
    return outcome.status if outcome.status in FATAL else ""


def words(outcome: Outcome) -> str:
    if outcome.status in ("exception", "compile_error"):
        return outcome.error[:SHOWN]
    return f"{outcome.status}: {outcome.error[:SHOWN]}"


def shown(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:
        # Python refuses to convert an integer of more than 4300 digits to text.
        text = f"a value of type {type(value).__name__}"
    return text if len(text) <= SHOWN else text[:SHOWN] + "..."


@cache
def bench_code() -> bytes:
    """Return the compiled modules of the process that runs tests, in import order, as marshal
    data."""
    modules: list[tuple[str, Any]] = []
    for name in _MODULES:
        source = Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8")
        # Compiled once per worker.
        # With optimize=2, docstrings and asserts of these modules are removed.
        modules.append((name, compile(source, f"<{name}>", "exec", optimize=2)))
    return marshal.dumps(modules)
