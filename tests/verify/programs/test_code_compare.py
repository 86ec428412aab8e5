"""What counts as the expected value, and as the expected output."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict, defaultdict, deque
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.verify.programs.compare import compare, equal, same_output
from assay.verify.sandbox import Iterator
from assay.verify.sandbox.values import record

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        (1, 1),
        (True, True),
        (None, None),
        (2.0, 2),
        (0.3, 0.1 + 0.2),
        (0.0, 1e-13),
        (0.0, -0.0),
        (math.nan, math.nan),
        (math.inf, math.inf),
        ([1, [2.0]], [1, [2]]),
        ([1, 2], (1, 2)),
        ([[1]], [(1,)]),
        ([1, 2], record("Point", ["x", "y"], [1, 2])),
        ({"5": 2}, {5: 2}),
        ({"1.5": 2}, {1.5: 2}),
        ({"true": 1, "null": 2}, {True: 1, None: 2}),
        ({"a": 1}, Counter("a")),
        ({"a": [1]}, defaultdict(list, a=[1])),
        ({"a": 1}, OrderedDict(a=1)),
        ("é", "é"),
        (10**30, 10**30),
    ],
)
def test_values_that_compare_as_the_same(expected: Any, actual: Any) -> None:
    assert compare(expected, actual, from_json=True) == "same"


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        (1, True),
        (True, 1),
        (0, False),
        (2, 2.0),
        (2, Fraction(2)),
        (2.5, Decimal("2.5")),
        ([True], [1]),
        ({"a": 1}, {"a": True}),
        ([1], deque([1])),
    ],
)
def test_only_the_type_is_wrong(expected: Any, actual: Any) -> None:
    assert compare(expected, actual, from_json=True) == "type"


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        (1, 2),
        (1, "1"),
        ("1", 1),
        (None, 0),
        (0.0, 1e-7),
        (1.0, 1.0 + 1e-7),
        (1.0, math.nan),
        (math.inf, 1e308),
        (math.inf, -math.inf),
        (1.0, 10**400),
        ([], None),
        ([1, 2], [2, 1]),
        ([1, 2], [1, 2, 3]),
        ([1, 2], {1, 2}),
        ("ab", ["a", "b"]),
        ([97, 98], b"ab"),
        ({"a": 1}, {"a": 1, "b": 2}),
        ({"5": 2, "6": 1}, {5: 2, "5": 2}),
        ([0, 1], range(2)),
        ([0], range(10**30)),
        ([1, 1], Iterator("generator", [1, 1], True)),
        (1.5, Decimal("sNaN")),
        ([1.5], [Decimal("sNaN")]),
    ],
)
def test_values_that_compare_as_different(expected: Any, actual: Any) -> None:
    assert compare(expected, actual, from_json=True) == "different"


def test_values_of_python_keep_their_types() -> None:
    assert compare((1, 2), (1, 2), from_json=False) == "same"
    assert compare([1, 2], (1, 2), from_json=False) == "type"
    assert compare((1, 2), [1, 2], from_json=False) == "type"
    assert compare({"5": 2}, {5: 2}, from_json=False) == "different"
    assert compare({1, 2.5}, {1, 2.5 + 1e-15}, from_json=False) == "same"
    assert compare({1}, {True}, from_json=False) == "type"
    assert compare({1, 2}, {1, 3}, from_json=False) == "different"
    assert compare({1: 2}, {True: 2}, from_json=False) == "type"
    assert compare(frozenset("a"), {"a"}, from_json=False) == "type"
    assert compare(1 + 2j, 1 + 2j + 1e-15, from_json=False) == "same"
    assert compare(range(3), range(3), from_json=False) == "same"


def test_tolerance_is_a_choice() -> None:
    assert compare(100.0, 100.4, 0.01, from_json=True) == "same"
    assert compare(100.0, 102.0, 0.01, from_json=True) == "different"
    assert compare(0.1, 0.1 + 1e-12, 0, from_json=True) == "different"


@given(plain)
def test_every_value_equals_itself(value: Any) -> None:
    assert compare(value, value, from_json=True) == "same"
    assert compare(value, value, from_json=False) == "same"


@given(plain, plain)
def test_comparing_never_raises_and_same_implies_equal_shape(left: Any, right: Any) -> None:
    found = compare(left, right, from_json=False)
    assert found in ("same", "type", "different")
    if found == "different" and not isinstance(left, float):
        assert not (type(left) is type(right) and left == right)


def test_equal_is_pythons_own_and_never_raises() -> None:
    assert equal([1, 2.0], [True, 2])
    assert not equal((1,), [1])
    assert not equal(Decimal("sNaN"), Decimal(1))


@pytest.mark.parametrize(
    ("rule", "expected", "actual", "same"),
    [
        ("lines", "1\n2\n", "1\n2", True),
        ("lines", "1\n2\n", "1  \r\n2\n\n\n", True),
        ("lines", "1 2", "1  2", False),
        ("lines", "1\n2", "1\n\n2", False),
        ("lines", " 1", "1", False),
        ("lines", "", "\n", True),
        ("lines", "1", "1 or 2", False),
        ("exact", "1\n", "1\n", True),
        ("exact", "1\n", "1", False),
        ("tokens", "1 2\n3", "1\n2 3\n", True),
        ("tokens", "12", "1 2", False),
        ("numbers", "0.30 yes", "0.3 yes", True),
        ("numbers", "1.0", "1.1", False),
        ("numbers", "1", "1_0", False),
        ("numbers", "1", "nan", False),
        ("numbers", "yes", "no", False),
        ("numbers", "1 2", "1", False),
        ("numbers", "1", "1 2", False),
    ],
)
def test_outputs(rule: str, expected: str, actual: str, same: bool) -> None:
    assert same_output(expected, actual, rule) is same
