"""Read the tests of a row, and the settings with which the tests run."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import NoneType
from typing import Any, Literal, TypeAlias, cast

from assay.errors import VerifierError, message
from assay.host.fields import Field
from assay.types import Problem
from assay.verify.programs.compare import FLOAT_TOLERANCE, STDOUT_RULES
from assay.verify.programs.program import bound_names
from assay.verify.programs.setup import tree_of
from assay.verify.sandbox.packages import are_packages

Check: TypeAlias = Callable[[Any], bool]
Kind: TypeAlias = Literal["assert", "check", "args", "stdin", "property", "generate"]

CREDITS = ("all_or_nothing", "fraction")
FORMS = (
    '{"assert": code}, {"check": code}, {"args": [...], "kwargs": {...}, "expected": value}, '
    '{"stdin": text, "stdout": text}, {"property": code}, {"generate": code, "reference": code}'
)


@dataclass(frozen=True, slots=True)
class CodeTest:
    """One test.

    hidden: whether the test is absent from every prompt.
    source: code of an assert, a check, a property or a generator.
    args, kwargs, expected: input and return value of an ``args`` test.
    outputs: accepted outputs of a ``stdin`` test.
    reference: code of the reference function of a ``generate`` test.
    cases, seed: number of cases and seed of a ``property`` or ``generate`` test.
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
    """The tests of a row, and the settings of these tests. `FIELDS` describes the attributes."""

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
    packages: tuple[str, ...] = ()

    @property
    def entry(self) -> str:
        """The global name at the start of `entry_point`."""
        return self.entry_point.partition(".")[0].removesuffix("()")


def read_spec(problem: Problem) -> CodeSpec:
    """Parse the spec of a problem. Raises VerifierError for a malformed spec."""
    where = f"problem {problem.id}: spec"
    chosen = {each.name: each.read(problem) for each in FIELDS}
    tests = [
        _read_test(test, hidden=key == "hidden_tests", where=f"{where}.{key}[{index}]")
        for key in ("tests", "hidden_tests")
        for index, test in enumerate(chosen.pop(key) or ())
    ]
    if not tests:
        raise VerifierError(message(f"{where}.tests", "no test", "at least one, there or hidden"))
    chosen["packages"] = tuple(chosen["packages"])
    chosen["setup"] = _code(chosen["setup"], f"{where}.setup")
    return CodeSpec(tests=tuple(tests), **chosen)


def _read_test(test: Any, *, hidden: bool, where: str) -> CodeTest:
    row = _row(test)
    kind = _kind(row)
    if kind is None or row is None:
        raise VerifierError(message(where, repr(test)[:200], FORMS))
    if kind == "stdin":
        outputs = row["stdout"]
        listed = (outputs,) if isinstance(outputs, str) else tuple(outputs)
        return CodeTest(kind, hidden, stdin=row.get("stdin") or "", outputs=listed)
    if kind == "args":
        args, kwargs = row.get("args") or (), row.get("kwargs") or {}
        return CodeTest(kind, hidden, args=args, kwargs=kwargs, expected=row["expected"])
    sources = {key: _code(row[key], f"{where}.{key}") for key in _FORMS[kind][0]}
    for key, code in sources.items():
        name = {"check": "check", "property": "check", "generate": "generate", "reference": ""}
        if not _defines(code, name.get(key)):
            found, wanted = f"code without def {name[key] or '...'}", name[key] or "it"
            raise VerifierError(message(f"{where}.{key}", found, f"code that defines {wanted}"))
    more = {key: row[key] for key in ("cases", "seed") if key in row}
    return CodeTest(kind, hidden, sources[kind], reference=sources.get("reference", ""), **more)


def _row(test: Any) -> dict[str, Any] | None:
    if isinstance(test, str):
        return {"assert": test}
    return cast("dict[str, Any]", test) if isinstance(test, dict) else None


def _kind(row: dict[str, Any] | None) -> Kind | None:
    """Return the kind of a test by its keys.

    The result is None if the keys or values of the test are unknown or invalid.
    """
    if row is None:
        return None
    for kind, (needed, optional) in _FORMS.items():
        if needed.keys() <= row.keys() <= needed.keys() | optional.keys():
            checks = needed | optional
            return kind if all(checks[key](value) for key, value in row.items()) else None
    return None


def _code(text: str, where: str) -> str:
    """Return a row's code with normalized line ends.

    Raises VerifierError if the row's code does not compile.
    """
    code = text.replace("\r\n", "\n")
    if fault := _fault(code):
        raise VerifierError(message(where, fault, "Python that compiles"))
    return code


@lru_cache(maxsize=4096)
def _defines(code: str, name: str | None) -> bool:
    """Return whether code binds ``name`` at its top level.

    name: name of the required function; "" stands for any function. None accepts any code.
    """
    tree = tree_of(code)
    functions = any(isinstance(node, ast.FunctionDef) for node in tree.body)
    return name is None or (name in set(bound_names(tree)) if name else functions)


def _fault(code: str) -> str:
    try:
        tree_of(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _of(*kinds: type) -> Check:
    return lambda value: isinstance(value, kinds)


def _within(low: float, high: float, *kinds: type) -> Check:
    # The exact type is required, because True and False are ints in Python.
    return lambda value: type(value) in kinds and low <= value <= high


def _is_code(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_stdout(value: Any) -> bool:
    listed = cast("list[Any]", value if isinstance(value, list) else [value])
    return bool(listed) and all(isinstance(each, str) for each in listed)


_SEEDED = {"cases": _within(1, 10_000, int), "seed": _within(-(2**63), 2**63, int)}
# Values are (required keys, optional keys) of each kind of test, where each key has a check of its
# value.
_FORMS: dict[Kind, tuple[dict[str, Check], dict[str, Check]]] = {
    "assert": ({"assert": _is_code}, {}),
    "check": ({"check": _is_code}, {}),
    "args": (
        {"expected": _of(object)},
        {"args": _of(list, tuple, NoneType), "kwargs": _of(dict, NoneType)},
    ),
    "stdin": ({"stdout": _is_stdout}, {"stdin": _of(str, NoneType)}),
    "property": ({"property": _is_code}, _SEEDED),
    "generate": ({"generate": _is_code, "reference": _is_code}, _SEEDED),
}


def _are_tests(value: Any) -> bool:
    return isinstance(value, list) and all(
        _kind(row := _row(each)) is not None and not _is_vacuous((row or {}).get("assert", ""))
        for each in cast("list[Any]", value)
    )


_JUDGING = (ast.Assert, ast.Raise, ast.Call, ast.Compare, ast.Subscript, ast.BinOp, ast.Attribute)


def _is_vacuous(source: str) -> bool:
    """Return whether code parses but has no call, comparison or assertion."""
    code = source.replace("\r\n", "\n")
    if not code or _fault(code):
        return False
    # A damaged row can have a bare constant as a test, which every program would pass.
    return not any(isinstance(node, (*_JUDGING, ast.With)) for node in ast.walk(tree_of(code)))


def _is_entry_point(value: Any) -> bool:
    """Return whether a value is a name, ``Class.method`` or ``Class().method``."""
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
    Field("hidden_tests", "as tests; no prompt shows these tests", check=_are_tests),
    Field(
        "entry_point",
        "the name of the function under test: f, Class.method or Class().method; none: the last "
        "public function of the program",
        default="",
        check=_is_entry_point,
    ),
    Field(
        "setup",
        "code that runs before each test, in the tests' process (MBPP's test_setup_code); the "
        "program can also use the code's imports and classes",
        default="",
        check=_of(str),
    ),
    Field(
        "prompt_code",
        "code that the program continues (HumanEval's prompt): the program can use its imports and "
        "helpers, and a completion that does not define entry_point is the body of the function "
        "that the code leaves open",
        default="",
        check=_of(str),
    ),
    Field(
        "time_limit",
        "CPU seconds for a test, up to 60",
        default=4.0,
        check=_within(0.01, 60, int, float),
    ),
    Field(
        "total_time",
        "CPU seconds for all tests of a completion, up to 600; tests that are not reached fail",
        default=20.0,
        check=_within(0.01, 600, int, float),
    ),
    Field("memory_limit", "MiB, from 16 to 16384", default=512, check=_within(16, 16384, int)),
    Field("credit", ", ".join(CREDITS), default="all_or_nothing", check=CREDITS.__contains__),
    Field(
        "float_tolerance",
        "relative tolerance between a float and an expected float, 0 to 0.1",
        default=FLOAT_TOLERANCE,
        check=_within(0, 0.1, int, float),
    ),
    Field("stdout_rule", ", ".join(STDOUT_RULES), default="lines", check=STDOUT_RULES.__contains__),
    Field(
        "max_program",
        "characters above which the component oversized is 1, up to 100000",
        default=20_000,
        check=_within(1, 100_000, int),
    ),
    Field(
        "check_determinism",
        "true: a second run must return and print the same, or the component nondeterministic is 1",
        default=False,
        check=_of(bool),
    ),
    Field(
        "unsafe_no_sandbox",
        "true: run programs without isolation where none is possible",
        default=False,
        check=_of(bool),
        from_row=False,
    ),
    Field(
        "packages",
        "installed packages that programs and tests may import, such as numpy; their dependencies "
        "are included, and no other package can be imported",
        default=(),
        check=are_packages,
        from_row=False,
    ),
)
