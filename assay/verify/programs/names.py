"""Which names a test takes from the submission, and what stands for each in the tests' process.

A test that would take its tools from the submission could be fooled: the submission replaces ``len`` or
``math.isclose``. So built-in names stay built-in where a test names anything else of the submission,
names of standard modules are those modules, and what the prompt's code defines comes from there.
"""

from __future__ import annotations

import ast
import builtins
import collections
import functools
import itertools
import math
import operator
import statistics
import warnings
from collections.abc import Container, Iterator
from functools import lru_cache
from typing import Any, TypeAlias

Rule: TypeAlias = tuple[Any, ...]
"""(function), (class, heirs), (value), (exception, bases), (tool) or (import, module, attribute)."""

_BUILT_IN = frozenset(vars(builtins))
_TOOLS = frozenset(
    [
        "bisect",
        "cmath",
        "contextlib",
        "collections",
        "copy",
        "dataclasses",
        "datetime",
        "decimal",
        "fractions",
        "functools",
        "heapq",
        "io",
        "itertools",
        "json",
        "math",
        "numpy",
        "operator",
        "os",
        "pytest",
        "random",
        "re",
        "statistics",
        "string",
        "sys",
        "time",
        "types",
        "typing",
        "unittest",
    ]
)
_SHORT = {"np": "numpy"}
_TEST_TOOLS = frozenset(("approx", "allclose", "assert_allclose"))
"""Names of other packages' that the tests' process has its own of."""
_MAKERS = frozenset(("namedtuple", "make_dataclass", "Enum", "IntEnum", "Flag", "IntFlag", "type"))


def _public(module: Any) -> list[str]:
    return list(getattr(module, "__all__", None) or [n for n in dir(module) if n[0] != "_"])


_STANDARD: dict[str, str] = {  # well-known tools that a test may use without importing them
    name: module.__name__
    for module in (operator, itertools, collections, statistics, functools, math)
    for name in _public(module)
    if name not in _BUILT_IN
}


@lru_cache(maxsize=4096)
def tree_of(source: str) -> ast.Module:
    """Return the syntax tree of a row's code, which nobody may change; warnings are its author's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(source)


@lru_cache(maxsize=4096)
def names_used(source: str) -> tuple[str, ...]:
    """Return the names that code reads and does not itself bind at its top level, in order of place."""
    tree = tree_of(source)
    bound = set(bound_names(tree))
    found: dict[str, None] = {}
    for node in _in_order(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id not in bound:
            found[node.id] = None
    return tuple(found)


def _in_order(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _in_order(child)


def bound_names(tree: ast.Module) -> Iterator[str]:
    """Yield the names that the top level of a module binds."""
    for node in tree.body:
        yield from _bound_by(node)


def _bound_by(node: ast.AST) -> Iterator[str]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield node.name
        return
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from ((alias.asname or alias.name).partition(".")[0] for alias in node.names)
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    if isinstance(node, ast.ExceptHandler) and node.name:
        yield node.name
    if not isinstance(node, ast.Lambda):
        for child in ast.iter_child_nodes(node):
            yield from _bound_by(child)


def wanted_names(sources: tuple[str, ...], trusted: frozenset[str], entry_point: str) -> list[str]:
    """Return the names that a test's code may take from the submission.

    trusted: those that the setup or the prompt's code defines. A built-in name is among them only
    where it is the entry point, or the first that is called by a test that names nothing else; so with
    those of well-known tools, which else are the standard library's.
    """
    used = [name for source in sources for name in names_used(source) if name not in trusted]
    entry = entry_point.partition(".")[0].removesuffix("()")
    wanted = [name for name in used if name not in _BUILT_IN or name == entry]
    if not entry and all(map(is_tool, wanted)):
        first = next((name for source in sources for name in _called(source)), "")
        asked = [first] if first and first not in trusted else []
        wanted = [*asked, *wanted]
    return list(dict.fromkeys([*wanted, *([entry] if entry and entry not in trusted else [])]))


def _called(source: str) -> Iterator[str]:
    for node in _in_order(tree_of(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.func.id


def is_tool(name: str) -> bool:
    """Whether a name is a module's or tool's that tests have from the standard library."""
    return name in _TOOLS or name in _STANDARD or name in _TEST_TOOLS or name in _SHORT


def rules(
    wanted: list[str], entry_point: str, present: Container[str], tree: ast.Module
) -> dict[str, Rule]:
    """Say what stands for each wanted name.

    tree: the submission's program, which tells what each name is: its process could say anything.
    present: the global names that its process says it has. The entry point is always asked, never
    imported: a submission could import one that equals everything. Where there is none, that is the
    first wanted name if all of them are tools'.
    """
    found: dict[str, Rule] = {}
    entry = entry_point.partition(".")[0].removesuffix("()")
    if not entry and wanted and all(map(is_tool, wanted)) and wanted[0] not in _TOOLS:
        entry = wanted[0]
    tools, kinds = imported_tools(tree), kinds_of(tree)
    for name in wanted:
        kind = kinds.get(name)
        tool = name != entry
        if tool and name in _TOOLS:
            found[name] = ("import", name, "")
        elif tool and name in _SHORT:
            found[name] = ("import", _SHORT[name], "")
        elif tool and name in _TEST_TOOLS:
            found[name] = ("tool",)
        elif tool and name in _STANDARD:
            found[name] = ("import", _STANDARD[name], name)
        elif tool and kind == "import" and name in tools:
            found[name] = ("import", tools[name], name)
        elif kind == "class" and (bases := exception_bases(name, tree)):
            found[name] = ("exception", bases)
        elif kind == "class":
            found[name] = (kind, heirs_of(name, tree))
        elif kind is not None:
            found[name] = ("value",) if kind == "value" else ("function",)
        elif name in present:
            found[name] = ("value",)
    return found


@lru_cache(maxsize=256)
def kinds_of(tree: ast.Module) -> dict[str, str]:
    """Return {name: class, function, import or value} of what a module's top level binds.

    A name that is bound as different things is a function: that is trusted least.
    """
    found: dict[str, str] = {}
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop()
        names: list[str] = []
        kind = "value"
        if isinstance(node, ast.ClassDef):
            names, kind = [node.name], "class"
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            names, kind = [node.name], "function"
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [(alias.asname or alias.name).partition(".")[0] for alias in node.names]
            kind = "import"
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [each.id for each in targets if isinstance(each, ast.Name)]
            kind = _kind_of(node.value)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names = [node.id]
        for name in names:
            found[name] = kind if found.get(name, kind) == kind else "function"
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            waiting += [
                each
                for each in ast.walk(node)
                if isinstance(each, ast.Name) and each.id not in names
            ]
        elif kind == "value" and not isinstance(node, (ast.Lambda, *_COMPREHENSIONS)):
            waiting += ast.iter_child_nodes(node)
    return found


_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def _kind_of(value: ast.expr | None) -> str:
    """Return what an assigned expression is: a call of a maker of classes is a class."""
    if isinstance(value, ast.Lambda):
        return "function"
    if isinstance(value, ast.Call):
        maker = value.func
        name = maker.id if isinstance(maker, ast.Name) else getattr(maker, "attr", "")
        if name in _MAKERS and (name != "type" or len(value.args) == 3):
            return "class"
    return "value"


def heirs_of(name: str, tree: ast.Module) -> tuple[str, ...]:
    """Return the names of a program's classes that inherit a class."""
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    heirs: dict[str, None] = {name: None}
    for node in classes:  # a class stands after those that it inherits
        if any(isinstance(base, ast.Name) and base.id in heirs for base in node.bases):
            heirs[node.name] = None
    return tuple(each for each in heirs if each != name)


def imported_tools(tree: ast.Module) -> dict[str, str]:
    """Return {name: module} of ``from module import name`` for modules that tests may use."""
    return {
        alias.name: node.module
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module in _TOOLS
        for alias in node.names
        if alias.asname in (None, alias.name)
    }


def exception_bases(name: str, tree: ast.Module) -> tuple[str, ...]:
    """Return the built-in exceptions that a class of a program inherits, nearest first; () for none."""
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    found: list[str] = []
    seen: set[str] = set()
    waiting = [name]
    while waiting:
        current = waiting.pop(0)
        if current in seen:
            continue
        seen.add(current)
        if current in classes:
            waiting += [base.id for base in classes[current].bases if isinstance(base, ast.Name)]
        elif isinstance(kind := getattr(builtins, current, None), type):
            found += [current] if issubclass(kind, Exception) else []
    return tuple(found)
