"""Verifier ``math``: whether the answer that a completion commits to equals the expected one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from numbers import Real
from typing import Any

from assay.errors import VerifierError, message
from assay.types import Completion, Problem
from assay.verify.base import Field, KnownError, Part, Verifier, answer_text
from assay.verify.equality import equivalent, is_single
from assay.verify.extraction import Commitment, Fallback, find_answer
from assay.verify.latex_text import brackets_of, canonical, split_top

FALLBACKS = ("sentence", "last_number", "none")

_INTEGER = re.compile(r"\s*(-?\d{1,18})[\s.]*")


def judge_math(problem: Problem, completion: Completion) -> Part:
    """Score 1 where the last answer outside the think block equals an accepted one, else 0.

    Reads ``answer`` (text, a number, or a list of accepted ones) and ``fallback`` of the spec.
    """
    golds = expected_answers(problem)
    text = answer_text(completion)
    if short := _INTEGER.fullmatch(text):  # the commonest reply by far, and 20 times as fast
        commitment = Commitment((short[1],))
    else:
        fallback = problem.spec.get("fallback", "sentence")
        if fallback not in FALLBACKS:
            raise VerifierError(message("spec.fallback", repr(fallback), ", ".join(FALLBACKS)))
        commitment = find_answer(text, "none" if completion.truncated else fallback)
    if commitment is None:
        return Part(0.0, detail="no answer")
    right = any(agrees(gold, commitment) for gold in golds)
    return Part(float(right), extracted=", ".join(commitment.parts))


def expected_answers(problem: Problem) -> tuple[str, ...]:
    """Return the accepted answers of a problem; raises VerifierError where there is none to use."""
    answer: Any = problem.spec.get("answer")
    where = f"problem {problem.id}: spec.answer"
    listed: Sequence[Any] = answer if isinstance(answer, (list, tuple)) else [answer]
    found: list[str] = []
    for each in listed:
        if isinstance(each, str) and each.strip():
            found.append(each)
        elif type(each) is not bool and isinstance(each, Real):
            found.append(str(each))
        else:
            raise VerifierError(message(where, repr(each), "text, a number, or a list of them"))
    if not found:
        raise VerifierError(message(where, "an empty list", "text, a number, or a list of them"))
    return tuple(found)


@lru_cache(maxsize=4096)
def read_gold(text: str) -> str:
    """Return the answer inside an expected text, which may be a boxed one or a worked solution."""
    if _INTEGER.fullmatch(text):
        return text.strip()
    if "boxed" in text or "####" in text or "<answer>" in text:
        found = find_answer(text, "none")
        if found is not None:
            boxes = (*found.earlier, *found.parts) if len(found.parts) > 1 else found.parts
            return ", ".join(boxes)
    return text


def agrees(gold_text: str, commitment: Commitment) -> bool:
    """Whether a commitment is the expected answer: all of its parts are, and nothing besides."""
    gold = read_gold(gold_text)
    parts = commitment.parts
    if len(parts) == 1:
        if equivalent(gold, parts[0]):
            return True
        if (
            commitment.phrase
            and commitment.phrase != parts[0]
            and _same_text(gold, commitment.phrase)
        ):
            return True
    elif is_single(gold):
        return all(equivalent(gold, part) for part in parts)
    if len(parts) > 1 and equivalent(gold, ", ".join(parts)):
        return True
    if not commitment.earlier or is_single(gold):
        return False
    boxes = (*commitment.earlier, *parts)
    return len(boxes) == _num_parts(gold) and equivalent(gold, ", ".join(boxes))


def _num_parts(gold: str) -> int:
    return len(split_top(brackets_of(canonical(gold))[1]))


def _same_text(gold: str, phrase: str) -> bool:
    return canonical(gold).casefold() == canonical(phrase).casefold()


MATH = Verifier(
    name="math",
    version=1,
    judge=judge_math,
    domain="mathematical answers: numbers with units, formulas, sets, tuples, intervals, matrices, relations",
    fields=(
        Field("answer", "text, a number, or a list of accepted ones", needed=True),
        Field("fallback", ", ".join(FALLBACKS), default="sentence"),
    ),
    accepts=r"the last of \boxed{}, <answer>, 'the answer is', ####, Final:, A:; else a reply that is only an "
    "answer; else (spec.fallback = sentence, the default) the one value of the last sentence",
    memory_mib=4096,
    known_errors=(
        KnownError(
            "words after a number count as a unit, and units that are not known are not compared",
            {"answer": "5 apples"},
            r"\boxed{5 oranges}",
            says="passed",
            should_say="failed",
        ),
        KnownError(
            "variables are compared without case",
            {"answer": "2A"},
            r"\boxed{2a}",
            says="passed",
            should_say="failed",
        ),
        KnownError(
            "a formula too large for sympy equals only its own spelling",
            {"answer": r"10^{20000} \cdot 10"},
            r"\boxed{10^{20001}}",
            says="failed",
            should_say="passed",
        ),
        KnownError(
            "an answer in words needs the same words",
            {"answer": "no solution"},
            r"\boxed{there is none}",
            says="failed",
            should_say="passed",
        ),
    ),
    text_only=True,
    modules=(
        "assay.verify.math_answer",
        "assay.verify.extraction",
        "assay.verify.equality",
        "assay.verify.plain_numbers",
        "assay.verify.latex_text",
        "assay.verify.symbolic",
        "assay.types",
    ),
    packages=("math-verify", "latex2sympy2-extended", "sympy"),
)

__all__ = ["MATH", "Fallback", "agrees", "expected_answers", "judge_math", "read_gold"]
