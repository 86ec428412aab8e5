"""Mutants: copies of a program, each with one small fault.

The mutation score of a set of tests is the share of mutants that fail at least one test. Some
mutants are equivalent to the program, so the best possible mutation score may be below 1.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from random import Random
from typing import Any

from assay.verify.programs.program import parse

_PAIRS = (
    (ast.Lt, ast.LtE),
    (ast.Gt, ast.GtE),
    (ast.Eq, ast.NotEq),
    (ast.In, ast.NotIn),
    (ast.Is, ast.IsNot),
    (ast.And, ast.Or),
    (ast.Add, ast.Sub),
    (ast.Mult, ast.FloorDiv),
    (ast.BitAnd, ast.BitOr),
    (ast.LShift, ast.RShift),
)
SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    **dict(_PAIRS),
    **{other: one for one, other in _PAIRS},
    ast.Div: ast.Mult,
    ast.Mod: ast.Add,
    ast.Pow: ast.Mult,
    ast.BitXor: ast.BitOr,
    ast.Break: ast.Continue,
    ast.Continue: ast.Break,
}
Edit = Callable[[], None]


def mutants(text: str, most: int, rng: Random) -> list[str]:
    """Return at most ``most`` distinct random mutants of a program."""
    # An edit is identified by its node's number, because every mutant has a syntax tree of its own.
    # Parsing the program again is faster than copying the syntax tree.
    tree = parse(text)[0]
    if tree is None:
        return []
    places = [
        (number, which)
        for number, node in enumerate(ast.walk(tree))
        for which, _ in enumerate(_edits(node))
    ]
    rng.shuffle(places)
    found = {ast.unparse(tree): None}
    for number, which in places:
        if len(found) > most:
            break
        changed = ast.parse(text)
        node = list(ast.walk(changed))[number]
        list(_edits(node))[which]()
        found.setdefault(ast.unparse(changed))
    return list(found)[1:]


def _edits(node: ast.AST) -> Iterator[Edit]:
    """Yield the possible faults at a node, each as a function that modifies the node in place."""
    operator: Any = getattr(node, "op", None)
    if swapped := SWAPPED.get(type(operator)):
        # Python's parser shares one object among all nodes with the same operator.
        # Changing the operator object in place would therefore change every such node.
        yield _sets(node, "op", swapped())
    match node:
        case ast.Compare():
            for place, operator in enumerate(node.ops):
                if swapped := SWAPPED.get(type(operator)):
                    yield _sets(node, "ops", _replaced(node.ops, place, swapped()))
        case ast.Break() | ast.Continue():
            yield partial(setattr, node, "__class__", SWAPPED[type(node)])
        case ast.If() | ast.IfExp():
            yield _sets(node, "test", ast.UnaryOp(ast.Not(), node.test))
        case ast.UnaryOp(ast.Not() | ast.USub()):
            yield _sets(node, "operand", ast.UnaryOp(node.op, node.operand))
        case ast.Constant(bool(value)):
            yield _sets(node, "value", not value)
        case ast.Constant(int(value) | float(value)):
            yield _sets(node, "value", value + 1)
            yield _sets(node, "value", value - 1)
        case ast.Slice():
            for field in ("lower", "upper"):
                if (end := getattr(node, field)) is not None:
                    yield _sets(node, field, _plus(end, 1))
        case ast.Call(ast.Name("range"), [*_, ast.expr()]):
            place = min(1, len(node.args) - 1)
            for step in (1, -1):
                end = _plus(node.args[place], step)
                yield _sets(node, "args", _replaced(node.args, place, end))
        case _:
            pass
    # A statement is deleted by replacing it with `pass`, because a block must not be empty.
    for field in ("body", "orelse"):
        block = getattr(node, field, ())
        for place, each in enumerate(block if isinstance(block, list) else ()):
            is_call = isinstance(each, ast.Expr) and isinstance(each.value, ast.Call)
            if is_call or isinstance(each, ast.Assign | ast.AugAssign):
                yield _sets(node, field, _replaced(block, place, ast.Pass()))


def _sets(node: ast.AST, field: str, value: object) -> Edit:
    return partial(setattr, node, field, value)


def _replaced(items: Sequence[Any], place: int, new: Any) -> list[Any]:
    return [*items[:place], new, *items[place + 1 :]]


def _plus(node: ast.expr, number: int) -> ast.expr:
    operator = ast.Add() if number > 0 else ast.Sub()
    return ast.BinOp(node, operator, ast.Constant(abs(number)))
