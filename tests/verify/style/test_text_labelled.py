"""Labelled sets of form and style: every verdict as expected; and verdicts pinned to a version."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from growth import LINEAR, growth

from assay.data.completions import Record
from assay.types import Completion, Problem
from assay.verify.base import Part, as_part, resolve
from assay.verify.selftest import labelled_rows

NAMES = ("think_format", "answer_tags", "language", "repetition", "length_target", "overlong")

# A verdict here changes only with its verifier's version.
PINNED: dict[str, list[tuple[dict[str, Any], str, float]]] = {
    "think_format@3": [
        ({"think": "free"}, "<think>a</think>b", 1.0),
        ({"think": "free"}, "<think>a</think>b</Think>", 0.0),
        ({"think": "opened"}, "a</think>b", 1.0),
        ({"think": "empty"}, "<think></think>b", 0.0),
        ({"think": "off"}, "", 1.0),
    ],
    "answer_tags@2": [
        ({"think": "free"}, "<think>a</think>so <answer>5</answer>\n", 1.0),
        ({"think": "free", "only": True}, "<think>a</think>so <answer>5</answer>", 0.0),
        ({"think": "free"}, "<answer>5</answer>.", 0.0),
    ],
    "language@2": [
        (
            {"target": "en"},
            "We add the two numbers, and then we divide the sum by two: 我们先相加.",
            13 / 18,
        ),
        ({"target": "zh"}, "我们先把两个数相加，得到 5。", 1.0),
        ({"target": "en"}, "Wir addieren die beiden Zahlen und teilen dann durch zwei.", 0.0),
    ],
    "repetition@1": [
        ({}, "The train covers 120 km in 2 hours, so it takes 5 hours for 300 km.", 0.0),
        ({}, "let me check this again " * 10, (42 / 47 - 0.4) / -0.6),
        ({}, "".join(f"add {k} to both sides of it. " for k in range(8)), (46 / 53 - 0.7) / -0.3),
    ],
    "length_target@1": [
        ({"target_words": 4}, "one two three", -0.25),
        ({"target_words": 4, "variant": "max"}, "one two three", -0.25),
        ({"target_words": 2, "alpha": 0.1}, "one two three four", -0.2),
    ],
    "overlong@1": [
        ({"max_words": 10}, "one two three four five six seven eight nine", -0.5),
        ({"max_words": 10, "buffer": 10}, "one two three", -0.3),
    ],
}


def judge(name: str, row: dict[str, Any]) -> Part:
    kept = {key: value for key, value in row.items() if key not in ("expected", "kind", "note")}
    problem, completion = Record.read(kept, name, "row").to_judge()
    verifier = resolve(name)
    return as_part(verifier.judge(replace(problem, verifier=name), completion))


@pytest.mark.parametrize("name", NAMES)
def test_every_labelled_row_has_its_verdict(name: str) -> None:
    if name == "language":
        pytest.importorskip("langdetect")
    rows = list(labelled_rows(name))
    assert len(rows) >= 20
    assert {row["kind"] for row in rows} == {"ordinary", "odd_style", "hack"}
    wrong: list[str] = []
    for row in rows:
        part = judge(name, row)
        score = part.value if part.score is None else part.score
        assert score is not None
        passed = score >= 1.0 if part.passed is None else part.passed
        if passed != (row["expected"] == "passed"):
            wrong.append(f"{row['id']}: {part.detail}")
    assert not wrong


@pytest.mark.parametrize("label", PINNED)
def test_pinned_verdicts(label: str) -> None:
    assert resolve(label).label == label
    for spec, text, value in PINNED[label]:
        found = judge(label, {**spec, "completion": text}).value
        assert found == pytest.approx(value, abs=1e-9), (spec, text)


@pytest.mark.parametrize("name", NAMES)
def test_no_default_weight_outweighs_correctness(name: str) -> None:
    verifier = resolve(name)
    assert verifier.bounds is not None
    assert verifier.weight * (verifier.bounds[1] - verifier.bounds[0]) <= 0.1


@pytest.mark.parametrize("name", NAMES)
def test_work_grows_with_a_usual_text(name: str) -> None:
    judge_one = resolve(name).judge
    problem = Problem("p", "q", {"target": "en", "target_words": 100, "max_words": 1000})

    def judge_text(num_sentences: int) -> None:
        sentences = (
            f"Then number {n} of the list is {n * n}, which is not what we want here. "
            for n in range(num_sentences)
        )
        text = f"<think>So we add the numbers. {''.join(sentences)}</think><answer>5</answer>"
        judge_one(problem, Completion.from_text(text))

    assert growth(judge_text, 240) < LINEAR
