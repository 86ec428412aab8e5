"""Verifier ``constant``: a score of 0 for every completion, for problems without a checker."""

from __future__ import annotations

from assay.types import Completion, Problem
from assay.verify.base import Part, Verifier


def judge_constant(problem: Problem, completion: Completion) -> Part:
    """Score 0 for every completion."""
    return Part(0.0, detail="nothing is verified")


CONSTANT = Verifier(
    name="constant",
    version=1,
    judge=judge_constant,
    executor="inline",
    domain="nothing: every completion has the score 0, for runs that learn from a teacher alone",
    accepts="nothing",
    bounds=(0.0, 0.0),
    text_only=True,
    cached=True,
)
