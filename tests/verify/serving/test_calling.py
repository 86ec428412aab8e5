"""What is said of a verifier that raised: its error, its line, and where a row's keys are."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from assay.types import Completion, Group, Problem, Prompt, StepScore, Verdict
from assay.verify.base import Verifier
from assay.verify.serving.calling import Row, judge_batch, judge_unit

KEYS = 'a row\'s keys are in problem.spec, as problem.spec["answer"]; this row has: answer, level'


def attribute(problem: Any, completion: Completion) -> float:
    return float(problem.answer == completion.text)


def subscript(problem: Any, completion: Completion) -> float:
    return float(problem["answer"] == completion.text)


def key(problem: Problem, completion: Completion) -> float:
    return float(problem.spec["answr"] == completion.text)


def prompt_key(problem: Problem, completion: Completion) -> float:
    return float(problem.spec["question"] == completion.text)


def far_key(problem: Problem, completion: Completion) -> float:
    return float(problem.spec["unit"] == completion.text)


def own_key(problem: Problem, completion: Completion) -> float:
    return {"answer": 1.0}["answer"] + {}["answer"]


def elsewhere(problem: Problem, completion: Completion) -> float:
    raise AttributeError("of my own")


def within(problem: Problem, completion: Completion) -> float:
    return float(sys.modules["json"].loads("{"))


def detail_of(judge: Callable[..., Any]) -> str:
    problem = Problem("p", "1 + 1 =", Row({"answer": "2", "level": 3}))
    group = Group(problem, Prompt("", np.ones(1, np.int32)), (Completion.from_text("2"),))
    (part,) = judge_unit(Verifier("mine", 1, judge), group, 0)
    assert part.reason == "error"
    return part.detail


@pytest.mark.parametrize(
    ("judge", "words"),
    [
        (attribute, "AttributeError: 'Problem' object has no attribute 'answer'"),
        (subscript, "TypeError: 'Problem' object is not subscriptable"),
    ],
)
def test_who_looks_for_a_row_s_key_is_told_where_it_is(
    judge: Callable[..., Any], words: str
) -> None:
    line = judge.__code__.co_firstlineno + 1
    assert detail_of(judge) == f"{words} (test_calling.py:{line}); {KEYS}"


@pytest.mark.parametrize(
    ("judge", "words"),
    [
        (key, "'answr', did you mean answer?; it has: answer, level"),
        (prompt_key, "'question', it is problem.question; it has: answer, level"),
        (far_key, "'unit'; it has: answer, level"),
    ],
)
def test_who_asks_a_row_for_a_key_that_it_lacks_is_told_the_nearest(
    judge: Callable[..., Any], words: str
) -> None:
    assert detail_of(judge).endswith(f"); this row has no key {words}")


@pytest.mark.parametrize("judge", [own_key, elsewhere])
def test_other_errors_have_no_such_hint(judge: Callable[..., Any]) -> None:
    assert detail_of(judge).endswith(f" (test_calling.py:{judge.__code__.co_firstlineno + 1})")


def test_the_line_is_the_verifier_s_own_also_where_a_library_raised() -> None:
    line = within.__code__.co_firstlineno + 1
    assert detail_of(within).endswith(f"(char 1) (test_calling.py:{line})")


@pytest.mark.parametrize(
    ("num_tokens", "end", "judged"), [(2, 1, True), (2, 2, False), (0, 9, True)]
)
def test_a_step_that_ends_outside_its_completion_is_not_judged(
    num_tokens: int, end: int, judged: bool
) -> None:
    steps = (StepScore(0.5, end),)
    verifier = Verifier("mine", 1, lambda *_: Verdict.of_score(1.0, "mine@1", step_scores=steps))
    completion = replace(Completion.from_text("2"), tokens=np.arange(num_tokens, dtype=np.int32))
    problem = Problem("p", "1 + 1 =", {"answer": "2"})
    group = Group(problem, Prompt("", np.ones(1, np.int32)), (completion,))
    (alone,) = judge_unit(verifier, group, 0)
    batch = Verifier("mine", 1, lambda pairs: [verifier.judge(*pair) for pair in pairs], "batch")
    (together,) = judge_batch(batch, [(group, 0)])
    for part in (alone, together):
        assert (part.value is not None) == judged
        assert judged or part.detail == f"a step ends at token {end} of {num_tokens}"
