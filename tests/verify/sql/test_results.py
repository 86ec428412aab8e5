"""Rows are compared as multisets or in order, with a tolerance between numbers."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.verify.sql.results import decoded, same_rows

VALUES = st.one_of(st.none(), st.integers(-3, 3), st.sampled_from([0.5, 1.0, 1.0 + 1e-12]), st.sampled_from(["", "1", "a"]), st.just(b"a"))  # fmt: skip
ROWS = st.lists(st.tuples(VALUES, VALUES), max_size=4)


def slow(found: list[Any], expected: list[Any]) -> bool:
    """The obvious comparison: some order of the rows equals the expected rows."""
    return any(same_rows(list(one), expected, True, 1e-9) for one in permutations(found))


@given(ROWS, ROWS)
def test_a_multiset_is_some_order_of_the_rows(found: list[Any], expected: list[Any]) -> None:
    assert same_rows(found, expected, False, 1e-9) == slow(found, expected)


@given(ROWS, st.randoms())
def test_the_order_of_rows_does_not_matter_unless_asked(rows: list[Any], random: Any) -> None:
    mixed = [*rows]
    random.shuffle(mixed)
    assert same_rows(mixed, rows, False, 1e-9)


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (1, 1.0, True),
        (1, "1", False),
        (None, None, True),
        (None, 0, False),
        (None, "", False),
        ("a", "A", False),
        ("a", b"a", False),
        (0.1 + 0.2, 0.3, True),
        (1.0, 1.001, False),
        (2**60, 2**60 + 1, False),
        (float("inf"), float("inf"), True),
        (float("inf"), 1e308, False),
    ],
)
def test_values(one: Any, other: Any, equal: bool) -> None:
    assert same_rows([(one,)], [(other,)], True, 1e-9) is equal
    assert same_rows([(one,)], [(other,)], False, 1e-9) is equal


def test_many_rows_may_differ_by_rounding() -> None:
    expected = [(n % 7 + 0.3, n) for n in range(300)]
    found = [(n % 7 + (0.1 + 0.2 if n % 3 else 0.3), n) for n in range(300)]
    assert same_rows(found, expected, False, 1e-9)
    assert not same_rows(found, [*expected[:-1], (5.3, 1000)], False, 1e-9)


def test_a_text_is_never_the_place_of_a_number() -> None:
    assert not same_rows([(1, "number")], [("number", 1)], False, 1e-9)


def test_a_large_tolerance_is_relative() -> None:
    assert not same_rows([(1e-6,)], [(2e-6,)], False, 0.01)


def test_widths_and_repeats_count() -> None:
    assert not same_rows([(1,)], [(1, 2)], False, 1e-9)
    assert not same_rows([(1,), (1,)], [(1,)], False, 1e-9)
    assert not same_rows([(1,), (1,), (2,)], [(1,), (2,), (2,)], False, 1e-9)


def test_rows_within_the_tolerance_may_be_sorted_differently() -> None:
    one = [(1.0, 5), (1.0 + 1e-12, 4)]
    other = [(1.0 + 1e-12, 5), (1.0, 4)]
    assert same_rows(one, other, False, 1e-9)


def test_reals_and_blobs_of_the_process_are_decoded() -> None:
    assert decoded([[{"real": "1e400"}, {"blob": "61"}, None, 3, "x"]]) == [
        (float("inf"), b"a", None, 3, "x")
    ]
