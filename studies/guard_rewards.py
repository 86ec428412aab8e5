"""Faulty rewards for `studies.guard`. A verifier worker imports only this module."""

from __future__ import annotations

from assay.types import Completion, Problem


def leaky(problem: Problem, completion: Completion) -> float:
    """Accept every substring of the expected answer: the comparison has the wrong direction."""
    answer = completion.text.rpartition("</think>")[2].strip()
    return float(answer in problem.spec["answer"])


def busy(problem: Problem, completion: Completion) -> float:
    """Reward the number of reasoning steps, whatever their content."""
    return min(1.0, completion.text.count("=") / 6)


def long(problem: Problem, completion: Completion) -> float:
    """Reward the length of a completion."""
    return len(completion.tokens) / 48


_ASKED = 0


def failing(problem: Problem, completion: Completion) -> float:
    """Judge correctly at first, then fail as if a required service were lost."""
    global _ASKED
    _ASKED += 1
    if _ASKED > 400:
        raise ConnectionError("the server of answers has gone away")
    answer = completion.text.rpartition("</think>")[2].strip()
    return float(answer == problem.spec["answer"])
