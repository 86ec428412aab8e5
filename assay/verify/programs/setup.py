"""Which of the row's own code runs where: with the submission, with the tests, or with both."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import lru_cache

from assay.verify.programs.names import bound_names, tree_of
from assay.verify.programs.program import Program, find_block, parse
from assay.verify.programs.spec import CodeSpec


@dataclass(frozen=True, slots=True)
class TestCode:
    """Code for the tests' process, and the names that it defines there.

    row_classes: classes of the row's that the program has copies of; row: the code that defines them.
    """

    __test__ = False

    setup: str
    prompt: str
    trusted: frozenset[str]
    row: str = ""
    row_classes: tuple[str, ...] = ()


def for_program(setup: str, prompt_code: str, text: str) -> str:
    """Return the code that runs before the program: what it may know of the setup, and the prompt's.

    Of the setup that is imports, and classes that the program names; the rest may tell what a
    test expects.
    """
    return "\n".join(each for each in (_shared(setup, text), prompt_code) if each)


def for_tests(spec: CodeSpec, program: Program) -> TestCode:
    """Return the code that runs before a test: the setup and the prompt's, without what the program has.

    Classes that the program has are its own; functions of the prompt come from the prompt, so that a
    program that replaces a helper of the test replaces it for itself only.
    """
    return _for_tests(
        spec.setup, spec.prompt_code, spec.entry_point, _shared(spec.setup, program.written)
    )


@lru_cache(maxsize=1024)
def _for_tests(setup: str, prompt_code: str, entry_point: str, shared: str) -> TestCode:
    entry = entry_point.partition(".")[0].removesuffix("()")
    classes = {node.name for node in tree_of(shared).body if isinstance(node, ast.ClassDef)}
    body = [node for node in tree_of(setup).body if getattr(node, "name", "") not in classes]
    setup_tree = ast.Module(body, [])
    prompt_tree = parse(closed(prompt_code))[0] or ast.Module([], [])
    theirs = [n for n in (*tree_of(shared).body, *prompt_tree.body) if isinstance(n, ast.ClassDef)]
    row_classes = tuple(n.name for n in theirs if n.name != entry and not _is_unfinished(n))
    kept = [n for n in prompt_tree.body if getattr(n, "name", "") != entry]
    row = f"{setup}\n{ast.unparse(ast.Module(kept, []))}" if row_classes else ""
    prompt_tree.body = [
        node
        for node in prompt_tree.body
        if not isinstance(node, ast.ClassDef) and getattr(node, "name", "") != entry
    ]
    trusted = frozenset((*bound_names(setup_tree), *bound_names(prompt_tree)))
    return TestCode(ast.unparse(setup_tree), ast.unparse(prompt_tree), trusted, row, row_classes)


def _is_unfinished(node: ast.ClassDef) -> bool:
    """Whether a class leaves a method for the program to write."""
    return any(
        is_open(each) or (len(each.body) < 3 and isinstance(each.body[-1], ast.Raise))
        for each in node.body
        if isinstance(each, ast.FunctionDef)
    )


@lru_cache(maxsize=1024)
def _shared(setup: str, text: str) -> str:
    """Return the imports of a setup, and its classes that a program's text names."""
    if not setup:
        return ""
    tree = tree_of(setup)
    words = set(re.findall(r"\w+", text))
    kept: list[str] = []
    for node in tree.body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):  # where it is missing, the tests say so
            kept.append(f"try:\n    {ast.unparse(node)}\nexcept ImportError:\n    pass")
        elif isinstance(node, ast.ClassDef) and node.name in words:
            kept.append(ast.unparse(node))
    return "\n".join(kept)


def closed(prompt_code: str) -> str:
    """Return a prompt's code as a module: where its last function has no body yet, with one."""
    if not prompt_code or parse(prompt_code)[0] is not None:
        return prompt_code
    last = [line for line in prompt_code.rstrip().split("\n") if line.strip()][-1]
    indent = len(last) - len(last.lstrip()) + 4
    return prompt_code.rstrip() + "\n" + " " * indent + "pass\n"


@lru_cache(maxsize=256)
def prompt_code_of(prompt: str, entry_point: str) -> str:
    """Return the code that a prompt asks to continue, or "".

    That is the whole prompt, or its last fenced block, where it is Python that ends with the entry
    point as a function without a body of its own (HumanEval's form).
    """
    entry = entry_point.partition(".")[0].removesuffix("()")
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
    """Whether a function has no body besides its docstring, ``pass`` or an ellipsis."""
    return all(
        isinstance(each, ast.Pass)
        or (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))
        for each in node.body
    )
