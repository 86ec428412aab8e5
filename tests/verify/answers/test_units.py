"""Units: what is read as one, and what two of them make of one another."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.verify.answers.plain_numbers import read_number, same_number
from assay.verify.answers.units import NO_UNIT, convert, read_unit


def agree(gold: str, text: str) -> bool:
    expected, found = read_number(gold), read_number(text)
    assert expected is not None and found is not None
    return same_number(expected, found)


@pytest.mark.parametrize(
    ("gold", "text"),
    [
        ("1 m", "100 cm"),
        ("1.5 h", "90 min"),
        ("36 km/h", "10 m/s"),
        ("60 mph", "60 miles per hour"),
        ("2 m^2", "20000 cm^2"),
        ("2 square meters", "20000 cm²"),
        ("1 L", "1000 cm^3"),
        ("9.8 m/s^2", "980 cm s^{-2}"),
        ("1 kWh", "3600000 joules"),
        ("1 N", "1 kg m / s^2"),
        (r"\$7.50", "750 cents"),
        ("6 feet 2 inches", "74 inches"),
        ("5 apples", "5 apple"),
        ("12 sequences", "12 distinct arithmetic sequences"),
        ("4 people", "4 persons"),
        ("10 units", "10 cm"),
        ("10 square units", "10 cm^2"),
        ("2 years", "24 months"),
    ],
)
def test_equal_quantities_agree(gold: str, text: str) -> None:
    assert agree(gold, text)


@pytest.mark.parametrize(
    ("gold", "text"),
    [
        ("5 apples", "5 oranges"),
        ("5 apples", "5 cm"),
        ("60 mph", "60 km/h"),
        ("60 miles", "60 miles per hour"),
        ("2 m^2", "2 m"),
        ("2 m^2", "200 cm^2"),
        ("20°C", "20°F"),
        ("$5", "€5"),
        (r"\$5", "5 cents"),
        ("30°", "30 radians"),
        ("10 square units", "10 cm"),
        ("5 grams of salt", "5 grams of sugar"),
    ],
)
def test_different_quantities_do_not_agree(gold: str, text: str) -> None:
    assert not agree(gold, text)


@pytest.mark.parametrize(
    "text", ["maybe six", "or 6", "if x", "x", "+ 2", "but not 7", "/", "^2", "q" * 200]
)
def test_what_is_no_unit(text: str) -> None:
    assert read_unit(text) is None


def test_a_letter_that_touches_its_number_is_a_variable() -> None:
    assert read_unit("m", attached=True) is None
    assert read_unit("m^2", attached=True) is not None
    assert read_unit("cm", attached=True) is not None


UNITS = [
    "m",
    "cm",
    "km",
    "inches",
    "feet",
    "h",
    "min",
    "km/h",
    "m/s",
    "mph",
    "kg",
    "lb",
    "L",
    "cm^3",
    "°C",
    "°F",
    "K",
]


@given(st.sampled_from(UNITS), st.sampled_from(UNITS), st.fractions(-999, 999))
def test_conversion_is_exact_both_ways(first: str, second: str, value: Fraction) -> None:
    a, b = read_unit(first), read_unit(second)
    assert a is not None and b is not None
    there = convert(value, a, b)
    back = convert(there, b, a) if there is not None else None
    assert (there is None) == (convert(value, b, a) is None)
    assert back is None or back == value


@given(st.text(max_size=60))
def test_no_text_breaks_the_reader(text: str) -> None:
    unit = read_unit(text)
    assert unit is None or convert(Fraction(1), unit, NO_UNIT) == 1
