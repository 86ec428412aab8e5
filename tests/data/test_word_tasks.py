"""Lists of words: what is asked can be met, traces miss the share that was asked for."""

from __future__ import annotations

from random import Random

import pytest

from assay.data.problems import load_problems
from assay.data.traces import load_traces
from assay.data.word_tasks import draw, imperfect_lists, prompt_of, word_lists, written
from assay.errors import DataError
from assay.types import Completion, Problem
from assay.verify.instructions.instructions import judge_instructions


def problem_of(asked: object) -> Problem:
    ids = [one.id for one in asked]  # type: ignore[attr-defined]
    tables = [one.kwargs for one in asked]  # type: ignore[attr-defined]
    return Problem("p", "?", {"instruction_id_list": ids, "kwargs": tables})


def test_every_list_that_keeps_to_its_instructions_passes() -> None:
    random = Random(0)
    for _ in range(1000):
        asked = draw(random, "train", 5)
        text = written(random, asked)
        judged = judge_instructions(problem_of(asked), Completion.from_text(text))
        assert judged.passed, (prompt_of(asked), text, judged.detail)


def test_all_types_are_asked_and_splits_are_disjoint() -> None:
    train, heldout = word_lists(2000), word_lists(500, split="heldout")
    assert {len(one.spec["instruction_id_list"]) for one in train} == {3, 4}
    assert len({name for one in train for name in one.spec["instruction_id_list"]}) == 5
    prompts = {str(one.prompt) for one in train}
    assert not prompts & {str(one.prompt) for one in heldout}
    assert len({str(one.prompt) for one in word_lists(200)}) > 180
    assert len(prompts) > 1000 and max(map(len, prompts)) < 64
    traces = {str(one.prompt) for one in imperfect_lists(500)}
    assert not traces & {str(one.prompt) for one in heldout}


@pytest.mark.parametrize(("missed", "low", "high"), [(0.0, 1.0, 1.0), (0.4, 0.2, 0.5)])
def test_so_many_traces_miss_something(missed: float, low: float, high: float) -> None:
    found: list[bool] = []
    by_prompt = {str(one.prompt): one for one in word_lists(4000, seed=1)}
    for trace in imperfect_lists(4000, missed=missed):
        if problem := by_prompt.get(str(trace.prompt)):
            judged = judge_instructions(problem, Completion.from_text(trace.completion))
            found.append(judged.passed is True)
    assert len(found) > 300 and low <= sum(found) / len(found) <= high


def test_word_lists_load_as_problems_and_traces() -> None:
    name = "assay.data.word_tasks:word_lists?size=20&split=heldout"
    problems = load_problems([name])
    assert problems[3] == load_problems([name])[3]
    assert problems[3].verifier == "instructions" and problems[3].tags == ("instructions",)
    assert len(load_traces(["assay.data.word_tasks:imperfect_lists?size=7&missed=0.5"])) == 7


def test_rows_stay_what_they_were() -> None:
    """A published figure is repeated by its seed, so the rows of a seed never change."""
    two = ["with d, without c, quoted:", "at least 3 words, with l, without c:"]
    assert [one.prompt for one in word_lists(2)] == two
    assert imperfect_lists(1)[0].completion == '"f"'


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ("split=test", "split: found 'test'; accepted: train or heldout"),
        ("most=2", "most: found 2; accepted: a whole number from 3 to 5"),
        ("missed=2", "missed: found 2; accepted: a share"),
    ],
)
def test_wrong_settings_are_told(settings: str, complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        load_traces([f"assay.data.word_tasks:imperfect_lists?{settings}"])
