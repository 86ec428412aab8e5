"""Rows for reward models: what is read, and what is said of rows that cannot be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from assay.data.labelled import (
    load_comparisons,
    load_outcomes,
    load_steps,
    read_comparison,
    read_outcome,
    read_steps,
)
from assay.data.pairs import Pair
from assay.errors import DataError


def rows_file(folder: Path, rows: list[Any]) -> str:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def test_a_collected_completion_is_labelled_by_its_verdict(tmp_path: Path) -> None:
    """As `assay data collect` writes it; what was not judged has no label."""
    row = {"prompt": "1+1=", "completion": "2", "answer": "2"}
    for verdict, label in (
        ({"status": "passed", "score": 1.0, "reward": 1.1}, 1.0),
        ({"status": "failed", "score": 0.0, "reward": 0.1}, 0.0),
    ):
        assert read_outcome({**row, "verdict": verdict}, "f:1", "f:1").label == label
    assert read_outcome({**row, "verdict": verdict, "label": True}, "f:1", "f:1").label == 1.0
    with pytest.raises(DataError, match="f:1 verdict: found None"):
        read_outcome({**row, "verdict": {"status": "not_judged"}}, "f:1", "f:1")


def test_outcomes_by_any_of_their_names(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    rows = [
        {"prompt": "q", "completion": "a", "label": True},
        {"question": "q", "completion": "a", "correct": 0},
        {"prompt": "q", "completion": "a", "score": 0.25, "status": "failed"},
        {"messages": chat, "label": False},
    ]
    found = load_outcomes([rows_file(tmp_path, rows)])
    assert [one.label for one in found] == [1.0, 0.0, 0.25, 0.0]
    assert found[3].prompt == (chat[0],) and found[3].completion == "a"
    assert found[1].source.endswith("rows.jsonl:2")


def test_steps_as_a_list_or_by_their_ends(tmp_path: Path) -> None:
    rows = [
        {"prompt": "q", "steps": ["a", "b"], "labels": [1, 0.5]},
        {"prompt": "q", "completions": ["a"], "labels": [False]},
        {"prompt": "q", "completion": "one\ntwo", "labels": [1, 0]},
        {"prompt": "q", "completion": "one two", "labels": [1, 0], "step_ends": [2, 6]},
    ]
    found = load_steps([rows_file(tmp_path, rows)])
    assert [one.labels for one in found] == [(1.0, 0.5), (0.0,), (1.0, 0.0), (1.0, 0.0)]
    assert found[0].steps == ("a", "b") and found[0].completion == ""
    assert found[2].step_ends is None and found[3].step_ends == (2, 6)


def test_pairs_with_and_without_a_margin(tmp_path: Path) -> None:
    pair = {"prompt": "q", "chosen": "a", "rejected": "b"}
    found = load_comparisons([rows_file(tmp_path, [pair, {**pair, "margin": 2}])])
    assert [one.margin for one in found] == [0.0, 2.0]
    assert found[0].pair == Pair("q", "a", "b", found[0].source)


@pytest.mark.parametrize(
    ("read", "row", "text"),
    [
        (read_outcome, {"prompt": "q", "completion": "a"}, "f:1 label: found none among"),
        (read_outcome, {"prompt": "q", "completion": "a", "label": 2}, "f:1 label: found 2"),
        (read_outcome, {"prompt": "q", "completion": " ", "label": 1}, "f:1 completion: found"),
        (read_outcome, {"completion": "a", "label": 1}, "f:1 prompt: found none"),
        (read_outcome, {"prompt": "q", "label": 1}, "f:1 completion: found none among"),
        (read_outcome, {"messages": "q", "label": 1}, "f:1 messages: found 'q'"),
        (read_outcome, {"prompt": "q", "completion": "a", "label": "yes"}, "true, false, or a"),
        (read_steps, {"prompt": "q", "steps": ["a"]}, "f:1 labels: found None"),
        (read_steps, {"prompt": "q", "steps": ["a"], "labels": []}, "one a step"),
        (read_steps, {"prompt": "q", "steps": ["a"], "labels": [1, 1]}, "1 labels, one for each"),
        (read_steps, {"prompt": "q", "steps": "ab", "labels": [1, 1]}, "a list of texts"),
        (read_steps, {"prompt": "q", "steps": ["a", ""], "labels": [1, 1]}, "steps[1]: found ''"),
        (read_steps, {"prompt": "q", "steps": ["a"], "labels": [-1]}, "labels[0]: found -1"),
        (
            read_steps,
            {"prompt": "q", "completion": "abc", "labels": [1, 1], "step_ends": [1, 1]},
            "2 rising whole numbers, one a label",
        ),
        (
            read_comparison,
            {"prompt": "q", "chosen": "a", "rejected": "b", "margin": "big"},
            "f:1 margin: found 'big'",
        ),
        (read_comparison, {"prompt": "q", "completion": "a", "label": True}, 'kind = "outcome"'),
        (read_comparison, {"prompt": "q", "chosen": "a"}, "f:1 rejected: found"),
    ],
)
def test_errors_are_one_line(read: Any, row: dict[str, Any], text: str) -> None:
    with pytest.raises(DataError) as caught:
        read(row, "f:1", "f:1")
    assert text in str(caught.value) and "\n" not in str(caught.value)
    assert str(caught.value).startswith("f:1 ")


def test_public_sets_are_read_as_they_are(shared_data: Path) -> None:
    folder = shared_data / "preferences"
    for name in ("dpo_en_demo", "hh_harmless"):
        pairs = load_comparisons([str(folder / f"{name}.jsonl")], on_bad_row="skip")
        assert len(pairs) > 100 and pairs.num_skipped < len(pairs) / 20
    outcomes = load_outcomes([str(folder / "kto_en_demo_unpaired.jsonl")])
    assert {one.label for one in outcomes} == {0.0, 1.0}
