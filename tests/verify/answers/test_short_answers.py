"""Exact texts and patterns: where the answer stands, what is ignored, and how long a match may take."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.errors import VerifierError
from assay.types import Completion, Problem, ThinkFormat
from assay.verify.answers.short_answers import judge_exact, judge_regex
from assay.verify.base import Part


def exact(text: str, answer: Any = "Marie Curie", **spec: Any) -> Part:
    completion = Completion.from_text(text, think=ThinkFormat("free"))
    return judge_exact(Problem("p", "q", {"answer": answer, **spec}), completion)


def matched(text: str, pattern: Any, **spec: Any) -> Part:
    completion = Completion.from_text(text, think=ThinkFormat("free"))
    return judge_regex(Problem("p", "q", {"pattern": pattern, **spec}), completion)


@pytest.mark.parametrize(
    ("spec", "text", "expected"),
    [
        ({}, "marie curie", 1),
        ({"ignore_case": False}, "marie curie", 0),
        ({"ignore_whitespace": False}, "Marie  Curie", 0),
        ({"ignore_punctuation": True}, "Marie, Curie", 1),
        ({}, "Marie, Curie", 0),
        ({"answer": "Zürich", "ignore_accents": True}, "Zurich", 1),
        ({"answer": "Zürich"}, "Zurich", 0),
        ({"answer": ["a", "b"]}, "b", 1),
        ({"answer": "a."}, "a.", 1),
        ({"answer": "a."}, "a", 0),
        ({"answer": 2.5}, "2.5", 1),
        ({"where": "last_line"}, "x\nMarie Curie", 1),
        ({"where": "whole"}, "x\nMarie Curie", 0),
        ({"where": "marked"}, "Marie Curie", 0),
        ({"where": "marked"}, r"\boxed{Marie Curie}", 1),
        ({}, r"\boxed{Pierre} and then \boxed{Marie Curie}", 1),
        ({}, r"\boxed{Pierre} or \boxed{Marie Curie}", 0),
        ({}, "Answer: Marie Curie", 1),
        ({"answer": "The answer is 42"}, "the answer is 42", 1),
        ({}, "<think>Marie Curie</think>", 0),
    ],
)
def test_exact(spec: dict[str, Any], text: str, expected: int) -> None:
    assert exact(text, **spec).value == expected


def test_a_text_too_long_has_no_answer() -> None:
    assert exact(" " * 100_000 + "Marie Curie").value == 0
    assert matched("x" * 100_001, "x+").value == 0


@given(st.text(min_size=1).filter(lambda text: text.strip() and "<" not in text))
def test_a_text_equals_itself(text: str) -> None:
    assert exact(text, text, where="whole").value == 1


@given(st.text(max_size=20), st.text(min_size=1, max_size=20))
def test_more_than_the_answer_is_another_text(answer: str, rest: str) -> None:
    assert exact(f"Marie Curie {answer} or {rest} Bohr", where="whole").value == 0


def test_patterns() -> None:
    assert matched("AB12", r"[A-Z]{2}\d\d").value == 1
    assert matched("xAB12", r"[A-Z]{2}\d\d").value == 0
    found = matched("xAB12y", r"[A-Z]{2}\d\d", mode="search")
    assert found.value == 1 and found.extracted == "AB12"
    assert matched("a\nb", "a.b").value == 0
    assert matched("A\nB", "a.b", flags="is").value == 1


def test_a_pattern_sees_the_reasoning_where_it_asks_for_the_trace() -> None:
    text, polite = "<think>What a fool.</think>Hello!", r"(?!.*fool).*"
    assert matched(text, polite).value == 1
    assert matched(text, polite, where="trace").value == 0
    assert matched("<think>A friend.</think>Hello!", polite, where="trace").value == 1


def test_backtracking_ends_and_fails() -> None:
    verdict = matched("a" * 80 + "b", "(a|aa)+$")
    assert verdict.value == 0 and "backtrack" in verdict.detail


@pytest.mark.parametrize(
    "spec",
    [{"pattern": "("}, {"pattern": ""}, {"pattern": 3}, {"pattern": "a", "flags": "z"}, {"pattern": "a", "mode": "match"}, {"pattern": "a", "where": "top"}],
)  # fmt: skip
def test_malformed_patterns(spec: dict[str, Any]) -> None:
    with pytest.raises(VerifierError, match="accepted") as caught:
        matched("a", **spec)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("answer", [None, "", " ", [], [""], True, {"a": 1}])
def test_malformed_answers(answer: Any) -> None:
    with pytest.raises(VerifierError, match="accepted"):
        exact("a", answer)
