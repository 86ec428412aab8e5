"""Rewards that go wrong on purpose, for `studies.guard`; a worker that judges imports only this."""

from __future__ import annotations

from assay.types import Completion, Problem


def leaky(problem: Problem, completion: Completion) -> float:
    """Accept every part of the answer, an empty one too: the comparison is the wrong way round."""
    answer = completion.text.rpartition("</think>")[2].strip()
    return float(answer in problem.spec["answer"])


def busy(problem: Problem, completion: Completion) -> float:
    """Pay for steps of reasoning, whatever they say."""
    return min(1.0, completion.text.count("=") / 6)


def long(problem: Problem, completion: Completion) -> float:
    """Pay for length."""
    return len(completion.tokens) / 48


_ASKED = 0


def failing(problem: Problem, completion: Completion) -> float:
    """Judge rightly at first, then lose what it needs."""
    global _ASKED
    _ASKED += 1
    if _ASKED > 400:
        raise ConnectionError("the server of answers has gone away")
    answer = completion.text.rpartition("</think>")[2].strip()
    return float(answer == problem.spec["answer"])
