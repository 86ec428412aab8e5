"""Run the tests of one completion: two sandboxed processes, and this one in between, which compares.

The submission's process gets arguments and gives plain data; it never holds an expected value, a test
or a verdict. Code of tests runs in the other process (`code_test_process`), where the submission is a
stand-in: each use of it comes here as a question, and goes on to the submission.
"""

from __future__ import annotations

import marshal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, cast

from assay.errors import VerifierError, message
from assay.verify.base import Limits
from assay.verify.programs.callbacks import (
    Conversation,
    Question,
    holds_objects_of,
    rehashed,
    unhashed,
)
from assay.verify.programs.compare import compare, equal, same_output
from assay.verify.programs.direct import DirectCall, direct_call
from assay.verify.programs.names import exception_bases, kinds_of, rules, tree_of, wanted_names
from assay.verify.programs.program import Program, last_function
from assay.verify.programs.setup import for_tests
from assay.verify.programs.spec import CodeSpec, CodeTest
from assay.verify.sandbox import (
    Handle,
    Outcome,
    Sandbox,
    SandboxTrouble,
    Session,
    SubmissionError,
)
from assay.verify.sandbox.values import EXCEPTIONS, Unsupported

MAX_RELOADS = 3  # fresh processes for the tests after one that ended its process
MAX_TIMEOUTS = 2  # tests that may run out of time before the rest is not run
MAX_DECODED = 400_000  # values that a process has sent, before a fresh one takes over
MAX_CALLS = 40_000  # of the submission, in one test
MAX_PRINTED = 100_000  # characters that tests may see of what the submission prints
TEST_CPU = 10.0  # seconds beside the submission's own, for the code of a test
TEST_IDLE = 15.0  # seconds that the code of a test may do nothing
OUTPUT_KIB = 4096
MIN_IDLE = 2.0  # seconds that a test may sleep, whatever its limit
SHOWN = 200
FATAL = ("timeout", "memory", "output", "died", "unsupported", "compile_error")


@dataclass(frozen=True, slots=True)
class Result:
    """How one test went. fault: ``timeout``, ``memory`` and the like; ``type``: only the type is wrong."""

    passed: bool
    why: str = ""
    fault: str = ""


class Fault(Exception):
    """The submission ended a test: which way, and what is known of it."""

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(kind, why)
        self.kind, self.why = kind, why


class Unsendable(Fault):
    """Arguments that are too large or too deep for the channel."""


@dataclass(eq=False)
class Run:
    """The tests of one program, in order.

    direct: compare simple asserts here, without a process of their own. seen: what the submission
    returned and printed.
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
    test_cpu: float = 0.0
    num_timeouts: int = 0
    num_printed: int = 0
    conversation: Conversation | None = None
    lent: bool = False  # whether the submission got an object of the test
    fault: Fault | None = None
    load_fault: Fault | None = None

    def results(self) -> list[Result]:
        """Run every test. Raises SandboxTrouble, and VerifierError for tests that cannot be run."""
        try:
            return [self._result(test) for test in self.spec.tests]
        finally:
            for session in (self.submission, self.bench):
                if session is not None:
                    session.close()

    def _result(self, test: CodeTest) -> Result:
        if self.total_cpu >= self.spec.total_time:
            return Result(False, f"not run: {self.spec.total_time:g} s were used up", "timeout")
        if self.num_timeouts >= MAX_TIMEOUTS:
            return Result(False, "not run: tests before it ran out of time", "timeout")
        self.fault, self.test_cpu, self.num_calls, self.lent = None, 0.0, 0, False
        try:
            if test.kind == "stdin":
                result = self._stdin(test)
                self.num_timeouts += result.fault == "timeout"
                return result
            self._load()
            if test.kind == "args":
                return self._with_data(test)
            if test.kind == "generate":
                return self._generated(test)
            return self._tested(test)
        except Fault as fault:
            self.num_timeouts += fault.kind == "timeout"
            return Result(False, fault.why, fault.kind)

    # the submission's process

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
        return outcome

    def _load(self) -> None:
        if self.load_fault is not None:
            raise self.load_fault
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
        self.submission = self.sandbox.load(text, limits, on_call=self._asked)
        loaded = self._spend(self.submission.loaded)
        if loaded.status != "ok":
            self.submission.close()
            self.submission = None
            self.num_loads = MAX_RELOADS + 1  # it would end the same way again
            self.load_fault = Fault(_kind_of(loaded), f"at its top level: {self._words(loaded)}")
            raise self.load_fault

    def _call(
        self, what: str, place: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Outcome:
        """Ask the submission's process; what it may not survive is a Fault."""
        session = self.submission
        assert session is not None
        self.num_calls += 1
        if self.num_calls > MAX_CALLS:
            raise Fault("timeout", f"more than {MAX_CALLS} calls in a test")
        if self.test_cpu >= self.spec.time_limit:
            raise Fault("timeout", f"more than {self.spec.time_limit:g} s of CPU time in a test")
        limits = self._limits()
        try:
            if what == "call":
                outcome = session.call(place, args, kwargs, limits)
            elif what == "method":
                outcome = session.call_method(place, args[0], args[1:], kwargs, limits)
            elif what == "get" and isinstance(place, str):
                outcome = session.get(self._call("value", place, (), {}).value, args[0], limits)
            elif what == "get":
                outcome = session.get(place, args[0], limits)
            else:
                outcome = session.get(place, "", limits)
        except Unsupported as error:
            raise Unsendable("unsupported", f"its arguments cannot be sent: {error}") from None
        self._spend(outcome)
        if self.spec.check_determinism:
            self.seen.append((outcome.status, outcome.value, outcome.stdout))
        if outcome.status in FATAL or outcome.error_type == "SystemExit":
            raise Fault(_kind_of(outcome), self._words(outcome))
        return outcome

    def _words(self, outcome: Outcome) -> str:
        if outcome.status == "timeout" and "CPU" in outcome.error:
            return f"timeout: more than {self.spec.time_limit:g} s of CPU time"
        return _words(outcome)

    def _call_entry(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Outcome:
        """Call the entry point: ``f``, ``Class.method`` or ``Class().method``."""
        first, *rest = self._entry().split(".")
        if not rest:
            return self._call("call", first, args, kwargs)
        name = first.removesuffix("()")
        place = self._call("call" if name != first else "value", name, (), {})
        for part in rest[:-1]:
            if place.status == "ok":
                place = self._call("get", place.value, (part,), {})
        if place.status != "ok" or not isinstance(place.value, Handle):
            return place
        return self._call("method", place.value, (rest[-1], *args), kwargs)

    def _entry(self) -> str:
        found = self.spec.entry_point or last_function(self.program.tree)
        if not found:
            raise Fault("", "the program defines no function")
        return found

    # tests with data

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
    ) -> Result:
        outcome = self._call_entry(args, kwargs)
        if outcome.status != "ok":
            return Result(False, _words(outcome))
        match = compare(expected, outcome.value, self.spec.float_tolerance, from_json=from_json)
        if match == "same":
            return Result(True)
        found = f"returned {_shown(outcome.value)}; expected {_shown(expected)}"
        if match == "type":
            return Result(False, f"{found}: the type is wrong", "type")
        return Result(False, found)

    def _stdin(self, test: CodeTest) -> Result:
        longest = max(map(len, test.outputs))
        limits = replace(self._limits(), output_kib=max(OUTPUT_KIB, longest // 256))
        outcome = self._spend(self.sandbox.run(self.program.text, test.stdin, limits))
        if self.spec.check_determinism:
            self.seen.append((outcome.status, outcome.stdout))
        if outcome.status != "ok":
            return Result(False, self._words(outcome), _kind_of(outcome))
        rule, tolerance = self.spec.stdout_rule, self.spec.float_tolerance
        if any(same_output(each, outcome.stdout, rule, tolerance) for each in test.outputs):
            return Result(True)
        return Result(False, f"printed {_shown(outcome.stdout)}")

    def _generated(self, test: CodeTest) -> Result:
        plan = {
            "setup": self.spec.setup,
            "source": test.source,
            "cases": test.cases,
            "seed": test.seed,
        }
        limits = Limits(cpu_seconds=TEST_CPU, memory_mib=self.spec.memory_limit)
        cases = cast(
            "list[Any]",
            self._of_row(self._bench().call("generate", (plan,), {}, limits), "generate"),
        )
        reference = last_function(tree_of(test.reference), self.spec.entry_point)
        with self.sandbox.load(test.reference, limits) as solution:
            self._of_row(solution.loaded, "reference")
            for number, args in enumerate(cases):
                given = args if isinstance(args, tuple) else (args,)
                expected = self._of_row(solution.call(reference, given, {}, limits), "reference")
                result = self._compared(given, {}, expected, False)
                if not result.passed:
                    shown = f"case {number}, {_shown(given)}: {result.why}"
                    return Result(False, shown, result.fault)
        return Result(True)

    def _of_row(self, outcome: Outcome, what: str) -> Any:
        """Return what the row's own code returned; its faults are the row's."""
        if outcome.status != "ok":
            raise VerifierError(message(f"spec {what}", _words(outcome), "code that runs"))
        return outcome.value

    # tests with code of their own

    def _bench(self) -> Session:
        if self.bench is None or self.bench.ended or self.bench.decoded > MAX_DECODED:
            if self.bench is not None:
                self.bench.close()
            limits = Limits(
                cpu_seconds=TEST_CPU, memory_mib=self.spec.memory_limit, seconds=TEST_IDLE
            )
            self.bench = self.sandbox.load(_START, limits, on_call=self._answer)
            started = self.bench.call("start", (_bench_code(),))
            if started.status != "ok":
                raise SandboxTrouble(f"the tests' process does not start: {_words(started)}")
        return self.bench

    def _tested(self, test: CodeTest) -> Result:
        own = for_tests(self.spec, self.program)
        if test.kind == "assert" and self.direct and not own.setup:
            call = direct_call(test.source, self.spec.entry_point, own.trusted)
            if call is not None:
                return self._direct(call, test.source)
        entry = self._entry() if test.kind != "assert" else self.spec.entry_point
        assert self.submission is not None
        wanted = wanted_names((test.source, own.setup), own.trusted, entry)
        plan = {
            "kind": test.kind,
            "source": test.source,
            "setup": own.setup,
            "prompt": own.prompt,
            "names": rules(wanted, entry, self.submission.names(), cast("Any", self.program.tree)),
            "wanted": wanted,
            "row": own.row,
            "row_classes": own.row_classes,
            "entry_point": entry,
            "cases": test.cases,
            "seed": test.seed,
        }
        try:
            outcome = self._bench().call("run_test", (plan,))
        except Unsupported as error:
            if self.num_calls == 0:
                raise VerifierError(message("spec tests", str(error), "smaller tests")) from None
            raise Fault("unsupported", f"it returned what cannot be sent: {error}") from None
        finally:
            if self.conversation is not None:
                self.conversation.abandon()
                self.conversation = None
        if self.fault is not None:
            raise self.fault
        if outcome.status != "ok":
            raise Fault(_kind_of(outcome), f"the test's own code: {_words(outcome)}")
        said, why = outcome.value
        if said == "broken":
            raise VerifierError(
                message(
                    "spec tests",
                    why,
                    "tests that call the program and need the standard library only",
                )
            )
        return Result(said == "passed", why)

    def _direct(self, call: DirectCall, source: str) -> Result:
        outcome = self._call("call", call.name, call.args, call.kwargs)
        if outcome.status != "ok":
            return Result(False, f"{_words(outcome)}: {source[:SHOWN]}")
        if equal(outcome.value, call.expected):
            return Result(True)
        return Result(False, f"returned {_shown(outcome.value)}: {source[:SHOWN]}")

    def _conversed(self, what: str, place: Any, args: Any, kwargs: Any) -> Outcome | Question:
        """Do what the tests ask: the outcome, or a question that the submission has first."""
        if what == "resume":
            assert self.conversation is not None
            return self._turn(self.conversation.resume(rehashed(args)))
        if self.conversation is not None:
            text = "a function that a test passes on cannot call the program"
            return Outcome("exception", error_type="RuntimeError", error=f"RuntimeError: {text}")
        assert self.bench is not None
        self.lent = holds_objects_of(self.bench.origin, (args, kwargs)) or self.lent
        if not self.lent:
            return self._call(what, place, rehashed(args), rehashed(kwargs))
        args, kwargs = rehashed(args), rehashed(kwargs)
        self.conversation = Conversation(lambda: self._call(what, place, args, kwargs))
        return self._turn(self.conversation.start())

    def _turn(self, turn: Outcome | Question) -> Outcome | Question:
        if isinstance(turn, Outcome):
            self.conversation = None
        return turn

    def _asked(self, name: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Answer a question of the submission's process: only about what a test passed to it."""
        if self.conversation is None:
            raise SubmissionError("NameError", "NameError: name 'call_out' is not defined")
        target = args[0] if isinstance(name, str) and args else name
        if (
            not isinstance(target, Handle)
            or self.bench is None
            or target.origin != self.bench.origin
        ):
            raise SubmissionError("TypeError", "TypeError: no object of the test")
        self.num_calls += 1
        if self.num_calls > MAX_CALLS:
            raise Fault("timeout", f"more than {MAX_CALLS} calls in a test")
        return self.conversation.ask((name, args, kwargs))

    def _answer(self, what: Any, asked: tuple[Any, ...], none: dict[str, Any]) -> dict[str, Any]:
        """Answer a question of the tests' process."""
        if what not in ("call", "method", "get", "value", "resume") or len(asked) != 3:
            raise SubmissionError("TypeError", "TypeError: an object of the program's own")
        place, args, kwargs = asked
        reply = dict(_STOPPED)
        if self.fault is not None:
            return reply
        try:
            outcome = self._conversed(what, place, args, kwargs)
        except Fault as fault:
            self.fault, self.conversation = fault, None
            return reply
        if not isinstance(outcome, Outcome):
            return reply | {"status": "question", "value": unhashed(outcome)}
        printed = outcome.stdout[: MAX_PRINTED - self.num_printed]
        self.num_printed += len(printed)
        reply |= {"status": outcome.status, "printed": printed}
        if outcome.status == "ok":
            reply["value"] = unhashed(outcome.value)
            reply["args"] = unhashed(outcome.args_after)
            reply["kwargs"] = unhashed(outcome.kwargs_after)
        else:
            name = outcome.error_type
            tree = cast("Any", self.program.tree)
            own = name not in EXCEPTIONS or kinds_of(tree).get(name) == "class"
            bases = exception_bases(name, tree) if own else (name,)
            reply["error"] = (name, bases, outcome.error.removeprefix(f"{name}: "), own)
        return reply


_STOPPED: dict[str, Any] = {
    "status": "stopped",
    "value": None,
    "args": None,
    "kwargs": None,
    "printed": "",
    "error": None,
}


_START = """
import marshal, sys, types


def start(code):
    *modules, main = marshal.loads(code)
    for name, each in modules:
        sys.modules[name] = types.ModuleType(name)
        exec(each, vars(sys.modules[name]))
    exec(main[1], globals())
"""
_MODULES = ("crossing", "stand_ins", "test_process")


@cache
def _bench_code() -> bytes:
    """Return the program of the tests' process, compiled: parsing it would take longer than a test."""
    modules: list[tuple[str, Any]] = []
    for name in _MODULES:
        source = Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8")
        modules.append((name, compile(source, f"<{name}>", "exec", optimize=2)))
    return marshal.dumps(modules)


def _kind_of(outcome: Outcome) -> str:
    return outcome.status if outcome.status in FATAL else ""


def _words(outcome: Outcome) -> str:
    if outcome.status in ("exception", "compile_error"):
        return outcome.error[:SHOWN]
    return f"{outcome.status}: {outcome.error[:SHOWN]}"


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # an integer of too many digits
        text = f"a value of type {type(value).__name__}"
    return text if len(text) <= SHOWN else text[:SHOWN] + "..."
