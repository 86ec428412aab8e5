"""What a row asks of a program: its tests, and under which rules they run."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, TypeAlias, cast

from assay.errors import VerifierError, message
from assay.types import Problem
from assay.verify.base import Field
from assay.verify.programs.compare import FLOAT_TOLERANCE, STDOUT_RULES
from assay.verify.programs.setup import bound_names, tree_of

Kind: TypeAlias = Literal["assert", "check", "args", "stdin", "property", "generate"]

CREDITS = ("all_or_nothing", "fraction")
FORMS = (
    '{"assert": code}, {"check": code}, {"args": [...], "kwargs": {...}, "expected": value}, '
    '{"stdin": text, "stdout": text}, {"property": code}, {"generate": code, "reference": code}'
)

_KEYS: dict[Kind, tuple[frozenset[str], frozenset[str]]] = {  # needed, also accepted
    "assert": (frozenset(("assert",)), frozenset()),
    "check": (frozenset(("check",)), frozenset()),
    "args": (frozenset(("expected",)), frozenset(("args", "kwargs"))),
    "stdin": (frozenset(("stdout",)), frozenset(("stdin",))),
    "property": (frozenset(("property",)), frozenset(("cases", "seed"))),
    "generate": (frozenset(("generate", "reference")), frozenset(("cases", "seed"))),
}


@dataclass(frozen=True, slots=True)
class CodeTest:
    """One test. source: the code of an assert, check, property or generator.

    outputs: the accepted outputs of a stdin test. cases, seed: of seeded tests.
    """

    kind: Kind
    hidden: bool = False
    source: str = ""
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] | None = None
    expected: Any = None
    stdin: str = ""
    outputs: tuple[str, ...] = ()
    reference: str = ""
    cases: int = 50
    seed: int = 0


@dataclass(frozen=True, slots=True)
class CodeSpec:
    """The tests of a row and its settings; see the fields of the verifier for what each means."""

    tests: tuple[CodeTest, ...]
    entry_point: str
    setup: str
    prompt_code: str
    time_limit: float
    total_time: float
    memory_limit: int
    credit: str
    float_tolerance: float
    stdout_rule: str
    max_program: int
    check_determinism: bool
    unsafe_no_sandbox: bool

    @property
    def entry(self) -> str:
        """The global name that `entry_point` begins with."""
        return self.entry_point.partition(".")[0].removesuffix("()")


def read_spec(problem: Problem) -> CodeSpec:
    """Read the spec of a problem; raises VerifierError for one that is malformed."""
    spec = problem.spec
    where = f"problem {problem.id}: spec"
    for each in FIELDS:
        found = spec.get(each.name)
        if found is None and each.needed:
            raise VerifierError(message(f"{where}.{each.name}", "nothing", each.accepts))
        if found is not None and each.check is not None and not each.check(found):
            raise VerifierError(message(f"{where}.{each.name}", _shown(found), each.accepts))
    tests = [
        _read_test(test, hidden=key == "hidden_tests", where=f"{where}.{key}[{index}]")
        for key in ("tests", "hidden_tests")
        for index, test in enumerate(spec.get(key) or ())
    ]
    if not tests:
        raise VerifierError(message(f"{where}.tests", "no test", "at least one, there or hidden"))
    chosen: dict[str, Any] = {
        each.name: each.default if spec.get(each.name) is None else spec[each.name]
        for each in FIELDS
        if each.name not in ("tests", "hidden_tests")
    }
    chosen["setup"] = code_of(chosen["setup"], f"{where}.setup")
    return CodeSpec(tests=tuple(tests), **chosen)


def _read_test(test: Any, *, hidden: bool, where: str) -> CodeTest:
    if isinstance(test, str):
        test = {"assert": test}
    kind = _kind(test)
    if kind is None:
        raise VerifierError(message(where, _shown(test), FORMS))
    row = cast("dict[str, Any]", test)
    if kind == "stdin":
        outputs = row["stdout"]
        listed = (outputs,) if isinstance(outputs, str) else tuple(outputs)
        return CodeTest(kind, hidden, stdin=row.get("stdin") or "", outputs=listed)
    if kind == "args":
        kwargs = row.get("kwargs") or {}
        return CodeTest(
            kind, hidden, args=row.get("args") or (), kwargs=kwargs, expected=row["expected"]
        )
    sources = [code_of(row[key], f"{where}.{key}") for key in (kind, "reference") if key in row]
    for key, name, source in zip(
        (kind, "reference"), _DEFINES.get(kind, ()), sources, strict=False
    ):
        if not _defines(source, name):
            found = f"code without def {name or '...'}"
            raise VerifierError(
                message(f"{where}.{key}", found, f"code that defines {name or 'it'}")
            )
    return CodeTest(
        kind,
        hidden,
        source=sources[0],
        reference=sources[1] if len(sources) > 1 else "",
        cases=row.get("cases", 50),
        seed=row.get("seed", 0),
    )


def _kind(test: Any) -> Kind | None:
    """Return the form of a test, or None where it has none that is known."""
    if not isinstance(test, dict):
        return None
    row = cast("dict[str, Any]", test)
    for kind, (needed, optional) in _KEYS.items():
        if needed <= row.keys() <= needed | optional:
            return kind if all(_TYPES[key](value) for key, value in row.items()) else None
    return None


def code_of(text: str, where: str) -> str:
    """Return a test's code with plain line ends; raises VerifierError where it does not compile."""
    code = text.replace("\r\n", "\n")
    fault = _fault(code)
    if fault:
        raise VerifierError(message(where, fault, "Python that compiles"))
    return code


_DEFINES: dict[Kind, tuple[str, ...]] = {  # "": a function of any name
    "check": ("check",),
    "property": ("check",),
    "generate": ("generate", ""),
}


@lru_cache(maxsize=4096)
def _defines(code: str, name: str) -> bool:
    """Whether the top level of some code defines a function, or binds its name otherwise."""
    tree = tree_of(code)
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    return bool(functions) if not name else name in functions or name in set(bound_names(tree))


def _fault(code: str) -> str:
    try:
        tree_of(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _shown(value: Any) -> str:
    return repr(value)[:200]


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_code(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _is_integer(low: int, high: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and low <= value <= high


def _is_number(low: float, high: float) -> Callable[[Any], bool]:
    return lambda value: type(value) in (int, float) and low <= value <= high


def _is_stdout(value: Any) -> bool:
    if isinstance(value, list):
        listed = cast("list[Any]", value)
        return bool(listed) and all(isinstance(each, str) for each in listed)
    return isinstance(value, str)


def _is_kwargs(value: Any) -> bool:
    return value is None or isinstance(value, dict)


def _is_args(value: Any) -> bool:
    return value is None or isinstance(value, (list, tuple))


def _is_anything(value: Any) -> bool:
    return True


_TYPES: dict[str, Callable[[Any], bool]] = {
    "assert": _is_code,
    "check": _is_code,
    "property": _is_code,
    "generate": _is_code,
    "reference": _is_code,
    "args": _is_args,
    "kwargs": _is_kwargs,
    "expected": _is_anything,
    "stdin": lambda value: value is None or isinstance(value, str),
    "stdout": _is_stdout,
    "cases": _is_integer(1, 10_000),
    "seed": _is_integer(-(2**63), 2**63),
}


def _are_tests(value: Any) -> bool:
    return isinstance(value, list) and all(
        (_is_code(each) or _kind(each) is not None) and not _is_vacuous(each)
        for each in cast("list[Any]", value)
    )


def _is_vacuous(test: Any) -> bool:
    """Whether an assert-form test, which parses, neither calls, compares nor asserts anything."""
    source = cast("dict[str, Any]", test).get("assert") if isinstance(test, dict) else test
    if not isinstance(source, str):
        return False
    code = source.replace("\r\n", "\n")
    judging = (
        ast.Assert,
        ast.Raise,
        ast.Call,
        ast.Compare,
        ast.Subscript,
        ast.BinOp,
        ast.Attribute,
        ast.With,
    )
    return not _fault(code) and not any(isinstance(n, judging) for n in ast.walk(tree_of(code)))


def _is_entry_point(value: Any) -> bool:
    """A name, ``Class.method`` or ``Class().method``."""
    if not isinstance(value, str):
        return False
    return all(part.removesuffix("()").isidentifier() for part in value.split("."))


FIELDS: tuple[Field, ...] = (
    Field(
        "tests",
        f"a list of {FORMS}; code that asserts or calls something",
        needed=True,
        check=_are_tests,
    ),
    Field("hidden_tests", "as tests; those that no prompt shows", check=_are_tests),
    Field(
        "entry_point",
        "the name of the function under test: f, Class.method or Class().method; none: the last public "
        "function of the program",
        default="",
        check=_is_entry_point,
    ),
    Field(
        "setup",
        "code that runs before each test, in the tests' process (MBPP's test_setup_code); of it, imports and "
        "classes are also there for the program",
        default="",
        check=_is_text,
    ),
    Field(
        "prompt_code",
        "code that the program continues (HumanEval's prompt): its imports and helpers are there for the program, "
        "and a completion that does not define entry_point is the body of its open function",
        default="",
        check=_is_text,
    ),
    Field(
        "time_limit", "CPU seconds for a test, up to 60", default=4.0, check=_is_number(0.01, 60)
    ),
    Field(
        "total_time",
        "CPU seconds for all tests of a completion, up to 600; tests not reached are failed",
        default=20.0,
        check=_is_number(0.01, 600),
    ),
    Field("memory_limit", "MiB, from 16 to 16384", default=512, check=_is_integer(16, 16384)),
    Field("credit", ", ".join(CREDITS), default="all_or_nothing", check=CREDITS.__contains__),
    Field(
        "float_tolerance",
        "the relative tolerance of floats that are compared with expected ones, 0 to 0.1",
        default=FLOAT_TOLERANCE,
        check=_is_number(0, 0.1),
    ),
    Field("stdout_rule", ", ".join(STDOUT_RULES), default="lines", check=STDOUT_RULES.__contains__),
    Field(
        "max_program",
        "characters beyond which the component oversized is 1, up to 100000",
        default=20_000,
        check=_is_integer(1, 100_000),
    ),
    Field(
        "check_determinism",
        "true: a second run must return and print the same, or the component nondeterministic is 1",
        default=False,
        check=_is_bool,
    ),
    Field(
        "unsafe_no_sandbox",
        "true: run programs without isolation where none is possible",
        default=False,
        check=_is_bool,
        from_row=False,
    ),
)
