"""The calculator: exact where it can be, bounded, and with words for what it does not take."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.generate.turns.calculator import CALCULATOR, calculate
from assay.generate.turns.tool import ToolError


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("12*34", "408"),
        ("123456789 * 987654321 =", "121932631112635269"),
        ("2^10", "1024"),
        ("2**-1", "0.5"),
        ("10/2", "5"),
        ("1/3", "0.333333333333"),
        ("0.1+0.2", "0.3"),
        ("-5//2", "-3"),
        ("7%3", "1"),
        ("sqrt(16) + abs(-2)", "6"),
        ("sqrt(2)", "1.41421356237"),
        ("6 × 7", "42"),
        ("floor(2.5)", "2"),
    ],
)
def test_values(expression: str, value: str) -> None:
    assert calculate(expression) == value
    assert CALCULATOR.open()({"expression": expression}) == value


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("1/0", "division by zero"),
        ("9**9**9", "a number too large"),
        ("9" * 5000, "more than 1000 characters"),
        ("1e99999999", "a number too large"),
        ("__import__('os')", "not known; accepted: numbers"),
        ("(1+2", "no expression; accepted"),
        ("", "no expression"),
        ("True", "not known"),
        ("sqrt(-1)", "no result"),
        ("(-8)**(1/3)", "a root of a negative number"),
        ("(" * 300 + "1" + ")" * 300, "no expression"),
        ("-" * 900 + "1", "too deep"),
    ],
)
def test_expressions_that_are_refused(expression: str, words: str) -> None:
    with pytest.raises(ToolError, match=words):
        calculate(expression)


@given(st.text(max_size=30) | st.text("0123456789+-*/().e", max_size=20))
def test_any_text_has_a_value_or_words(text: str) -> None:
    try:
        assert calculate(text)
    except ToolError as error:
        assert str(error)
