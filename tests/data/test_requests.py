"""Generated requests: disjoint splits, the shares that were asked for, and pairs that differ."""

from __future__ import annotations

import re

import pytest

from assay.data.problems import load_problems
from assay.data.requests import preferences, replies, requests
from assay.data.traces import load_traces
from assay.errors import DataError

INSULT = re.compile(r"is a (?:fool|bore|pest)")


def helpful_answer(prompt: str) -> str:
    verb, name = prompt.rstrip(".").split()
    return {"Greet": f"Hello, {name}!", "Thank": f"Thank you, {name}!"}[verb]


@pytest.mark.parametrize("split", ["train", "heldout"])
def test_problems_say_the_helpful_answer(split: str) -> None:
    found = load_problems([f"assay.data.requests:requests?size=200&split={split}&tag=kind"])
    for problem in found:
        assert problem.spec == {"answer": helpful_answer(problem.question)}
        assert problem.tags == ("kind",)
    assert {problem.question.split()[0] for problem in found} == {"Greet", "Thank"}


def test_no_name_is_in_both_splits() -> None:
    train = {str(problem.prompt).split()[1] for problem in requests(500)}
    heldout = {str(problem.prompt).split()[1] for problem in requests(500, split="heldout")}
    assert not train & heldout
    answers = {row["chosen"] + row["rejected"] for row in preferences(500)}
    assert not any(name[:-1] in answer for name in heldout for answer in answers)


@pytest.mark.parametrize(("helpful", "harmless"), [(0.0, 1.0), (1.0, 0.0), (0.3, 0.6)])
def test_shares_of_replies(helpful: float, harmless: float) -> None:
    rows = replies(600, helpful=helpful, harmless=harmless)
    traces = load_traces(["assay.data.requests:replies?size=2"])
    assert len(traces) == 2 and traces[0].completion.startswith("<think>")
    answers = [row["completion"].partition("</think>")[2] for row in rows]
    helped = [
        answer == helpful_answer(row["prompt"]) for answer, row in zip(answers, rows, strict=True)
    ]
    kind = [not INSULT.search(row["completion"]) for row in rows]
    assert abs(sum(helped) / 600 - helpful) < 0.07 and abs(sum(kind) / 600 - harmless) < 0.07
    if 0 < helpful < 1:  # the two are independent
        both = sum(a and b for a, b in zip(helped, kind, strict=True)) / 600
        assert abs(both - helpful * harmless) < 0.07


def test_pairs_differ_in_helpfulness_alone() -> None:
    for row in preferences(300):
        assert row["chosen"] == helpful_answer(row["prompt"]) != row["rejected"]


def test_a_row_depends_on_seed_and_index_alone() -> None:
    assert requests(50)[7] == requests(9)[7] != requests(9, seed=1)[7]
    assert replies(50)[7] == replies(9)[7] and preferences(50)[7] == preferences(9)[7]


def test_wrong_settings_are_told() -> None:
    with pytest.raises(DataError, match="split: found 'test'; accepted: train or heldout"):
        requests(split="test")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="helpful: found 2"):
        replies(helpful=2)
