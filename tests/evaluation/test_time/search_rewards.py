"""A reward that workers import, so that it imports little."""

from __future__ import annotations

from assay.types import Completion, Problem


def few_marks(problem: Problem, completion: Completion) -> float:
    """Judges any text, a beginning too."""
    return float(len(completion.text) % 3) / 2
