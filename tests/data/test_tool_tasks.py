"""Products and their traces: splits that are apart, calls with their results given, and few wrong."""

from __future__ import annotations

import re

import pytest

from assay.data.problems import load_problems
from assay.data.tool_tasks import product_traces, products
from assay.data.traces import read_trace
from assay.errors import DataError

CALL = re.compile(r"calculator\((\d+)\*(\d+)\)=(\d+);(\d+)")


def test_splits_are_apart_and_answers_right() -> None:
    train, heldout = (products(300, split=split) for split in ("train", "heldout"))
    assert not {one.prompt for one in train} & {one.prompt for one in heldout}
    for problem in train:
        left, right = str(problem.prompt).removesuffix("=").split("*")
        assert len(left) == len(right) == 3
        assert problem.spec["answer"] == str(int(left) * int(right))
    assert len({one.id for one in train}) == 300
    source = "assay.data.tool_tasks:products?size=3&digits=2"
    assert [len(str(one.prompt)) for one in load_problems((source,))] == [6, 6, 6]


def test_traces_call_as_often_as_they_are_told() -> None:
    traces = list(product_traces(1000, called=0.3, slipped=0.2))
    calls = [(one, match) for one in traces if (match := CALL.fullmatch(one.completion))]
    assert 240 < len(calls) < 360
    assert all(
        one.completion.isdigit() and not one.said for one in traces if "c" not in one.completion
    )
    right = 0
    for trace, match in calls:
        left, right_factor, told, answer = match.groups()
        assert told == answer == str(int(left) * int(right_factor))
        assert [trace.completion[start:end] for start, end in trace.said] == [
            f"calculator({left}*{right_factor})",
            answer,
        ]
        right += trace.prompt == f"{left}*{right_factor}="
    assert 0.7 < right / len(calls) < 0.9


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"digits": 0}, "digits: found 0; accepted: a whole number from 1 to 9"),
        ({"split": "test"}, "split"),
        ({"split": "train", "called": 2}, "called: found 2; accepted: a share"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, object], words: str) -> None:
    with pytest.raises(DataError, match=words):
        product_traces(3, **settings)  # type: ignore[arg-type]


def test_rows_say_where_the_policy_speaks() -> None:
    row = {"prompt": "6*7", "completion": "c(6*7)=42;42", "said": [[0, 6], [10, 12]]}
    trace = read_trace(row, "a.jsonl:1", "1")
    assert trace.said == ((0, 6), (10, 12))


@pytest.mark.parametrize(
    "said", [[[0, 99]], [[4, 2]], [[0, 5], [3, 6]], [["a", "b"]], "all", [[0]], [[0, 1.5]], 3]
)
def test_malformed_assistant_spans_are_refused(said: object) -> None:
    row = {"prompt": "6*7", "completion": "c(6*7)=42;42", "said": said}
    with pytest.raises(
        DataError, match=r"said: found .*pairs of places in the completion, in order"
    ):
        read_trace(row, "a.jsonl:1", "1")
