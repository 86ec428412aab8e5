"""Verifier ``math``: check that a completion's final answer equals the expected answer."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from assay.host.fields import listed
from assay.types import Completion, Problem
from assay.verify.answers.commitment import Commitment
from assay.verify.answers.equality import equivalent, is_single
from assay.verify.answers.extraction import find_answer
from assay.verify.answers.latex_text import brackets_of, canonical, split_top
from assay.verify.answers.math_forms import is_altered
from assay.verify.answers.math_policy import (
    DEFAULT,
    OPTIONS,
    Policy,
    read_policy,
)
from assay.verify.answers.plain_numbers import read_number
from assay.verify.answers.sentences import MAX_SHORT, value_of_only_sentence
from assay.verify.answers.units import read_unit
from assay.verify.base import ANSWER, Limits, Part, Verifier

_WRAPPED = re.compile(r"\\(?:text|mbox|mathrm)\s*\{([^{}]*)\}")
_WORD, _COMMAND = re.compile(r"[A-Za-z]{2}"), re.compile(r"\\[A-Za-z]+")
_FORMAL = re.compile(r"\\(?!frac|dfrac|sqrt|pi\b|\$|%)[A-Za-z]|\\[{}]|[<>|;]|[A-Za-z]\(")
_INTEGER = re.compile(r"\s*(-?\d{1,18})[\s.]*")


def judge_math(problem: Problem, completion: Completion) -> Part:
    """Score 1 if the last answer outside the think block equals an accepted answer, else 0.

    Reads ``answer`` (a text, a number, or a list of accepted answers) and the options in `Policy`
    from the spec.
    """
    golds = expected_answers(problem)
    policy = read_policy(problem.spec)
    text = completion.answer_text
    if (short := _INTEGER.fullmatch(text)) and not completion.truncated:
        # Two integers are by far the most common pair, so comparing integers directly saves
        # parsing.
        if len(golds) == 1 and _INTEGER.fullmatch(golds[0]):
            return Part(float(int(golds[0].strip(" .\t\n")) == int(short[1])), extracted=short[1])
        commitment = Commitment((short[1],))
    else:
        commitment = find_answer(text, policy.fallback, completion.truncated)
    if commitment is None:
        return Part(0.0, detail="no answer")
    right = any(agrees(gold, commitment, policy) for gold in golds)
    return Part(float(right), extracted=", ".join(commitment.parts), detail=commitment.how)


def expected_answers(problem: Problem) -> tuple[str, ...]:
    """Return the accepted answers of a problem. Raises VerifierError if the row has no answer."""
    answer: Any = problem.spec.get("answer")
    if type(answer) is str and answer.strip():
        # A string is by far the most common type of an expected answer.
        # An early return for a string skips the checks of other types.
        return (answer,)
    return tuple(map(str, listed(ANSWER.read(problem))))


@lru_cache(maxsize=4096)
def read_gold(text: str) -> str:
    """Return the expected answer in a row's text; the text can be a whole solution with a box."""
    if _INTEGER.fullmatch(text):
        return text.strip()
    if "boxed" in text or "####" in text or "<answer>" in text:
        found = find_answer(text, "none")
        if found is not None:
            boxes = (*found.earlier, *found.parts) if len(found.parts) > 1 else found.parts
            return ", ".join(boxes)
    return text


def agrees(gold_text: str, commitment: Commitment, policy: Policy = DEFAULT) -> bool:
    """Return whether a completion's answer equals the expected answer, without additional parts."""
    gold, parts = read_gold(gold_text), commitment.parts
    together = ", ".join(parts)
    # Several boxes answer with a single value only if each box is a spelling of that value.
    if len(parts) > 1 and is_single(gold):
        return all(equivalent(gold, part, policy) for part in parts)
    if equivalent(gold, together, policy):
        return True
    if len(parts) == 1 and policy.extra_text and _agrees_in_context(gold, commitment, policy):
        return True
    if not commitment.earlier or is_single(gold):
        return False
    boxes = (*commitment.earlier, *parts)
    expected = split_top(brackets_of(canonical(gold))[1])
    return len(boxes) == len(expected) and equivalent(gold, ", ".join(boxes), policy)


def _agrees_in_context(gold: str, commitment: Commitment, policy: Policy) -> bool:
    """Return whether an answer that contains other words equals the expected value.

    The text after an answer phrase must equal the value as a whole. A box may contain words in
    addition to the expected value.
    """
    (part,), phrase = commitment.parts, commitment.phrase
    if phrase not in ("", part) and canonical(gold).casefold() == canonical(phrase).casefold():
        return True
    if phrase and re.search(r"\d!$", part) and equivalent(gold, part[:-1], policy):
        # The final "!" of a sentence can be an exclamation mark and no factorial.
        return True
    spoken = _WRAPPED.sub(r" \1 ", part).strip()
    if len(spoken) > MAX_SHORT or (is_altered(spoken) and not is_altered(gold)):
        return False
    if _FORMAL.search(spoken) or not _WORD.search(_COMMAND.sub(" ", spoken)):
        return False
    if read_number(part) is not None:
        # Numbers with a unit need no check here, because `equivalent` has already compared them.
        return False
    value = value_of_only_sentence(spoken)
    if value is None or value == part or _is_factor(value, spoken):
        return False
    return equivalent(gold, value, policy)


_BEFORE = re.compile(
    r"(?:(?<![A-Za-z\\])[b-zB-HJ-Z]|\bpi|\\[a-z]+|[\d)}])\s*(?:\\cdot|\\times|\*)?\s*$"
)
_AFTER = re.compile(
    r"\s*(?:\\cdot|\\times|\*|/)?\s*(?:\\[a-z]+|[\d^_{'!]|\((?![A-Za-z]{2})|pi\b"
    r"|(?!a (?:day|night|week|month|year|hour|minute|second|piece|person|head)\b)"
    r"(?P<letter>[a-zA-Z])(?![a-zA-Z]))"
)
_NEXT_WORD = re.compile(r"\s*([A-Za-z]{2,}|[°%])")


def _is_factor(value: str, text: str) -> bool:
    """Return whether a value in a text is only a factor of the answer, as in ``5 x dollars``.

    A formula before a unit is a factor too, because the unit was not parsed as part of the value.
    """
    before, found, after = text.rpartition(value)
    if not found:
        return False
    if _BEFORE.search(before):
        return True
    if match := _AFTER.match(after):
        letter = match["letter"]
        # In "5 m long", the letter m is a unit and no factor.
        return not (letter and after[0].isspace() and read_unit(letter))
    word = _NEXT_WORD.match(after)
    unit = read_unit(word[1]) if word else None
    return bool(unit and (unit.factors or unit.scale)) and not read_number(value)


MATH = Verifier(
    name="math",
    version=8,
    judge=judge_math,
    domain="mathematical answers: numbers with units, formulas, sets, tuples, intervals, matrices, "
    "relations",
    fields=(ANSWER, *OPTIONS),
    accepts=r"the answer in the last \boxed{} or <answer> tag, or after the last 'the answer is', "
    "####, Final: or A:; without such a mark, a reply that is only an answer, a single sentence "
    "with one value, a last line or final bold value that is only an answer, or the value of a "
    "concluding last sentence (`fallback`)",
    limits=Limits(memory_mib=4096),
    text_only=True,
    cached=True,
    packages=("math-verify", "latex2sympy2-extended", "sympy"),
)
