"""Which names a test takes from the submission, and what stands for each in the tests' process.

A test that would take its tools from the submission could be fooled: the submission replaces ``len`` or
``math.isclose``. So built-in names stay built-in where a test names anything else of the submission,
names of standard modules are those modules, and what the prompt's code defines comes from there.
"""

from __future__ import annotations

import ast
import builtins
import warnings
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, TypeAlias

Rule: TypeAlias = tuple[Any, ...]
"""(function), (class), (value), (exception, bases) or (import, module, attribute)."""

_BUILT_IN = frozenset(vars(builtins))
_TOOLS = frozenset(
    [
        "bisect",
        "cmath",
        "collections",
        "copy",
        "datetime",
        "decimal",
        "fractions",
        "functools",
        "heapq",
        "itertools",
        "json",
        "math",
        "operator",
        "random",
        "re",
        "statistics",
        "string",
        "sys",
        "typing",
    ]
)


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
    where it is the entry point, or the first that is called by a test that names nothing else.
    """
    used = [name for source in sources for name in names_used(source) if name not in trusted]
    entry = entry_point.partition(".")[0].removesuffix("()")
    wanted = [name for name in used if name not in _BUILT_IN or name == entry]
    if not wanted and not entry:
        first = next((name for source in sources for name in _called(source)), "")
        wanted = [first] if first and first not in trusted else []
    return list(dict.fromkeys([*wanted, *([entry] if entry and entry not in trusted else [])]))


def _called(source: str) -> Iterator[str]:
    for node in _in_order(tree_of(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.func.id


def rules(
    wanted: list[str], entry_point: str, kinds: Mapping[str, str], tree: ast.Module
) -> dict[str, Rule]:
    """Say what stands for each wanted name.

    kinds: the submission's global names and what each is. tree: its program, which tells what its
    exceptions inherit and which tools it imports by name. The entry point is always asked, never
    imported: a submission could import one that equals everything.
    """
    found: dict[str, Rule] = {}
    entry = entry_point.partition(".")[0].removesuffix("()")
    tools = imported_tools(tree)
    for name in wanted:
        kind = kinds.get(name)
        if name in _TOOLS and name != entry:
            found[name] = ("import", name, "")
        elif kind == "imported" and name in tools and name != entry:
            found[name] = ("import", tools[name], name)
        elif kind == "class" and (bases := exception_bases(name, tree)):
            found[name] = ("exception", bases)
        elif kind in ("class", "value"):
            found[name] = (kind,)
        elif kind is not None:
            found[name] = ("function",)
    return found


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
