"""Compare a submission's return value or output with a test's expectation.

Both compared values are decoded plain data, so the comparison runs no method of the submission.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Literal, TypeAlias, cast

from assay.verify.sandbox.arrays import Array
from assay.verify.sandbox.values import Iterator

Match: TypeAlias = Literal["same", "type", "different"]

# Relative tolerance for floats.
FLOAT_TOLERANCE = 1e-9
# Absolute tolerance if zero is expected, because a relative tolerance would accept only zero.
ZERO_TOLERANCE = 1e-12
STDOUT_RULES = ("lines", "exact", "tokens", "numbers")
# Maximum number of set members that are matched pair by pair, which takes quadratic time.
MAX_UNORDERED = 64
# Maximum number of characters of a decimal number.
MAX_NUMBER = 1000

# All repetitions are possessive, because backtracking over long outputs is too slow.
_DECIMAL = re.compile(r"[+-]?(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?")
_INTEGER = re.compile(r"([+-]?)0*+([0-9]*+)")


def compare(
    expected: Any, actual: Any, tolerance: float = FLOAT_TOLERANCE, *, from_json: bool
) -> Match:
    """Return ``same``, ``type`` (only a type is wrong) or ``different``.

    Types are compared exactly: True is not 1, 2.0 is not 2, a set is not a list. Exceptions:

    - An int equals a float of the same value if the float is expected.
    - A namedtuple equals a tuple, and a Counter equals a dict.
    - Floats are equal within the relative ``tolerance`` (1e-12 absolute if 0.0 is expected). NaN
      equals NaN, and infinities are compared exactly.
    - With ``from_json``, an expected list equals a tuple or an array, an expected number equals an
      array without dimensions, and a key equals its JSON spelling. JSON lacks these types.
    """
    try:
        if _same(expected, actual, _Rule(tolerance, from_json, strict=True)):
            return "same"
        same = _same(expected, actual, _Rule(tolerance, from_json, strict=False))
    except (ArithmeticError, TypeError, ValueError):
        # The comparison can raise, for example for a signaling NaN of Decimal.
        return "different"
    return "type" if same else "different"


def equal(actual: Any, expected: Any) -> bool:
    """Return whether two values of plain data are equal by Python's own ``==``."""
    try:
        return bool(actual == expected)
    except (ArithmeticError, TypeError, ValueError, RecursionError):
        return False


class _Rule:
    def __init__(self, tolerance: float, from_json: bool, strict: bool) -> None:
        self.tolerance = tolerance
        self.from_json = from_json
        self.strict = strict

    def number(self, expected: float, actual: float) -> bool:
        """Return whether two numbers, of which at least one is a float, are equal."""
        if math.isnan(expected) or math.isnan(actual):
            return math.isnan(expected) and math.isnan(actual)
        if math.isinf(expected) or math.isinf(actual):
            return expected == actual
        if expected == 0:
            return abs(actual) <= ZERO_TOLERANCE
        try:
            return abs(expected - actual) <= self.tolerance * abs(expected)
        except OverflowError:
            # An integer that is too large for a float raises OverflowError.
            return expected == actual


def _same(expected: Any, actual: Any, rule: _Rule) -> bool:
    if isinstance(expected, Array) or isinstance(actual, Array):
        both = isinstance(expected, Array) and isinstance(actual, Array)
        if rule.strict and not both and (not rule.from_json or isinstance(expected, Array)):
            return False
        if both and expected.shape != actual.shape:
            return False
        return _same(_plain(expected), _plain(actual), rule)
    kinds = type(expected), type(actual)
    if rule.strict and kinds[0] is not kinds[1]:
        if kinds == (float, int):
            return expected == actual
        accepted = (list, tuple) if kinds[0] is list and rule.from_json else kinds[0]
        if kinds[0] not in (list, tuple, dict) or not isinstance(actual, accepted):
            return False
    if isinstance(expected, range) or isinstance(actual, range):
        # A range is not iterated, because it can be longer than any list.
        return bool(expected == actual)
    if isinstance(expected, (int, float)) and isinstance(actual, (int, float)):
        if isinstance(expected, float) or isinstance(actual, float):
            return rule.number(expected, actual)
        return expected == actual
    if isinstance(expected, complex) and isinstance(actual, (int, float, complex)):
        actual = complex(actual)
        return rule.number(expected.real, actual.real) and rule.number(expected.imag, actual.imag)
    if isinstance(expected, Mapping) and isinstance(actual, Mapping):
        return _same_mapping(cast("Any", expected), cast("Any", actual), rule)
    if isinstance(expected, AbstractSet) and isinstance(actual, AbstractSet):
        return _same_set(cast("Any", expected), cast("Any", actual), rule)
    if isinstance(expected, Iterator) and isinstance(actual, Iterator):
        return expected.complete is actual.complete and _same(expected.items, actual.items, rule)
    if isinstance(expected, (str, bytes, bytearray)) or isinstance(actual, (str, bytes, bytearray)):
        return expected == actual
    if isinstance(expected, Sequence) and isinstance(actual, Sequence):
        return len(cast("Any", expected)) == len(cast("Any", actual)) and all(
            _same(left, right, rule)
            for left, right in zip(cast("Any", expected), cast("Any", actual), strict=True)
        )
    return bool(expected == actual)


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, Array) else value


def _same_mapping(expected: Mapping[Any, Any], actual: Mapping[Any, Any], rule: _Rule) -> bool:
    if len(expected) != len(actual):
        return False
    if rule.from_json and all(type(key) is str for key in expected):
        actual = {_json_key(key): value for key, value in actual.items()}
    return (
        len(expected) == len(actual)
        and all(
            key in actual and _same(value, actual[key], rule) for key, value in expected.items()
        )
        and (not rule.strict or _same_kinds(expected, actual))
    )


def _json_key(key: Any) -> Any:
    """Return a dict key as JSON spells it."""
    if key is None or isinstance(key, bool):
        return {None: "null", True: "true", False: "false"}[key]
    return repr(key) if type(key) in (int, float) else key


def _same_kinds(expected: Mapping[Any, Any], actual: Mapping[Any, Any]) -> bool:
    """Return whether equal dict keys also have equal types, because True == 1."""
    kinds = {key: type(key) for key in actual}
    return all(kinds[key] is type(key) for key in expected)


def _same_set(expected: AbstractSet[Any], actual: AbstractSet[Any], rule: _Rule) -> bool:
    if len(expected) != len(actual):
        return False
    if expected == actual:
        kinds = {member: type(member) for member in actual}
        return not rule.strict or all(kinds[member] is type(member) for member in expected)
    if len(expected) > MAX_UNORDERED:
        return False
    # Set members are matched greedily, because floats within a tolerance have different hashes.
    left = list(actual)
    for member in expected:
        place = next((i for i, each in enumerate(left) if _same(member, each, rule)), None)
        if place is None:
            return False
        left.pop(place)
    return True


def same_output(expected: str, actual: str, rule: str, tolerance: float = FLOAT_TOLERANCE) -> bool:
    """Return whether the output of a program equals a test's expected output.

    ``lines``: ignore white space at line ends, and empty lines at the end. ``exact``: compare every
        character. ``tokens``: compare the words between white space. ``numbers``: like tokens, but
        decimal numbers compare within the tolerance, and whole numbers exactly.
    """
    expected, actual = expected.replace("\r\n", "\n"), actual.replace("\r\n", "\n")
    if rule == "numbers":
        return _same_numbers(expected, actual, tolerance)
    read = {"lines": _lines, "exact": str, "tokens": str.split}[rule]
    return read(expected) == read(actual)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


def _same_numbers(expected: str, actual: str, tolerance: float) -> bool:
    rule = _Rule(tolerance, from_json=False, strict=False)
    for left, right in itertools.zip_longest(expected.split(), actual.split(), fillvalue=""):
        if left != right and not _same_number(left, right, rule):
            return False
    return True


def _same_number(expected: str, actual: str, rule: _Rule) -> bool:
    integers = _integer(expected), _integer(actual)
    if None not in integers:
        return integers[0] == integers[1]
    numbers = _number(expected), _number(actual)
    if numbers[0] is None or numbers[1] is None:
        return False
    # If a whole number is expected, no other whole number is accepted, even within the tolerance.
    if integers[0] is not None and (numbers[1].is_integer() or abs(numbers[0] - numbers[1]) >= 0.5):
        return numbers[0] == numbers[1]
    return rule.number(numbers[0], numbers[1])


def _integer(token: str) -> tuple[bool, str] | None:
    """Return (whether negative, digits without leading zeros) of a whole number, or None."""
    # Numbers are compared as text, because int() takes quadratic time and refuses more than 4300
    # digits.
    match = _INTEGER.fullmatch(token) if token[-1:].isdigit() else None
    return None if match is None else (match[1] == "-" and bool(match[2]), match[2])


def _number(token: str) -> float | None:
    return float(token) if len(token) <= MAX_NUMBER and _DECIMAL.fullmatch(token) else None
