"""Small tasks: right answers pass their verifier, wrong ones fail, and splits do not overlap."""

from __future__ import annotations

from random import Random

import pytest

from assay.data import small_tasks
from assay.data.small_tasks import TASKS, imperfect_answers
from assay.errors import DataError
from assay.session.judging import judge

VERIFIERS = {
    "sums": "math",
    "programs": "code",
    "knights": "exact",
    "boolean": "exact",
    "choices": "choice",
    "science": "choice",
    "stories": "math",
}


@pytest.mark.parametrize("kind", TASKS)
def test_right_answers_pass_and_wrong_answers_fail(kind: str) -> None:
    drawn = [TASKS[kind](Random(seed)) for seed in range(40)]
    rows = [
        {"prompt": task.prompt, "completion": said, **task.spec}
        for task in drawn
        for said in (task.answer, task.wrong)
    ]
    assert judge(rows, VERIFIERS[kind])["score"] == [1.0, 0.0] * 40


@pytest.mark.parametrize("kind", TASKS)
def test_splits_share_no_question_and_rows_depend_on_their_index_alone(kind: str) -> None:
    make = getattr(small_tasks, kind)
    train, held = (
        {row.prompt for row in make(size=200, split=one)} for one in ("train", "heldout")
    )
    assert not train & held and len(held) > 20
    assert make(size=3)[2] == make(size=200)[2] and make(size=3)[2].tags == (kind,)


def test_share_of_right_traces_is_the_one_asked_for() -> None:
    traces = imperfect_answers("sums", size=400, right=0.25)
    right = sum(str(eval(one.prompt.rstrip("="))) == one.completion for one in traces)
    assert 75 <= right <= 125
    with pytest.raises(DataError, match="kind: found 'poems'; accepted: sums, programs"):
        imperfect_answers("poems")


@pytest.mark.parametrize("kind", TASKS)
def test_reasoning_leads_to_the_answer_that_follows_it(kind: str) -> None:
    traces = imperfect_answers(kind, size=300, right=0.5, think=1, slipped=0.5)
    rows = [(Random(f"small traces {kind} 0 {n}"), trace) for n, trace in enumerate(traces)]
    guesses = 0
    for random, trace in rows:
        task = small_tasks._drawn(kind, random, "train")
        reasoning, answer = trace.completion.removeprefix("<think>").split("</think>")
        assert answer in (task.answer, task.wrong)
        assert reasoning in ("", task.working(answer))
        assert reasoning or answer == task.wrong, "only wrong traces guess"
        guesses += not reasoning
    assert 45 <= guesses <= 105


def test_think_is_zero_or_one() -> None:
    with pytest.raises(DataError, match="think: found 2; accepted: 0 or 1"):
        imperfect_answers("sums", think=2)
