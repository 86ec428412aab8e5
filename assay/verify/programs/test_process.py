"""The program of the process that runs tests; its source is sent there, and it imports no part of Assay.

Nothing of the submission runs here: its names are those of `assay.verify.programs.stand_ins`.
"""

from __future__ import annotations

import ast
import importlib
import math
import random
import sys
import traceback
import types
from collections.abc import Callable, Iterator
from typing import Any

from stand_ins import (  # pyright: ignore[reportMissingImports]
    ASKED,
    ROW_CLASSES,
    TEST_MODULE,
    Opaque,
    OpaqueClass,
    Stopped,
    ask,
    exception_class,
    function,
)


class Approximately:
    """What `approx` gives: equal to plain numbers near the expected ones, alone or in collections."""

    def __init__(
        self, expected: Any, rel: Any = None, abs: Any = None, nan_ok: bool = False
    ) -> None:
        self.expected, self.relative, self.absolute, self.nan_ok = expected, rel, abs, nan_ok

    def __eq__(self, other: object) -> bool:
        return self._near(other, self.expected)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __bool__(self) -> bool:
        raise AssertionError("approx on its own compares nothing")

    __hash__ = None  # type: ignore[assignment]

    def _near(self, found: Any, expected: Any) -> bool:
        if isinstance(expected, dict):
            return (
                isinstance(found, dict)
                and found.keys() == expected.keys()
                and all(self._near(found[key], each) for key, each in expected.items())
            )
        if isinstance(expected, (list, tuple)):
            return (
                isinstance(found, type(expected))
                and len(found) == len(expected)
                and all(map(self._near, found, expected))
            )
        if not isinstance(expected, (int, float)) or not isinstance(found, (int, float)):
            return not isinstance(found, Opaque) and found == expected
        if math.isnan(expected):
            return self.nan_ok and math.isnan(found)
        relative = self.relative if self.relative is not None else 0.0 if self.absolute else 1e-6
        return math.isclose(
            found,
            expected,
            rel_tol=0.0,
            abs_tol=max(
                0.0 if math.isinf(expected) else relative * abs(expected),
                1e-12 if self.absolute is None else self.absolute,
            ),
        )


def allclose(found: Any, expected: Any, rtol: float = 1e-5, atol: float = 1e-8, **_: Any) -> bool:
    """As numpy's, for plain numbers and nested lists of them."""
    if isinstance(expected, (list, tuple)):
        return (
            isinstance(found, (list, tuple))
            and len(found) == len(expected)
            and all(allclose(*pair, rtol, atol) for pair in zip(found, expected, strict=True))
        )
    if not isinstance(found, (int, float, complex)) or not isinstance(
        expected, (int, float, complex)
    ):
        raise TypeError("allclose of what is no number")
    return found == expected or abs(found - expected) <= atol + rtol * abs(expected)


def assert_allclose(
    found: Any, expected: Any, rtol: float = 1e-7, atol: float = 0.0, **_: Any
) -> None:
    """As numpy.testing's."""
    if not allclose(found, expected, rtol, atol):
        raise AssertionError(f"not close to {expected!r}")


TOOLS: dict[str, Callable[..., Any]] = {
    "approx": Approximately,
    "allclose": allclose,
    "assert_allclose": assert_allclose,
}


def bind(name: str, rule: Any) -> Any:
    """Return what a name of the submission is in a test; see `assay.verify.programs.names`."""
    kind, *rest = rule
    if kind == "class":
        return OpaqueClass(name, rest[0])
    if kind == "exception":
        return exception_class(name, rest[0])
    if kind == "tool":
        return TOOLS[name]
    if kind == "import":
        found = importlib.import_module(rest[0])
        return getattr(found, rest[1]) if rest[1] else found
    if kind == "value":
        return ask("value", name, ())
    return function(name)


def entry(path: str, space: dict[str, Any]) -> Any:
    """Return the candidate: a name, ``Class.method``, or ``Class().method``."""
    first, *rest = path.split(".")
    name = first.removesuffix("()")
    if name not in space:
        raise NameError(f"name {name!r} is not defined")
    found = space[name]
    if first.endswith("()"):
        found = found()
    for part in rest:
        found = getattr(found, part)
    return found


class _Counted(ast.NodeTransformer):
    """Count the asserts that run; an expression that compares, on its own, is one."""

    def visit_Assert(self, node: ast.Assert) -> Any:
        counted = ast.Expr(ast.Call(ast.Name("__asserted__", ast.Load()), [], []))
        return [ast.fix_missing_locations(ast.copy_location(counted, node)), node]

    def visit_Module(self, node: ast.Module) -> Any:
        for place, each in enumerate(node.body):
            if isinstance(each, ast.Expr) and _compares(each.value):
                node.body[place] = ast.copy_location(ast.Assert(each.value, None), each)
        return self.generic_visit(node)


def _compares(node: ast.expr) -> bool:
    negated = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id in ("all", "any")
    return isinstance(node, (ast.Compare, ast.BoolOp)) or negated


def _loaded(tree: ast.Module) -> set[str]:
    """Return the names that a test reads, and the attributes: what it calls itself is among them."""
    nodes = list(ast.walk(tree))
    names = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    return names | {n.attr for n in nodes if isinstance(n, ast.Attribute)}


def _left_over(tree: ast.Module, space: dict[str, Any]) -> Iterator[Callable[[], Any]]:
    """Yield the tests that a test's code defines and does not itself run."""
    loaded = _loaded(tree)
    unittest: Any = sys.modules.get("unittest")
    for node in tree.body:
        found = space.get(getattr(node, "name", ""))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
            spec = node.args
            needed = len(spec.posonlyargs) + len(spec.args) - len(spec.defaults)
            if node.name not in loaded and not needed and isinstance(found, types.FunctionType):
                yield found
        elif isinstance(node, ast.ClassDef) and isinstance(found, type):
            if unittest is not None and issubclass(found, unittest.TestCase):
                if not loaded & {"TextTestRunner", "main", "run", "debug"}:
                    yield lambda case=found: _run_case(case)
            elif node.name.startswith("Test") and node.name not in loaded:
                for name in vars(found):
                    if name.startswith("test") and callable(getattr(found, name)):
                        yield lambda case=found, name=name: getattr(case(), name)()


def _run_case(case: Any) -> bool:
    import unittest  # slow, and the test has done it

    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(case).run(result)
    ASKED["asserts"] += result.testsRun
    for _, text in (*result.failures, *result.errors):
        raise AssertionError(text.strip().rpartition("\n")[2])
    return result.wasSuccessful()


def _checked(result: Any) -> None:
    if result is False:
        raise AssertionError("it returned False")


def _row_classes(source: str, names: Any) -> None:
    """Execute the row's own code once more, for its classes that the submission has a copy of."""
    ROW_CLASSES.clear()
    if not names:
        return
    space: dict[str, Any] = {"__name__": TEST_MODULE}
    try:
        exec(source, space)
    except Exception:  # it may need what only the submission has
        return
    for name in names:
        found = space.get(name)
        if isinstance(found, type) and all(
            each is object or each.__module__ == TEST_MODULE for each in found.__mro__
        ):
            ROW_CLASSES[name] = found


def run_test(plan: dict[str, Any]) -> tuple[str, str]:
    """Run one test and return ("passed", ""), ("failed", why), or ("broken", why): the row's own fault."""
    random.seed(0)
    ASKED.update(calls=0, import_errors=0, asserts=0)
    module = types.ModuleType(TEST_MODULE)
    sys.modules[TEST_MODULE] = module
    sys.argv = ["test"]
    space = vars(module)
    try:
        _run(plan, space)
    except Stopped:
        return "failed", "the program ended"
    except BaseException as error:  # whatever a test does
        if isinstance(error, SystemExit) and not error.code and ASKED["calls"]:
            return "passed", ""  # of unittest.main, say: none of the submission's comes here
        own = isinstance(error, ImportError) and not ASKED["import_errors"]
        return "broken" if own else "failed", _told(error, plan["source"])
    if not ASKED["calls"] and not ASKED["asserts"]:
        if set(plan["wanted"]) <= plan["names"].keys():
            return "broken", "a test that neither calls the program nor asserts anything"
        return "failed", "the program has not what the test calls"
    return "passed", ""


def _asserted() -> None:
    ASKED["asserts"] += 1


def _run(plan: dict[str, Any], space: dict[str, Any]) -> None:
    _row_classes(plan["row"], plan["row_classes"])
    for name, rule in plan["names"].items():
        space[name] = bind(name, rule)
    values = ASKED["calls"]  # of names that are values: reading those judges nothing
    exec(plan["prompt"], space)
    exec(plan["setup"], space)
    space["__asserted__"] = _asserted
    tree = ast.parse(plan["source"])
    if plan["kind"] == "assert":
        exec(compile(_Counted().visit(tree), "<test>", "exec"), space)
        for left in _left_over(ast.parse(plan["source"]), space):
            _checked(left())
    else:
        _Counted().generic_visit(tree)
        exec(compile(tree, "<test>", "exec"), space)
    if plan["kind"] == "check":
        _checked(space["check"](entry(plan["entry_point"], space)))
    elif plan["kind"] == "property":
        for case in range(plan["cases"]):
            rng = random.Random(f"{plan['seed']}/{case}")
            _checked(space["check"](entry(plan["entry_point"], space), rng))
    ASKED["calls"] -= values


def generate(plan: dict[str, Any]) -> list[Any]:
    """Return the arguments of each seeded case."""
    space: dict[str, Any] = {"__name__": TEST_MODULE}
    exec(plan["setup"], space)
    exec(compile(plan["source"], "<test>", "exec"), space)
    return [space["generate"](random.Random(f"{plan['seed']}/{i}")) for i in range(plan["cases"])]


def _told(error: BaseException, source: str) -> str:
    """Return what a test said, and which of its lines was the last to run."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [each.lineno for each in frames if each.filename == "<test>"]
    line = source.split("\n")[(lines[-1] or 1) - 1].strip()[:200] if lines else ""
    try:
        said = str(error)[:300]
    except Exception:  # a test's own error class
        said = ""
    return ": ".join(each for each in (type(error).__name__, said, line) if each)
