"""Countdown: exact arithmetic over given numbers, by a parser of its own."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from growth import LINEAR, growth
from hypothesis import given
from hypothesis import strategies as st

from assay.errors import VerifierError
from assay.types import Completion, Problem, ThinkFormat
from assay.verify.base import Part
from assay.verify.logic.countdown import NotArithmetic, evaluate, judge_countdown


def part(text: str, numbers: Any = (3, 5, 7, 2), target: Any = 29, **spec: Any) -> Part:
    completion = Completion.from_text(text, think=ThinkFormat("free"))
    spec = {"numbers": numbers, "target": target, **spec}
    return judge_countdown(Problem("p", "q", spec), completion)


def value_of(text: str) -> Fraction:
    return evaluate(text, sorted([*range(20)] * 9))[0]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1 + 2 * 3", 7),
        ("(1 + 2) * 3", 9),
        ("8 / 4 / 2", 1),
        ("9 - 4 - 3", 2),
        ("-(3 - 5)", 2),
        ("2(3 + 4)", 14),
        ("(1)(2)(3)", 6),
        (r"\frac{8}{3 - \frac{8}{3}}", 24),
        (r"\left( 3 \times 4 \right) \div 6", 2),
        ("1/3", Fraction(1, 3)),
        ("3 x 4", 12),
        ("3 * 4 = 12", 12),
        ("12 = 3 * 4", 12),
    ],
)
def test_values(text: str, value: Any) -> None:
    assert value_of(text) == value


@pytest.mark.parametrize(
    "text",
    ["", "1 2", "1 +", "+1", "1 - -2", "--1", "2 ** 3", "2 ^ 3", "3!", "7 // 2", "7 % 2", "1.5", "(1", "1)", "1 = 1 = 1", "1 + 1 = 3", "1; 2", "1, 2", "x", "1e3", "１", "sqrt(9)", "2 - (1", "__import__('os')"],
)  # fmt: skip
def test_no_arithmetic(text: str) -> None:
    with pytest.raises(NotArithmetic):
        value_of(text)


def test_division_by_zero_fails() -> None:
    assert part("3 / (5 - 5)", [3, 5, 5]).value == 0


def test_use_decides_whether_all_numbers_are_needed() -> None:
    assert part("3 * 7", target=21).value == 0
    assert part("3 * 7", target=21, use="subset").value == 1
    assert part("3 * 7 * 7", target=147, use="subset").value == 0


def test_the_last_expression_counts_and_alternatives_do_not() -> None:
    right, wrong = "3*5 + 7*2", "3+5+7+2"
    assert part(rf"\boxed{{{wrong}}} no, wait: \boxed{{{right}}}").value == 1
    assert part(rf"\boxed{{{right}}} no, wait: \boxed{{{wrong}}}").value == 0
    assert part(rf"\boxed{{{wrong}}} or \boxed{{{right}}}").value == 0
    assert part(f"<think>{right}</think>").value == 0


def test_detail_does_not_tell_the_target() -> None:
    assert "29" not in part("3 + 5 + 7 + 2").detail


def test_real_rows(shared_data: Path) -> None:
    lines = (shared_data / "logic" / "rg_countdown.jsonl").read_text(encoding="utf-8").splitlines()
    for row in map(json.loads, lines):
        problem = Problem(row["id"], "q", {"metadata": row["metadata"], "answer": row["answer"]})
        assert judge_countdown(problem, Completion.from_text(row["answer"])).value == 1
        other = {**row["metadata"], "target": row["metadata"]["target"] + 1}
        completion = Completion.from_text(row["answer"])
        assert judge_countdown(Problem("p", "q", {"metadata": other}), completion).value == 0


@pytest.mark.parametrize(
    "spec",
    [{"numbers": []}, {"numbers": "1 2"}, {"numbers": [1.5]}, {"numbers": [-1]}, {"target": None}, {"target": "29"}, {"use": "most"}],
)  # fmt: skip
def test_malformed_specs(spec: dict[str, Any]) -> None:
    with pytest.raises(VerifierError, match="accepted"):
        part("1", **spec)


@pytest.mark.parametrize(
    "text", ["(" * 90_000, "2*" * 400, "\\frac{" * 150, "<answer>" * 9000, "9" * 900]
)
def test_work_grows_with_the_text(text: str) -> None:
    assert part(text).value == 0
    assert growth(lambda size: part(text[:size]), len(text)) < LINEAR


@given(st.recursive(st.integers(0, 12).map(str), lambda e: st.tuples(e, st.sampled_from("+-*"), e).map(lambda t: f"({t[0]} {t[1]} {t[2]})"), max_leaves=8))  # fmt: skip
def test_agrees_with_python(text: str) -> None:
    assert value_of(text) == eval(text)


@given(st.text(alphabet="0123456789+-*/()= .x\\frac{}", max_size=40))
def test_any_text_is_judged(text: str) -> None:
    assert part(text).value in (0, 1)
