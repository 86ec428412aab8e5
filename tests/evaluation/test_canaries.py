"""The canaries that are shipped: each is passed by what it should be passed by, and by no other.

``proofs/`` has for each canary completions that pass and completions that fail. Of a kind that must
never pass, those that pass are hacks, and those that fail are honest or plausible attempts. A
problem without any solution has no completion that passes.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from assay.data.overlap import ngrams, words_in
from assay.evaluation.gate_checks import CANARIES, MUST_FAIL
from assay.session.judging import judge

PROOFS = Path(__file__).with_name("proofs")
NGRAM = 6
PUBLIC = {
    "mbpp/prompt_val_train.jsonl": "text",
    "humaneval/first_40.jsonl": "prompt",
    "ifeval/first_150.jsonl": "prompt",
}


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def of_kind(rows: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [row for row in rows if row["tags"] == [kind]]


@pytest.mark.parametrize("domain", CANARIES)
def test_every_kind_is_there_and_no_id_twice(domain: str) -> None:
    rows = rows_of(CANARIES[domain])
    kinds = Counter(row["tags"][0] for row in rows)
    wanted = {*MUST_FAIL, "equivalent_forms", "misleading", "long_but_easy", "short_but_tricky"}
    wanted |= {"must_refuse", "ask_back"} | ({"weak_tests"} if domain != "mathematics" else set())
    assert len(rows) >= 60 and {*kinds} == wanted and min(kinds.values()) >= 6
    assert len({row["id"] for row in rows}) == len({row["prompt"] for row in rows}) == len(rows)


@pytest.mark.parametrize("domain", CANARIES)
def test_what_should_pass_passes_and_what_should_fail_fails(domain: str) -> None:
    rows = {row["id"]: row for row in rows_of(CANARIES[domain])}
    proofs = {row["id"]: row for row in rows_of(PROOFS / f"{domain}.jsonl")}
    if domain != "mathematics":
        assert {*proofs} == {*rows}
        assert all(len(one["fails"]) >= (1 if one["passes"] else 4) for one in proofs.values())
    asked = [
        (key, {**rows[id], "completion": text})
        for id, one in proofs.items()
        for key in ("passes", "fails")
        for text in one[key]
    ]
    found = judge([row for _, row in asked], num_workers=2)
    wrong = [
        (row["id"], row["completion"], status, why)
        for (key, row), status, why in zip(asked, found["status"], found["detail"], strict=True)
        if status != {"passes": "passed", "fails": "failed"}[key]
    ]
    assert not wrong
    assert sum(not one["passes"] for one in proofs.values()) <= 3, "so few cannot be passed at all"


def test_answers_of_mathematics() -> None:
    rows = rows_of(CANARIES["mathematics"])
    answered = [row for row in rows if "answer" in row]
    right = [{**row, "completion": rf"It is \boxed{{{row['answer']}}}."} for row in answered]
    assert {*judge(right, "math", num_workers=1)["status"]} == {"passed"}
    asking = of_kind(rows, "ask_back")
    for text, status in (("I cannot say: how far is it?", "passed"), ("It is 12.", "failed")):
        judged = judge([{**row, "completion": text} for row in asking], "regex", num_workers=1)
        assert {*judged["status"]} == {status}


@pytest.mark.skipif("ASSAY_DATA" not in os.environ, reason="needs the data folder (ASSAY_DATA)")
@pytest.mark.parametrize("domain", CANARIES)
def test_no_canary_was_copied(domain: str) -> None:
    """Not six words in a row of MBPP, HumanEval or IFEval."""
    folder = Path(os.environ["ASSAY_DATA"])
    public = [row[key] for name, key in PUBLIC.items() for row in rows_of(folder / name)]
    known = {gram for text in public for gram in grams(text)}
    assert len(known) > 5_000
    asked = {row["id"]: row["prompt"] for row in rows_of(CANARIES[domain])}
    assert not [id for id, prompt in asked.items() if grams(prompt) & known]


def grams(text: str) -> set[int]:
    words = tuple(word for word in words_in(text) if word.isalnum())
    return {*ngrams(words, NGRAM)}
