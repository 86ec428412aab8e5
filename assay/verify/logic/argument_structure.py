"""Verifier ``argument_structure``: a small shaping term for the form of an argument.

The verifier checks form, not truth. The verifier counts steps that state their support and add
something new, and looks for a conclusion at the end. The value is a share of the steps, so
additional steps earn nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from assay.host.fields import Field, choice, list_of
from assay.types import Completion, Problem
from assay.verify.answers.commitment import MAX_TEXT
from assay.verify.base import Part, Verifier

MAX_STEPS = 200
MIN_STEPS = 2
# A step that shares at least this fraction of its words with another step restates that step.
SAME = 0.8
PASSES = 0.5

_NUMBERED = re.compile(
    r"^[\s>#*_-]{0,6}(?:step\s*)?[(\[]?(\d{1,3})[.):\]](?!\d)\**\s*(.+)$", re.IGNORECASE
)
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z\"'(\[])|\n+")
_THEREFORE = r"therefore|thus|hence|so|consequently|follows"
_CONNECTIVE = re.compile(
    rf"\b(?:{_THEREFORE}|because|since|implies|follow|given\s+that|accordingly|which\s+means"
    r"|we\s+(?:get|conclude|infer|deduce|obtain)|by\s+(?:modus|contradiction|assumption))\b|∴|⇒|→",
    re.IGNORECASE,
)
_PLACES = r"steps?|premises?|lines?|facts?"
_REFERENCE = re.compile(
    rf"\b(?:from|by|using|with|{_PLACES}|see|and|of|to)\s+(?:(?:{_PLACES})\s+)?[(\[]?(\d{{1,3}})\b"
    r"[)\]]?|[(\[](\d{1,3})[)\]]",
    re.IGNORECASE,
)
_CONCLUSION = re.compile(
    rf"\b(?:{_THEREFORE}|conclude|conclusion|finally|answer|proves?|proven|shown?|q\.?e\.?d)\b"
    r"|∴|\\boxed|<answer>",
    re.IGNORECASE,
)
_WORD = re.compile(r"[^\W_]+")
_NUMBERS = frozenset(str(n) for n in range(MAX_STEPS + 1))
_EMPTY_WORDS = """
    a an the and or not of to in on at by for from with as is are was were be been it its this that
    these those we i you he she they therefore thus hence so consequently because since implies
    follows follow given which means mean get conclude conclusion infer deduce step steps premise
    premises line fact also then now if must has have had do does did can will all every each any
    some there here us let know
"""
_EMPTY = frozenset(_EMPTY_WORDS.split())


PREMISES = Field(
    "premises",
    "a list of texts: the premises that the argument may use",
    default=(),
    check=list_of(lambda value: isinstance(value, str), MAX_STEPS),
)
PART = choice("part", "answer", "reasoning", accepts="answer, or reasoning: the think block")


def judge_argument(problem: Problem, completion: Completion) -> Part:
    """Return the share of steps that are supported, new and connected. A value of 0.5 passes.

    Reads ``premises`` and ``part`` from the spec. The verifier's value is halved if the last step
    is no conclusion. The verifier's value is 0 if the first step already states the conclusion, or
    if the text has fewer than two steps.
    """
    in_answer, premises = PART.read(problem) == "answer", PREMISES.read(problem)
    text = completion.answer_text if in_answer else completion.reasoning_text
    if len(text) > MAX_TEXT:
        return Part(0.0, score=0.0, passed=False, detail=f"more than {MAX_TEXT} characters")
    return of_steps(steps_of(text), [words_of(each) for each in premises])


def of_steps(steps: Sequence[tuple[int, str]], premises: Sequence[frozenset[str]]) -> Part:
    """Return the verifier's result for numbered steps.

    steps: (number, text) of each step. premises: the content words of each premise.
    """
    if not MIN_STEPS <= len(steps) <= MAX_STEPS:
        detail = f"{len(steps)} steps; accepted: {MIN_STEPS} to {MAX_STEPS}"
        return Part(0.0, score=0.0, passed=False, detail=detail)
    said: list[frozenset[str]] = []
    numbers: set[int] = set(range(1, len(premises) + 1))
    supported = repeated = starts = 0
    # The last reasoning step that does not repeat an earlier step.
    fresh = ""
    for number, text in steps:
        words = words_of(text)
        known = frozenset[str]().union(*premises, *said)
        if any(_same(words, each) for each in said):
            repeated += 1
            numbers.add(number)
            continue
        fresh = text
        if not words - _NUMBERS or not _rests_on(text, number, numbers):
            # An unsupported step at the start restates a premise, so it is excluded from the share.
            starts += not supported
        elif known & words and not any(_same(words, each) for each in premises):
            supported += 1
        said.append(words)
        numbers.add(number)
    last = words_of(steps[-1][1])
    circular = repeated > 0 and any(_same(last, each) for each in said[: max(1, starts)])
    # At most this many steps count as premises.
    # Without this maximum, a text with one supported step after many premises could earn the full
    # value.
    counted = len(steps) - min(starts, max(len(premises), len(steps) // 2))
    share = supported / counted if counted else 0.0
    detail, factor = "", 1.0
    if circular:
        detail, factor = "the conclusion is already at the beginning", 0.0
    elif not _CONCLUSION.search(fresh):
        detail, factor = "no conclusion at the end", 0.5
    value = round(min(1.0, share) * factor, 6)
    counts = {"supported": supported, "repeated": repeated, "steps": len(steps)}
    components = {name: float(count) for name, count in counts.items()}
    return Part(value, score=value, passed=value >= PASSES, detail=detail, components=components)


def steps_of(text: str) -> list[tuple[int, str]]:
    """Return (number, text) of each step: numbered lines if two exist, else sentences."""
    numbered: list[tuple[int, str]] = []
    for line in filter(str.strip, text.splitlines()):
        if match := _NUMBERED.match(line):
            numbered.append((int(match[1]), match[2].strip()))
        elif numbered and not line[:1].isspace() and _CONCLUSION.search(line):
            # A line below a numbered list that states the conclusion is the last step.
            numbered.append((numbered[-1][0] + 1, line.strip()))
        elif numbered:
            number, before = numbered[-1]
            numbered[-1] = (number, f"{before} {line.strip()}")
    if len(numbered) >= MIN_STEPS:
        return numbered
    sentences = [each.strip() for each in _SENTENCE.split(text) if _WORD.search(each)]
    return list(enumerate(sentences, 1))


def words_of(text: str) -> frozenset[str]:
    """Return the content words of a text in lower case, without a final s."""
    words = (word.casefold() for word in _WORD.findall(text))
    informative = (word for word in words if word not in _EMPTY)
    return frozenset(word.removesuffix("s") if len(word) > 3 else word for word in informative)


def _rests_on(text: str, number: int, numbers: set[int]) -> bool:
    """Return whether a step has a connective or cites the number of another step or premise."""
    if _CONNECTIVE.search(text):
        return True
    referred = {int(one or other) for one, other in _REFERENCE.findall(text)}
    return bool((referred & numbers) - {number})


def _same(one: frozenset[str], other: frozenset[str]) -> bool:
    one, other = one - _NUMBERS, other - _NUMBERS
    return len(one & other) >= SAME * max(1, len(one | other)) or (not one and not other)


ARGUMENT_STRUCTURE = Verifier(
    name="argument_structure",
    version=2,
    judge=judge_argument,
    domain="the form of an argument in English; a shaping term, never the correctness",
    fields=(PREMISES, PART),
    accepts="numbered lines, else sentences; a step is supported by a connective (so, since, "
    "therefore, ...) or a reference to an earlier step or premise, must share words with what came "
    "before and say something new",
    partial_credit="the share of supported steps, halved if the last step is no conclusion; a "
    f"share of {PASSES} passes",
    weight=0.1,
    text_only=True,
    cached=True,
    modules=("assay.verify.answers",),
)
