"""Decontaminate: rows that repeat an evaluation question go, and both texts are shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from stage_runs import rows_file, run_on, took

from assay.errors import ConfigError, DataError

ASKED = "A farmer has twelve cows and sells four of them at the market for ninety dollars each"
FIRST_HALF = "A farmer has twelve cows and sells four of them at night while the moon is up"
CHANGED = ASKED.replace("twelve", "twenty")


def run(tmp_path: Path, rows: list[dict[str, Any]], questions: list[str], **settings: Any) -> Any:
    against = rows_file(tmp_path / "test.jsonl", [{"question": text} for text in questions])
    return run_on(tmp_path, "decontaminate", rows, against=[against], **settings)


def test_the_same_question_and_a_near_one_go(tmp_path: Path) -> None:
    texts = ["What is 2+2?", ASKED.upper() + "!!", CHANGED, "A farmer has twelve cows", "2 + 2 ?"]
    kept, manifest = run(
        tmp_path, [{"prompt": text, "answer": "1"} for text in texts], ["nothing", ASKED, "2+2"]
    )
    assert [row["prompt"] for row in kept] == [texts[0], texts[3]]
    assert took(manifest) == {"same text": 1, "shared n-grams": 2}
    same, near = manifest.filters
    assert same.examples[0]["row"] == {
        "id": "input-0.jsonl:5",
        "question_id": "test.jsonl:3",
        "text": "2 + 2 ?",
        "question": "2+2",
    }
    assert near.examples[1]["row"]["text"] == CHANGED
    assert near.examples[1]["row"]["question"] == ASKED
    assert near.examples[1]["reason"] == "6 of the 10 n-grams of test.jsonl:2"
    assert [entry["rows"] for entry in manifest.inputs] == [5]
    (asked,) = manifest.measured.values()
    assert asked.startswith("3 rows, sha256 ")


@pytest.mark.parametrize(
    ("settings", "stays"),
    [
        ({}, False),
        ({"share": 0.7}, True),
        ({"share": 0.6}, False),
        ({"share": 0.9, "count": 6}, False),
        ({"share": 0.9, "count": 7}, True),
        ({"n": 13, "count": 1}, False),
        ({"n": 14, "count": 1}, True),
    ],
)
def test_n_share_and_count_decide(tmp_path: Path, settings: dict[str, Any], stays: bool) -> None:
    kept, _ = run(tmp_path, [{"prompt": "Another one"}, {"prompt": CHANGED}], [ASKED], **settings)
    assert (len(kept) == 2) is stays


def test_by_count_any_question_may_decide(tmp_path: Path) -> None:
    """Not only the one of which the text holds the largest share."""
    short = "how many of the cows does the farmer still have"
    text = f"{CHANGED} and {short.replace('have', 'own')}"
    rows = [{"prompt": "Another one"}, {"prompt": text}]
    kept, manifest = run(tmp_path, rows, [short, ASKED], share=1.0, count=6)
    assert len(kept) == 1
    assert manifest.filters[1].examples[0]["reason"] == "6 of the 10 n-grams of test.jsonl:2"


def test_a_question_is_found_in_a_trace_and_in_a_document(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "Go on"}, {"role": "assistant", "content": f"So: {ASKED}?"}]
    rows = [
        {"prompt": "Go on", "completion": f"The question says: {ASKED}. So 8."},
        {"messages": chat},
        {"text": f"Chapter one. {ASKED}. Chapter two."},
        {"text": "Chapter three."},
    ]
    kept, manifest = run(tmp_path, rows, [ASKED], compare="all")
    assert [row.get("text") for row in kept] == ["Chapter three."]
    assert took(manifest)["shared n-grams"] == 3


def test_only_the_prompt_is_compared_by_default(tmp_path: Path) -> None:
    rows = [{"prompt": "Go on", "completion": f"The question says: {ASKED}. So 8."}]
    kept, _ = run(tmp_path, rows, [ASKED])
    assert len(kept) == 1


def test_nothing_left_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        run(tmp_path, [{"prompt": ASKED}], [ASKED])
    (line,) = str(caught.value).splitlines()
    assert "same text took 1" in line


def test_wrong_settings_are_told_in_one_line(tmp_path: Path) -> None:
    for settings, word in (
        ({"share": 0.0}, "share"),
        ({"n": 0}, "n"),
        ({"compare": "x"}, "compare"),
    ):
        with pytest.raises(ConfigError) as caught:
            run(tmp_path, [{"prompt": ASKED}], [ASKED], **settings)
        (line,) = str(caught.value).splitlines()
        assert f"decontaminate {word}: found" in line


def test_a_row_without_text_is_reported_with_its_position(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"input-0.jsonl:2 text: found none among: answer"):
        run(tmp_path, [{"prompt": "a"}, {"answer": "3"}], [ASKED])
