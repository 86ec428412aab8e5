"""Detectors of behaviors: what they read, what they measure, and that no text makes them slow."""

from __future__ import annotations

from typing import Any

import pytest
from growth import LINEAR, growth
from hypothesis import given
from hypothesis import strategies as st

from assay.errors import VerifierError
from assay.types import Completion, Problem, ThinkFormat
from assay.verify.base import known_errors
from assay.verify.behaviors.detectors import (
    BEHAVIORS,
    MAX_SENTENCE,
    find_behaviors,
    lowered,
    reasoning_of,
)
from assay.verify.behaviors.verifier import judge_behaviors
from assay.verify.selftest import labelled_rows, self_test
from assay.verify.service import VerifierService


def shown(text: str, **completion: Any) -> set[str]:
    return {*find_behaviors(Completion.from_text(text, **completion)).behaviors}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("So 14 + 6 = 20. Let me check: 20 - 6 = 14.", {"self_verification"}),
        ("Wait, that's wrong: it is 12.", {"backtracking", "metacognition"}),
        ("First, let's find the price of one pen.", {"subgoals"}),
        ("Working backwards from 20, there were 14 before.", {"backward_chaining"}),
        ("Hmm.", {"metacognition"}),
        ("So the answer is 4, 因为二加二等于四.", {"language_mixing"}),
        ("The answer is 4. We add two and two, which makes four.", {"answer_first"}),
        ("It is 4. " * 20, {"answer_first", "repetition"}),
        ("She waits 4 minutes and checks in 2 bags.", set()),
        ("", set()),
    ],
)
def test_a_text_shows_its_behaviors(text: str, expected: set[str]) -> None:
    assert shown(text) >= expected
    assert expected or not shown(text)


def test_reasoning_is_read_and_the_answer_after_it_is_not() -> None:
    think = ThinkFormat("free")
    assert shown("<think>2 + 2 = 4.</think>Let me double-check.", think=think) == set()
    assert shown("<think>Let me double-check.</think>4", think=think) == {"self_verification"}
    assert shown("Let me double-check.</think>4", think=ThinkFormat("opened")) == {
        "self_verification"
    }


def test_results_of_tools_are_not_read() -> None:
    text = "I call the tool.\nHmm, wait, let me double-check.\nIt says 4."
    said = ((0, 17), (text.index("It"), len(text)))
    assert shown(text) > set() and shown(text, said=said) == set()


def test_spans_are_places_of_the_completions_text() -> None:
    text = "<think>İt is 4.\nHmm, I'm not sure.</think>4"
    completion = Completion.from_text(text, think=ThinkFormat("free"))
    (span,) = [one for one in find_behaviors(completion).spans if one.behavior == "metacognition"]
    assert text[span.start : span.end] == "Hmm, I'm not sure."


@given(st.text())
def test_any_text_keeps_its_positions(text: str) -> None:
    assert len(reasoning_of(Completion.from_text(text))) == len(lowered(text)) == len(text)


@pytest.mark.parametrize(
    "unit",
    ["wait, ", "so i need ", "let me ", "a.b", "1. ", "the answer is the ", "\\(", '"', "é la "],
)
def test_no_text_takes_quadratic_time(unit: str) -> None:
    def work(size: int) -> None:
        find_behaviors(Completion.from_text(unit * size))

    assert growth(work, 8 * MAX_SENTENCE) < LINEAR


def test_a_text_in_another_language_is_not_judged() -> None:
    text = "Zuerst addieren wir die beiden Zahlen, und dann teilen wir die Summe durch zwei."
    assert not find_behaviors(Completion.from_text(text)).measured
    part = judge_behaviors(Problem("p", "q"), Completion.from_text(text))
    assert part.value is None and "English" in part.detail
    looping = Completion.from_text("Wir addieren die Zahlen noch einmal. " * 12)
    assert judge_behaviors(Problem("p", "q", {"behavior": "repetition"}), looping).value == 1.0


def test_a_behavior_counts_once_and_every_behavior_is_a_component() -> None:
    spec = {"behavior": ["self_verification", "backtracking"]}
    completion = Completion.from_text("Let me double-check. Let me double-check.")
    part = judge_behaviors(Problem("p", "q", spec), completion)
    assert part.value == 0.5 and not part.accepted
    assert {*part.components} == {*BEHAVIORS} and part.components["self_verification"] == 1.0
    with pytest.raises(VerifierError, match=r"spec\.behavior: found 'checking'"):
        judge_behaviors(Problem("p", "q", {"behavior": "checking"}), completion)


def test_as_a_term_it_measures_and_pays_nothing() -> None:
    problem = Problem("p", "q", {"answer": "4"})
    completion = Completion.from_text("2 + 2 = 4. Let me check: 4 - 2 = 2. The answer is 4.")
    with VerifierService("exact + behaviors", num_workers=1) as service:
        (verdict,) = service.judge_text([(problem, completion)])
        german = "Wir addieren die beiden Zahlen, und dann ist das Ergebnis die Summe.\n4"
        (other,) = service.judge_text([(problem, Completion.from_text(german))])
    assert verdict.reward == verdict.components["exact"]
    assert verdict.components["behaviors.self_verification"] == 1.0
    assert other.judged and "behaviors.self_verification" not in other.components


def test_both_halves_of_the_labelled_set_hold_both_labels_of_every_behavior() -> None:
    for name in ("behaviors", "behaviors_tuning"):
        rows = list(labelled_rows(name))
        counts = {(row["behavior"], row["expected"]): 0 for row in rows}
        for row in rows:
            counts[row["behavior"], row["expected"]] += 1
        assert counts.keys() == {(b, e) for b in BEHAVIORS for e in ("passed", "failed")}
        assert min(counts.values()) >= 20


def test_no_passage_is_in_both_halves() -> None:
    halves = [list(labelled_rows(name)) for name in ("behaviors", "behaviors_tuning")]
    for key in ("id", "completion"):
        seen = [{(row["behavior"], row[key]) for row in rows} for rows in halves]
        assert not seen[0] & seen[1]


def test_the_self_test_measures_an_error_and_is_no_failure() -> None:
    (result,) = self_test(["behaviors"], num_workers=1)
    assert result.fallible and result.rows > 600
    assert 0.85 < (result.accuracy or 0.0) < 1.0


@pytest.mark.parametrize("error", known_errors("behaviors"), ids=lambda error: error.what)
def test_known_errors_are_errors(error: Any) -> None:
    part = judge_behaviors(Problem("p", "q", error.spec), Completion.from_text(error.completion))
    assert ("passed" if part.accepted else "failed") == error.says != error.should_say
