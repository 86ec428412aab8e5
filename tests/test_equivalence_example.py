"""Rows for verifiers that learn to compare answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from assay.data.labelled import load_outcomes
from assay.data.problems import load_problems
from assay.data.traces import load_traces
from assay.errors import DataError
from assay.types import Completion
from examples.reward_model.equivalence import (
    answer_pairs,
    read_answer_pair,
    read_verdict,
    reasoning_traces,
    says_the_label,
    scalar_rows,
    verdict_problems,
)


def test_sums_are_what_their_label_says() -> None:
    pairs = answer_pairs(size=200)
    shares = [pair.label for pair in pairs]
    assert 0.4 < sum(shares) / 200 < 0.6
    for pair in pairs:
        assert (eval(pair.candidate) == int(pair.reference)) is pair.label
        *steps, last = pair.reasoning.split(";")
        assert all(eval(step.replace("=", "==")) for step in steps)
        assert last == f"{eval(pair.candidate)}{'=' if pair.label else '!='}{pair.reference}"
    assert {one.candidate for one in pairs}.isdisjoint(
        one.candidate for one in answer_pairs(size=200, split="heldout")
    )
    assert answer_pairs(size=3)[2] == answer_pairs(size=9)[2] != answer_pairs(size=3, seed=1)[2]


def test_both_kinds_of_verifier_read_the_same_pairs() -> None:
    rows = load_outcomes(["examples.reward_model.equivalence:scalar_rows?size=20"])
    traces = load_traces(["examples.reward_model.equivalence:reasoning_traces?size=20"])
    problems = load_problems(["examples.reward_model.equivalence:verdict_problems?size=20"])
    for pair, row, trace, problem in zip(
        answer_pairs(size=20), rows, traces, problems, strict=True
    ):
        assert row.label == pair.label and row.completion.strip() == pair.candidate
        assert pair.reference in str(row.prompt) and pair.candidate not in str(row.prompt)
        assert read_verdict(trace.completion) is pair.label
        assert problem.prompt == trace.prompt and problem.spec["label"] is pair.label
        judged = says_the_label(problem, Completion.from_text(trace.completion))
        assert judged == {"score": 1.0, "extracted": "yes" if pair.label else "no"}


def test_the_last_verdict_counts() -> None:
    assert read_verdict("Verdict: no\nwait\nVerdict: yes") is True
    assert read_verdict("Verdict: nothing") is None
    (problem,) = verdict_problems(size=1)
    assert says_the_label(problem, Completion.from_text("yes"))["score"] == 0.0


def test_pairs_of_a_file(tmp_path: Path) -> None:
    rows = [
        {"gold": "1/2", "pred": "0.5", "expected": True},
        {"question": "How many?", "answer": 3, "response": "4", "correct": False},
        {"reference": "a", "candidate": "b", "label": False, "reasoning": "They differ."},
    ]
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    first, second, third = reasoning_traces(pairs=str(path))
    assert first.completion == " Verdict: yes" and "1/2" in str(first.prompt)
    assert str(second.prompt).startswith("How many?") and second.source.endswith(":2")
    assert third.completion == " They differ.\nVerdict: no"
    assert [row["label"] for row in scalar_rows(pairs=str(path))] == [True, False, False]


def test_the_shared_pairs_are_read(shared_data: Path) -> None:
    pairs = answer_pairs(pairs=str(shared_data / "verifier" / "pairs.jsonl"))
    assert len(pairs) > 200 and 0.5 < sum(pair.label for pair in pairs) / len(pairs) < 1


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"gold": "1", "pred": "1"}, "f:1 label: found None; accepted: true or false"),
        ({"gold": "1", "label": True}, "f:1 candidate: found none among"),
        ({"gold": "1", "pred": " ", "label": True}, "f:1 pred: found ' '"),
        ({"pred": "1", "label": 1}, "f:1 label: found 1"),
    ],
)
def test_errors_are_one_line(row: dict[str, Any], text: str) -> None:
    with pytest.raises(DataError) as caught:
        read_answer_pair(row, "f:1", "f:1")
    assert str(caught.value).startswith(text) and "\n" not in str(caught.value)
