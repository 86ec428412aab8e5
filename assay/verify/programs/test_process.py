"""Main module of the process that runs tests. The source of the module is sent to the process.

No code of the submission runs in the process that runs tests. A test can use names that are defined
neither in the test, nor in its setup, nor by Python. A name that the program does not define is a
tool (`standard_names`), or belongs to the submission and gets a stand-in (`stand_ins`).
"""

from __future__ import annotations

import ast
import builtins
import random
import sys
import traceback
import types
from collections.abc import Callable, Iterator
from typing import Any

from stand_ins import ASKED, TEST_MODULE, Opaque, agent  # pyright: ignore[reportMissingImports]
from standard_names import is_tool, tool  # pyright: ignore[reportMissingImports]


class Names(dict[str, Any]):
    """A dict of built-in names, extended by tools and by names of the submission.

    entry: name of the tested function, which always belongs to the submission.
    """

    def __init__(self, entry: str) -> None:
        super().__init__(vars(builtins))
        self.pop(entry, None)
        self.entry = entry

    def __missing__(self, name: str) -> Any:
        # Python looks up names such as __build_class__ in this namespace, and no submission may
        # provide them.
        if name.startswith("__"):
            raise KeyError(name)
        if name != self.entry and is_tool(name):
            self[name] = found = tool(name)
            return found
        # Access raises NameError if the submission does not define the name.
        found = agent.call_out("get", name)
        if isinstance(found, Opaque):
            self[name] = found
        # A global with plain data counts as a request to the submission, because the test can judge
        # the data.
        # Plain data is not stored, because calls can change a global of the submission.
        else:
            ASKED["calls"] += 1
        return found


def candidate(path: str, space: dict[str, Any]) -> Any:
    """Return the object under test: a name, ``Class.method``, or ``Class().method``."""
    first, *rest = path.split(".")
    name = first.removesuffix("()")
    found = space[name] if name in space else space["__builtins__"][name]
    if first.endswith("()"):
        found = found()
    for part in rest:
        found = getattr(found, part)
    return found


def asserting(tree: ast.Module) -> ast.Module:
    """Turn each comparison that is a statement of its own into an assert."""
    for place, each in enumerate(tree.body):
        if isinstance(each, ast.Expr) and _compares(each.value):
            tree.body[place] = ast.copy_location(ast.Assert(each.value, None), each)
    return tree


def _compares(node: ast.expr) -> bool:
    negated = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id in ("all", "any")
    return isinstance(node, (ast.Compare, ast.BoolOp)) or negated


def tests_not_run(tree: ast.Module, space: dict[str, Any]) -> Iterator[Callable[[], Any]]:
    """Yield test functions and test classes that a test's code defines but does not run."""
    nodes = list(ast.walk(tree))
    loaded = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    loaded |= {n.attr for n in nodes if isinstance(n, ast.Attribute)}
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


def _run_case(case: Any) -> None:
    # unittest is imported here, because the import is slow and the test's own code has done it.
    import unittest

    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(case).run(result)
    for _, text in (*result.failures, *result.errors):
        raise AssertionError(text.strip().rpartition("\n")[2])


def _checked(result: Any) -> None:
    if result is False:
        raise AssertionError("it returned False")


def run_test(plan: dict[str, Any]) -> tuple[str, str]:
    """Run one test. Return (status, reason).

    status: passed, failed, unsent, or broken (if the row is at fault).
    """
    # Each test has the same random numbers, independent of the tests that ran before.
    random.seed(0)
    ASKED["calls"] = 0
    agent.refused = ""
    module = types.ModuleType(TEST_MODULE)
    sys.modules[TEST_MODULE] = module
    sys.argv = ["test"]
    said, why = "passed", ""
    try:
        _run(plan, vars(module))
    except BaseException as error:  # a test may raise anything
        if not isinstance(error, SystemExit) or error.code or not ASKED["calls"]:
            # A missing module that the test itself imports is a fault of the row, not of the
            # submission.
            own = isinstance(error, ImportError) and not isinstance(error, agent.error)
            said, why = "broken" if own else "failed", _error_line(error, plan["source"])
    if agent.refused:
        return "unsent", agent.refused
    # A test that never uses the program would pass for every program.
    if said == "passed" and not ASKED["calls"]:
        return "broken", "a test that neither calls the program nor asks for a value of it"
    return said, why


def _run(plan: dict[str, Any], space: dict[str, Any]) -> None:
    space["__builtins__"] = Names(plan["entry"])
    agent.shared, agent.classes = frozenset(plan["shared"]), space
    for part in plan["parts"]:
        exec(part, space)
    tree = ast.parse(plan["source"])
    if plan["kind"] == "assert":
        exec(compile(asserting(tree), "<test>", "exec"), space)
        for left in tests_not_run(tree, space):
            _checked(left())
        return
    exec(compile(tree, "<test>", "exec"), space)
    if plan["kind"] == "check":
        _checked(space["check"](candidate(plan["candidate"], space)))
        return
    for case in range(plan["cases"]):
        # Each case has its own random generator, so that a case stays the same if the number of
        # cases changes.
        rng = random.Random(f"{plan['seed']}/{case}")
        _checked(space["check"](candidate(plan["candidate"], space), rng))


def generate(plan: dict[str, Any]) -> list[Any]:
    """Return the arguments that the row's generator makes for each seeded case."""
    space: dict[str, Any] = {"__name__": TEST_MODULE}
    exec(plan["setup"], space)
    exec(compile(plan["source"], "<test>", "exec"), space)
    return [space["generate"](random.Random(f"{plan['seed']}/{i}")) for i in range(plan["cases"])]


def _error_line(error: BaseException, source: str) -> str:
    """Return a test's error message with the last executed line of its source."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [each.lineno for each in frames if each.filename == "<test>"]
    line = source.split("\n")[(lines[-1] or 1) - 1].strip()[:200] if lines else ""
    try:
        said = str(error)[:300]
    except Exception:  # The `__str__` of a test's exception class can raise.
        said = ""
    return ": ".join(each for each in (type(error).__name__, said, line) if each)
