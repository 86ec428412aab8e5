"""Divide a row's code into code for the program's process and code for the tests' process."""

from __future__ import annotations

import ast
import builtins
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from assay.verify.programs.program import bound_names, find_block, parse
from assay.verify.programs.standard_names import is_tool


@dataclass(frozen=True, slots=True)
class TestCode:
    """Code that the tests' process runs before a test.

    parts: the prompt's code, and the setup's code.
    names: names that the prompt's code and the setup define.
    shared: names of classes that the program has too. Objects of shared classes are sent with their
        attributes.
    """

    # Without this setting, pytest would collect the class, because of its name.
    __test__ = False

    parts: tuple[str, str]
    names: frozenset[str]
    shared: tuple[str, ...]


@lru_cache(maxsize=4096)
def tree_of(source: str) -> ast.Module:
    """Return the cached syntax tree of a row's code. Callers must not modify it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(source)


def for_program(setup: str, prompt_code: str, text: str) -> str:
    """Return the code that runs before the program: a part of the row's setup, and the code in the
    prompt.

    The program gets two parts of the setup: its imports, and the classes that the program names.
    The rest of the setup could reveal expected values.
    """
    return "\n".join(each for each in (_known_setup(setup, text), prompt_code) if each)


def for_tests(setup: str, prompt_code: str, entry: str, text: str) -> TestCode:
    """Return the code that runs before a test: the prompt's code and the setup.

    The entry point, classes that the program completes, and shared classes that are not plain are
    removed. The prompt's own functions stay, so a program that replaces a helper function replaces
    the helper only for itself.
    """
    return _for_tests(setup, prompt_code, entry, _known_setup(setup, text))


@lru_cache(maxsize=1024)
def _for_tests(setup: str, prompt_code: str, entry: str, known: str) -> TestCode:
    theirs = tree_of(known).body
    prompt = parse(closed(prompt_code))[0] or ast.Module([], [])
    classes = [each for each in (*theirs, *prompt.body) if isinstance(each, ast.ClassDef)]
    shared: list[str] = []
    for node in classes:
        if node.name != entry and _is_plain(node, shared):
            shared.append(node.name)
    left_out = {entry, *(each.name for each in classes)} - {"", *shared}
    kept = [
        ast.Module([n for n in part.body if getattr(n, "name", "") not in left_out], [])
        for part in (prompt, tree_of(setup))
    ]
    names = frozenset(name for part in kept for name in bound_names(part))
    return TestCode((ast.unparse(kept[0]), ast.unparse(kept[1])), names, tuple(shared))


def _is_plain(node: ast.ClassDef, plain: list[str]) -> bool:
    """Return whether a class is complete and inherits only from ``plain`` classes."""
    functions = [each for each in node.body if isinstance(each, ast.FunctionDef)]
    unfinished = any(
        # A body of `raise NotImplementedError` also leaves the method to the program.
        is_open(each) or (len(each.body) < 3 and isinstance(each.body[-1], ast.Raise))
        for each in functions
    )
    bases = [each.id if isinstance(each, ast.Name) else "" for each in node.bases]
    return not unfinished and not node.keywords and set(bases) <= {"object", *plain}


@lru_cache(maxsize=1024)
def _known_setup(setup: str, text: str) -> str:
    """Return a setup's imports, and the classes of the setup that a program's text names."""
    words = set(re.findall(r"\w+", text)) if setup else set[str]()
    kept: list[str] = []
    for node in tree_of(setup).body:
        # A missing module is ignored, because the tests report the missing module as the row's
        # fault.
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            kept.append(f"try:\n    {ast.unparse(node)}\nexcept ImportError:\n    pass")
        elif isinstance(node, ast.ClassDef) and node.name in words:
            kept.append(ast.unparse(node))
    return "\n".join(kept)


def closed(prompt_code: str) -> str:
    """Return the code in a prompt as a valid module.

    If the prompt's last function has no body, the function gets ``pass``.
    """
    if not prompt_code or parse(prompt_code)[0] is not None:
        return prompt_code
    last = [line for line in prompt_code.rstrip().split("\n") if line.strip()][-1]
    indent = len(last) - len(last.lstrip()) + 4
    return prompt_code.rstrip() + "\n" + " " * indent + "pass\n"


@lru_cache(maxsize=256)
def prompt_code_of(prompt: str, entry: str) -> str:
    """Return the code that a prompt asks to continue, or "".

    The prompt's code is the whole prompt or its last fenced block. The prompt's code must be Python
    that ends with the entry point as a function without a body (HumanEval's format).
    """
    if not entry or entry not in prompt:
        return ""
    for code in (prompt, find_block(prompt) or ""):
        tree = parse(closed(code))[0] if entry in code else None
        if tree is None or not tree.body:
            continue
        last = tree.body[-1]
        if isinstance(last, ast.FunctionDef) and last.name == entry and is_open(last):
            return code
    return ""


def is_open(node: ast.FunctionDef) -> bool:
    """Return whether a function's body has only a docstring, ``pass`` or an ellipsis."""
    return all(
        isinstance(each, ast.Pass)
        or (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))
        for each in node.body
    )


@lru_cache(maxsize=4096)
def implied_entry_point(source: str, own: frozenset[str]) -> str:
    """Return the built-in name or tool that a test without an entry point expects from the program.

    A test that uses no name of the program must test a function with the name of a Python built-in.
    In ``assert sum(2, 3) == 5`` the function is sum, the first name that the test calls.

    own: names that the row's own code defines.
    """
    tree = tree_of(source)
    own |= set(bound_names(tree))
    names = [node for node in _in_order(tree) if isinstance(node, ast.Name) and node.id not in own]
    if not all(is_available_to_tests(each.id) for each in names if isinstance(each.ctx, ast.Load)):
        return ""
    calls = (node.func for node in _in_order(tree) if isinstance(node, ast.Call))
    return next((each.id for each in calls if isinstance(each, ast.Name) and each in names), "")


def is_available_to_tests(name: str) -> bool:
    """Return whether a name is a built-in or a tool, which a test can use without the program."""
    return hasattr(builtins, name) or is_tool(name)


def _in_order(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _in_order(child)


@dataclass(frozen=True, slots=True)
class DirectCall:
    """An assert of the form ``assert name(*args, **kwargs) == expected``."""

    name: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    expected: Any


@lru_cache(maxsize=4096)
def direct_call(source: str) -> DirectCall | None:
    """Return the call of a test such as ``assert name(1) == 2``. None: any other test.

    Most tests of the data set MBPP are asserts of this form. The worker compares plain data
    itself, without the process that runs tests.
    """
    match tree_of(source).body:
        case [
            ast.Assert(
                ast.Compare(
                    ast.Call(ast.Name(name), args, keywords), [ast.Eq()], [ast.expr() as expected]
                )
            )
        ] if all(each.arg for each in keywords):
            pass
        case _:
            return None
    try:
        return DirectCall(
            name,
            tuple(map(ast.literal_eval, args)),
            {f"{each.arg}": ast.literal_eval(each.value) for each in keywords},
            ast.literal_eval(expected),
        )
    except (ValueError, TypeError, RecursionError, MemoryError):
        return None
