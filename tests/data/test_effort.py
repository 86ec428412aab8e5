"""The effort of a row: its own, or the configured one; a line at the end of the question, or no line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from data_files import problems_of

from assay.config import DataConfig, SamplingConfig
from assay.data.chat import PromptRenderer, keep_fitting
from assay.data.pairs import Labelled, Pair, read_preference
from assay.data.rows import problem_row, read_problem
from assay.data.traces import Trace, read_trace
from assay.errors import DataError
from assay.testing import CHAT_TEMPLATE, byte_tokenizer
from assay.types import Problem

EFFORTS: dict[str, int | str] = {"low": "Be brief.", "high": "Take your time.", "some": 64}


def renderer_of(
    template: str | None = None, limit: int | None = None, **sampling: Any
) -> PromptRenderer:
    asked = SamplingConfig(**{"efforts": EFFORTS, **sampling})
    return PromptRenderer(byte_tokenizer(template), DataConfig(), limit, sampling=asked)


@pytest.mark.parametrize(
    ("own", "configured", "question"),
    [
        ("low", None, "2+2?\nBe brief."),
        (None, "high", "2+2?\nTake your time."),
        ("low", "high", "2+2?\nBe brief."),
        ("some", "high", "2+2?"),  # a budget has no words
        (None, "some", "2+2?"),
        (None, None, "2+2?"),
    ],
)
def test_a_line_ends_the_question(own: str | None, configured: str | None, question: str) -> None:
    problem = Problem("a", "2+2?", effort=own)
    assert renderer_of(effort=configured).render(problem).text == f"{question}\n"
    chat = renderer_of(CHAT_TEMPLATE, effort=configured)
    turns = [{"role": "user", "content": "2+2?"}]
    expected = chat.render(Problem("a", ({"role": "user", "content": question},), effort="some"))
    assert chat.render(Problem("a", tuple(turns), effort=own)).text == expected.text
    assert turns == [{"role": "user", "content": "2+2?"}], "the row itself stays as it is"


def test_it_is_the_last_turn_of_the_user_that_has_the_line() -> None:
    turns = [("system", "S"), ("user", "2+2?"), ("assistant", "4"), ("user", "And 3+3?")]
    prompt = tuple({"role": role, "content": text} for role, text in turns)
    text = renderer_of(CHAT_TEMPLATE).render(Problem("a", prompt, effort="low")).text
    assert text.count("Be brief.") == 1 and "And 3+3?\nBe brief." in text


def test_every_kind_of_row_may_have_it_and_is_shown_the_same_prompt() -> None:
    row = {"question": "2+2?", "effort": "low"}
    problem = read_problem({**row, "answer": "4"}, "f:1", "f:1")
    assert problem.effort == "low" and "effort" not in problem.spec
    assert read_problem(problem_row(problem), "f:1", "f:1").effort == "low"
    render = renderer_of()
    expected = render.render(problem)
    trace = read_trace({**row, "completion": "4"}, "f:1", "")
    assert trace == Trace("2+2?", "4", "f:1", effort="low")
    assert render.render_trace(trace)[0].tolist() == expected.tokens.tolist()
    pair = read_preference({**row, "chosen": "4", "rejected": "5"}, "f:1", "")
    label = read_preference({**row, "completion": "4", "label": True}, "f:1", "")
    assert isinstance(pair, Pair) and isinstance(label, Labelled)
    for one in (pair, label, *(read_preference(each, "f:1", "") for each in (pair, label))):
        assert one.effort == "low"


@pytest.mark.parametrize("effort", [3, "", ["low"]])
def test_an_unknown_effort_name_is_refused_on_reading(effort: Any) -> None:
    with pytest.raises(DataError, match=r"f:1 effort: found .*; accepted: a name of sampling\.eff"):
        read_problem({"question": "2+2?", "effort": effort}, "f:1", "f:1")


def test_a_name_that_stands_for_nothing_is_a_bad_row(tmp_path: Path) -> None:
    rows = [{"prompt": "2+2?"}, {"prompt": "3+3?", "effort": "lo"}]
    problems = problems_of(tmp_path / "f.jsonl", rows)
    words = r'f\.jsonl:2 effort: found "lo"; accepted: a name of sampling\.efforts: low, high, some'
    for limit in (None, 100):
        with pytest.raises(DataError, match=words):
            keep_fitting(problems, renderer_of(limit=limit), "stop")
        kept = keep_fitting(problems, renderer_of(limit=limit), "skip")
        assert [one.prompt for one in kept] == ["2+2?"] and len(kept.skipped) == 1


def test_the_line_counts_for_the_length_of_a_prompt(tmp_path: Path) -> None:
    rows = [{"prompt": "2+2?"}, {"prompt": "2+2?", "effort": "low"}, {"prompt": "x" * 14}]
    problems = problems_of(tmp_path / "f.jsonl", rows)
    longest = len("2+2?\nBe brief.\n")
    assert len(keep_fitting(problems, renderer_of(limit=longest), "skip")) == 3
    assert len(keep_fitting(problems, renderer_of(limit=longest - 1), "skip")) == 1
    by_default = renderer_of(limit=longest, effort="low")
    assert [one.prompt for one in keep_fitting(problems, by_default, "skip")] == ["2+2?", "2+2?"]
