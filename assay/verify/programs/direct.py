"""Asserts that need no process of their own: one call with literal arguments, compared with a literal.

Most of MBPP's are of this form. Comparing plain data needs no code of the test to run, and saves a process.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from assay.verify.programs.names import tree_of, wanted_names


@dataclass(frozen=True, slots=True)
class DirectCall:
    """``assert name(*args, **kwargs) == expected``."""

    name: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    expected: Any


@lru_cache(maxsize=4096)
def direct_call(source: str, entry_point: str, trusted: frozenset[str]) -> DirectCall | None:
    """Return the call that an assert makes, or None where it does anything besides."""
    body = tree_of(source).body
    if len(body) != 1 or not isinstance(body[0], ast.Assert):
        return None
    test = body[0].test
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return None
    call = test.left
    if not isinstance(test.ops[0], ast.Eq) or not isinstance(call, ast.Call):
        return None
    if not isinstance(call.func, ast.Name):
        return None
    name = call.func.id
    if name in trusted or name not in wanted_names((source,), trusted, entry_point):
        return None
    if any(keyword.arg is None for keyword in call.keywords):
        return None
    try:
        args = tuple(ast.literal_eval(each) for each in call.args)
        kwargs = {f"{keyword.arg}": ast.literal_eval(keyword.value) for keyword in call.keywords}
        return DirectCall(name, args, kwargs, ast.literal_eval(test.comparators[0]))
    except (ValueError, TypeError, RecursionError, MemoryError):
        return None
