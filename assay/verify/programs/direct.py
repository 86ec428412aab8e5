"""Asserts that need no process of their own: a call with literals, compared with a literal.

Most of MBPP's are of this form. Comparing plain data needs no code of the test to run, and saves a
process.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from assay.verify.programs.setup import tree_of


@dataclass(frozen=True, slots=True)
class DirectCall:
    """``assert name(*args, **kwargs) == expected``."""

    name: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    expected: Any


@lru_cache(maxsize=4096)
def direct_call(source: str) -> DirectCall | None:
    """Return the call that an assert makes, or None where it does anything besides."""
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
