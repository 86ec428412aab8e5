"""Rewards that `test_reward_trial.py` tries on rows; workers import this file, so that it imports little."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from assay.types import Completion, Group, Problem


def right(problem: Problem, completion: Completion) -> float:
    return float(completion.answer_text == problem.spec["answer"])


def misspelled(problem: Problem, completion: Completion) -> float:
    return float(completion.answer_text == problem.spec["anser"])


def asks_for_question(problem: Problem, completion: Completion) -> float:
    return float(problem.spec["question"] in completion.text)


def tolerant(problem: Problem, completion: Completion) -> float:
    try:
        return float(problem.spec["hard"])
    except KeyError:
        return 0.5


def near_number(problem: Problem, completion: Completion) -> float:
    return 1.0 / (1.0 + abs(float(problem.spec["answer"]) - len(completion.text)))


def parsed(problem: Problem, completion: Completion) -> float:
    """It fails on a completion that is no number, also where the row's answer is none."""
    return float(abs(float(completion.text)) > 1)


def json_only(problem: Problem, completion: Completion) -> float:
    return float(json.loads(completion.text)["answer"] == problem.spec["answer"])


def out_of_ten(problem: Problem, completion: Completion) -> float:
    return 10.0


def siblings(problem: Problem, group: Group) -> list[float]:
    return [len(one.text) / problem.spec["longest"] for one in group.completions]


def reasoned(problem: Problem, completion: Completion) -> float:
    return float(bool(completion.reasoning_text) and completion.answer_text == "2")


def counted(problem: Problem, completion: Completion) -> float:
    with Path(problem.spec["file"]).open("a") as file:
        file.write("called\n")
    return 1.0


def hangs(problem: Problem, completion: Completion) -> float:
    time.sleep(600)
    return 1.0


def none(problem: Problem, completion: Completion) -> Any:
    return None
