"""Find packages that a row's code or a program imports and that are missing in the sandbox."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from assay.errors import VerifierError, message
from assay.types import Problem
from assay.verify.programs.setup import closed, direct_call, tree_of
from assay.verify.programs.spec import CodeSpec, read_spec
from assay.verify.sandbox.packages import check_packages, find_packages, not_installed

WHERE = "verification.options.code.packages"


def check_options(options: Mapping[str, Any]) -> None:
    """Raise VerifierError for a package list that is probably a mistake."""
    check_packages(tuple(options.get("packages") or ()), WHERE)


def versions_of(options: Mapping[str, Any]) -> dict[str, str]:
    """Return the versions of the packages that programs can import."""
    return dict(find_packages(tuple(options.get("packages") or ())).versions)


def lacks(spec: Mapping[str, Any]) -> str:
    """Return why this machine cannot judge a row whose code imports a missing package, or ""."""
    try:
        return missing_for(read_spec(Problem("", "", spec)))
    except VerifierError as error:
        return str(error)


def missing_for(spec: CodeSpec) -> str:
    """Return why a row's own code cannot run on this machine: a listed package is not installed.

    Else "".

    Raises VerifierError if the code imports a package that the configuration does not list.
    """
    found = find_packages(spec.packages)
    sources = [closed(spec.prompt_code)]
    # Tests that only compare plain data run without the row's setup.
    if not all(test.kind == "assert" and direct_call(test.source) for test in spec.tests):
        sources.append(spec.setup)
    sources += [code for test in spec.tests for code in (test.source, test.reference)]
    needed = {name for code in sources if code for name in imported(_tree(code))}
    if missing := needed & set(found.missing):
        return f"the tests need {not_installed(missing)}"
    if unknown := sorted(needed - set(found.names)):
        listed = ", ".join(unknown)
        accepted = f"the standard library, and packages of {WHERE}"
        raise VerifierError(message("spec tests", f"import {listed}", accepted))
    return ""


def missing_for_program(spec: CodeSpec, tree: ast.Module) -> str:
    """Return the reason why a program cannot run here: an allowed package is not installed."""
    missing = set(find_packages(spec.packages).missing) & set(imported(tree))
    return f"the program needs {not_installed(missing)}" if missing else ""


def _tree(code: str) -> ast.Module:
    try:
        return tree_of(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module([], [])


def imported(tree: ast.Module) -> Iterator[str]:
    """Yield the packages that a module's top level imports, except the standard library.

    Imports inside a function or a ``try`` are ignored, because they can be optional.
    """
    for node in tree.body:
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module or ""]
        for name in names:
            root = name.partition(".")[0]
            if root and root not in sys.stdlib_module_names:
                yield root
