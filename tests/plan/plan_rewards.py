"""Rewards that the tests of measuring use."""

from __future__ import annotations

from assay.types import Completion, Problem


def even(problem: Problem, completion: Completion) -> float:
    """A reward that an untrained model earns about half of the time."""
    return float(sum(completion.tokens.tolist()) % 2 == 0)


def never(problem: Problem, completion: Completion) -> None:
    """A checker that can never say anything."""
