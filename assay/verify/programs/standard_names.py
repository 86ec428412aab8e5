"""Names that a test can use without an import: standard modules, their functions, and `approx`.

A test must not get its tools from the submission, which could replace ``isclose``. The source of
this file is sent to the tests' process, so the file imports no part of Assay.
"""

from __future__ import annotations

import builtins
import importlib
import math
from typing import Any

_MODULES = """
    bisect cmath contextlib collections copy dataclasses datetime decimal fractions functools heapq
    io itertools json math numpy operator os pytest random re statistics string sys time types
    typing unittest
"""
MODULES = frozenset(_MODULES.split())
SHORT = {"np": "numpy"}
STANDARD = ("operator", "itertools", "collections", "statistics", "functools", "math")


class Approximately:
    """The result of pytest's `approx`, which equals numbers close to the expected numbers."""

    def __init__(
        self, expected: Any, rel: Any = None, abs: Any = None, nan_ok: bool = False
    ) -> None:
        # The tolerances of pytest.approx: 1e-6 relative and 1e-12 absolute.
        relative = 0.0 if abs and rel is None else 1e-6 if rel is None else rel
        self.rule = expected, relative, 1e-12 if abs is None else abs, nan_ok

    def __eq__(self, other: object) -> bool:
        return near(other, *self.rule)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __bool__(self) -> bool:
        raise AssertionError("approx on its own compares nothing")

    __hash__ = None  # type: ignore[assignment]


def near(found: Any, expected: Any, relative: float, absolute: float, nan_ok: bool = False) -> bool:
    """Return whether numbers are near the expected numbers, also inside dicts, lists and tuples.

    Data of types other than numbers must be equal.
    """
    rule = relative, absolute, nan_ok
    if isinstance(expected, dict):
        return (
            isinstance(found, dict)
            and found.keys() == expected.keys()
            and all(near(found[key], each, *rule) for key, each in expected.items())
        )
    if isinstance(expected, (list, tuple)):
        return (
            isinstance(found, type(expected))
            and len(found) == len(expected)
            and all(near(*pair, *rule) for pair in zip(found, expected, strict=True))
        )
    numbers = (int, float, complex)
    if not isinstance(expected, numbers) or not isinstance(found, numbers):
        # A stand-in for an object of the submission equals no plain data (see `stand_ins`).
        return not hasattr(type(found), "opaque_handle") and found == expected
    # Only NaN differs from itself.
    if expected != expected:
        return nan_ok and found != found
    if found == expected or math.inf in (abs(found), abs(expected)):
        return found == expected
    return abs(found - expected) <= max(absolute, relative * abs(expected))


def allclose(found: Any, expected: Any, rtol: float = 1e-5, atol: float = 1e-8, **_: Any) -> bool:
    """Return the result of numpy.allclose for plain numbers and nested lists of numbers."""
    if isinstance(expected, (list, tuple)):
        return isinstance(found, (list, tuple)) and near(
            _lists(found), _lists(expected), rtol, atol
        )
    if not isinstance(found, (int, float, complex)):
        raise TypeError("allclose of a value that is not a number")
    return near(found, expected, rtol, atol)


def _lists(value: Any) -> Any:
    return list(map(_lists, value)) if isinstance(value, (list, tuple)) else value


def assert_allclose(
    found: Any, expected: Any, rtol: float = 1e-7, atol: float = 0.0, **_: Any
) -> None:
    """Raise AssertionError unless `allclose` is true, as numpy.testing.assert_allclose does."""
    if not allclose(found, expected, rtol, atol):
        raise AssertionError(f"not close to {expected!r}")


OWN = {"approx": Approximately, "allclose": allclose, "assert_allclose": assert_allclose}


def is_tool(name: str) -> bool:
    """Return whether `standard_names` provides a name as a module or tool for tests."""
    return name in MODULES or name in SHORT or name in OWN or _home(name) is not None


def tool(name: str) -> Any:
    """Return the standard module or function with this name.

    Raises ImportError if the standard module is missing.
    """
    if name in OWN:
        return OWN[name]
    if name in MODULES or name in SHORT:
        return importlib.import_module(SHORT.get(name, name))
    return getattr(_home(name), name)


def _home(name: str) -> Any:
    """Return the module of the standard library that exports a name, or None."""
    if name.startswith("_") or hasattr(builtins, name):
        return None
    homes = map(importlib.import_module, STANDARD)
    return next((home for home in homes if name in getattr(home, "__all__", dir(home))), None)
