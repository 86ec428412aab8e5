"""Read example inputs and comparisons of a program from its tests or from a model's reply."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Collection, Iterator, Sequence
from itertools import chain
from typing import Any

from assay.curation.inputs import Arguments, call_arguments
from assay.verify.programs.program import parse
from assay.verify.programs.spec import CodeTest

# Parameter name of the function in HumanEval's check code.
CANDIDATE = "candidate"
_NEAR = {"abs", "isclose", "math.isclose", "approx", "pytest.approx", "np.isclose", "allclose"}
_TOLERANCES = {"rel_tol": "rel", "rel": "rel", "rtol": "rel"}
_TOLERANCES |= {"abs_tol": "abs", "abs": "abs", "atol": "abs"}
_FENCED = re.compile(r"^(```+)[^\n]*\n(.*?)^\1", re.DOTALL | re.MULTILINE)


def examples_of(tests: Sequence[CodeTest], names: Collection[str]) -> list[Arguments | str]:
    """Return the inputs that tests contain: arguments of function calls, or standard input.

    names: names of the function under test.
    """
    found: list[Arguments | str] = []
    for test in tests:
        if test.kind == "stdin":
            found.append(test.stdin)
        elif test.kind == "args":
            found.append(call_arguments(test.args, test.kwargs))
        else:
            tree = parse(test.source)[0]
            found += _calls(tree, {*names, CANDIDATE}) if tree else []
    return found


def lenient_comparison(tests: Sequence[CodeTest], names: Collection[str]) -> str:
    """Return the code of a test that accepts several answers; "" if no test accepts several.

    For example, a test that sorts the answer before the comparison accepts every order. A generated
    test, which compares with a single answer, would reject all orders but one.
    """
    for test in tests:
        if test.kind == "property" or len(test.outputs) > 1:
            return "a property" if test.kind == "property" else "several accepted outputs"
        tree = parse(test.source)[0] if test.kind in ("assert", "check") else None
        for node in ast.walk(tree) if tree else ():
            for child in ast.iter_child_nodes(node):
                if _is_call(child, {*names, CANDIDATE}) and not _is_plain(node):
                    return ast.unparse(node)
    return ""


def tolerances(tests: Sequence[CodeTest]) -> dict[str, float]:
    """Return the largest tolerances (``rel``, ``abs``) with which tests compare numbers."""
    found: dict[str, float] = {}
    for test in tests:
        tree = parse(test.source)[0] if test.kind in ("assert", "check") else None
        for name, limit in chain.from_iterable(map(_limits, ast.walk(tree) if tree else ())):
            if isinstance(limit, ast.Constant) and isinstance(limit.value, int | float):
                found[name] = max(limit.value, found.get(name, 0.0))
    return found


def _limits(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yield (``rel`` or ``abs``, expression) for each tolerance in a comparison."""
    match node:
        case ast.Call() if ast.unparse(node.func) in _NEAR:
            for each in node.keywords:
                if each.arg in _TOLERANCES:
                    yield _TOLERANCES[each.arg], each.value
        case ast.Compare(ast.Call(ast.Name("abs")), [ast.Lt() | ast.LtE()], [limit]):
            yield "abs", limit
        case _:
            pass


def _is_plain(node: ast.AST) -> bool:
    """Whether the parent node of a call compares the call's result exactly or with a tolerance."""
    match node:
        case ast.Compare(ops=ops):
            return all(isinstance(each, ast.Eq | ast.Is) for each in ops)
        case ast.Call():
            return ast.unparse(node.func) in _NEAR
        case ast.BinOp():
            # Tests compare with a tolerance by a difference, as in abs(f(2) - 0.5) < 1e-6.
            return isinstance(node.op, ast.Sub)
        case _:
            return isinstance(node, ast.Assert | ast.BoolOp | ast.UnaryOp)


def _is_call(node: ast.AST, names: Collection[str]) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names


def _calls(tree: ast.AST, names: Collection[str]) -> Iterator[Arguments]:
    """Yield the arguments of each call of a function in ``names`` whose arguments are literals."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _is_call(node, names):
            try:
                kwargs = {str(each.arg): ast.literal_eval(each.value) for each in node.keywords}
                yield call_arguments(list(map(ast.literal_eval, node.args)), kwargs)
            # The documentation of `ast.literal_eval` lists these exceptions.
            except (ValueError, TypeError, RecursionError, MemoryError, SyntaxError):
                continue


def suggested(text: str, names: Collection[str], takes_text: bool) -> list[Arguments | str]:
    """Return the inputs in a model's reply: function calls, or fenced blocks of standard input.

    takes_text: whether the program reads standard input.
    """
    blocks = [match[2] for match in _FENCED.finditer(text)]
    if takes_text:
        return [*blocks]
    found: list[Arguments | str] = []
    # Models number the calls or write a Markdown list, so list numbers and marks are stripped.
    for line in "\n".join(blocks or [text]).splitlines():
        tree = parse(line.strip().lstrip("-*0123456789.) ").strip("`"))[0]
        found += _calls(tree, names) if tree else []
    return found


def call_of(given: Arguments) -> str:
    """Return the arguments of a call as code."""
    return ", ".join(
        f"{each!r}" if isinstance(place, int) else f"{place}={each!r}"
        for place, each in given.items()
    )


def is_literal(value: Any) -> bool:
    """Whether a value's repr evaluates to an equal value with the same types."""
    # Answers are written into tests by their repr.
    # The repr of NaN or of a class instance does not evaluate to an equal value.
    text = repr(value)
    try:
        return repr(ast.literal_eval(text)) == text
    except (ValueError, TypeError, RecursionError, MemoryError, SyntaxError):
        return False


def programs_in(value: Any) -> list[str]:
    """Return the programs in a row's value: a text, a list of texts, or a JSON text of a list.

    CodeContests stores programs as ``{"language": [...], "solution": [...]}``.
    """
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = json.loads(value)
        except ValueError:
            return [str(value)]
    if isinstance(value, dict):
        value = value.get("solution", [])
    return [value] if isinstance(value, str) else [e for e in value or () if isinstance(e, str)]
