"""One spelling for what can be written in many ways, and splitting outside brackets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.verify.answers.latex_text import (
    brackets_of,
    canonical,
    is_label,
    split_top,
    squeeze,
    strip_label,
)


@pytest.mark.parametrize(
    ("text", "same"),
    [
        (r"$\dfrac{1}{2}$", r"\frac{1}{2}"),
        (r"\(\tfrac12\)", r"\frac{1}{2}"),
        (r"\[ \frac 1 2 \]", r"\frac{1}{2}"),
        (r"\frac{1}2", r"\frac{1}{2}"),
        (r"\sqrt2", r"\sqrt{2}"),
        ("√2", r"\sqrt{2}"),
        ("sqrt(x+1)", r"\sqrt{x+1}"),
        ("2*pi", r"2*\pi "),
        ("π", r"\pi"),
        (r"\left( 1, 2 \right]", "(1,2]"),
        (r"x \leq 5", r"x\le5"),
        ("x ≥ 5", r"x\geq5"),
        ("x**2", "x^2"),
        ("x²", "x^2"),
        ("x^(a)", "x^{a}"),
        ("2^10", "2^{10}"),
        (r"\text{Even}", "Even"),
        (r"11,\!880", "11,880"),
        (r"\mathbf{v}", "v"),
        ("**73**", "73"),
        (r"{-3}", "-3"),
        (r"14.0 + -1.0i", "14.0 - 1.0 i"),
        (r"\\frac{4}{3}", r"\frac{4}{3}"),
        ("（1，2）", "(1,2)"),
    ],
)
def test_spellings_with_one_canonical_form(text: str, same: str) -> None:
    assert squeeze(canonical(text)) == squeeze(canonical(same))


@pytest.mark.parametrize(
    ("text", "other"), [("12", "1 2"), ("5!", "5"), ("-1", "1"), ("x_1", "x1"), ("[1,2)", "(1,2)")]
)
def test_spellings_that_stay_apart(text: str, other: str) -> None:
    assert squeeze(canonical(text)) != squeeze(canonical(other))


def test_matrix_rows_are_kept() -> None:
    text = r"\begin{pmatrix}1 & 0 \\ 0 & 1\end{pmatrix}"
    assert canonical(text) == text


@given(st.text(alphabet="ab12 \\{}()[]$^_,.=", max_size=40))
def test_canonical_keeps_every_digit_in_order_whatever_the_brackets_do(text: str) -> None:
    def digits(written: str) -> list[str]:
        return [character for character in written if character.isdigit()]

    assert digits(canonical(text)) == digits(text)
    assert digits(canonical(canonical(text))) == digits(text)


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("1, 2 and 3", ["1", "2", "3"]),
        ("(5, 8), (8, 5)", ["(5, 8)", "(8, 5)"]),
        ("(0;0;0),(1;2;3)", ["(0;0;0)", "(1;2;3)"]),
        ("1,5; 2,5", ["1,5", "2,5"]),
        ("x or y", ["x", "y"]),
        ("sand, band", ["sand", "band"]),
        ("19, 46, and 82", ["19", "46", "82"]),
        (r"f(x,y)", [r"f(x,y)"]),
        (r"\{1,2\}", [r"\{1,2\}"]),
    ],
)
def test_split_top(text: str, pieces: list[str]) -> None:
    assert split_top(text) == pieces


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("[2,5)", ("[)", "2,5")),
        ("(1,2),(3,4)", ("", "(1,2),(3,4)")),
        (r"\{1,2\}", ("{}", "1,2")),
        ("(a+5)(b+2)", ("", "(a+5)(b+2)")),
        ("x", ("", "x")),
    ],
)
def test_brackets_of(text: str, found: tuple[str, str]) -> None:
    assert brackets_of(text) == found


@pytest.mark.parametrize(
    "text",
    ["x", "x_1", "f(x)", "f(2)", "S_{ABC}", "(p,q,r)", r"\theta", r"\frac{NO}{BO}", "total cost"],
)
def test_names_are_labels(text: str) -> None:
    assert is_label(text)


@pytest.mark.parametrize("text", ["2x", "x+y", "x^2", "2x + z", "7", "1 + 1", r"\frac{x}{2}"])
def test_formulas_are_no_labels(text: str) -> None:
    assert not is_label(text)


def test_labels() -> None:
    assert strip_label("x = 5") == ("x", "5")
    assert strip_label("5 = x") == ("x", "5")
    assert strip_label(r"x \in [1,2]") == ("x", "[1,2]")
    assert strip_label("2x + z = 1") == ("", "2x + z = 1")
    assert strip_label("7 = 11a+c") == ("", "7 = 11a+c")
