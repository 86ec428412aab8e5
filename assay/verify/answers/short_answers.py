"""Verifiers ``exact`` (equality with an accepted text) and ``regex`` (match of a pattern)."""

from __future__ import annotations

import unicodedata
from functools import lru_cache
from typing import Any

from assay.host.fields import Field, flag, listed, one_of
from assay.types import Completion, Problem
from assay.verify.answers.commitment import (
    MAX_TEXT,
    STOPS,
    bare,
    clipped,
    commitment,
    uncommented,
    unwrapped,
)
from assay.verify.answers.tables import says
from assay.verify.base import ANSWER, Limits, Part, Verifier

PLACES = ("auto", "whole", "last_line", "marked")
LETTERS = "imsx"
# Seconds of CPU time for matching one text with one pattern.
MATCH_SECONDS = 1.0

_PLACE = (
    "auto (the last tag, box or 'the answer is'; else the whole answer), whole, last_line or "
    "marked (a tag, box or phrase, nothing else)"
)


def judge_exact(problem: Problem, completion: Completion) -> Part:
    """Score 1 if the answer equals an accepted text after normalization, else 0.

    Reads ``answer``, ``where`` and the ``ignore_*`` options from the spec.
    """
    golds = listed(ANSWER.read(problem))
    where = EXACT_PLACE.read(problem)
    found = place(completion, where)
    if found is None:
        return Part(0.0, detail="no answer")
    spellings = with_and_without_wrapping(found)
    # The accepted text itself may contain an answer mark, and a correct completion then repeats the
    # mark.
    if where == "auto":
        spellings.add(clipped(completion.answer_text))
    wanted = {normalized(str(gold), problem) for gold in golds}
    right = any(normalized(spelling, problem) in wanted for spelling in sorted(spellings))
    return Part(float(right), extracted=found)


def with_and_without_wrapping(found: str) -> set[str]:
    """Return the spellings of an answer with and without its wrapping.

    The wrapping of an answer is emphasis, quotes, a final period, and an addition such as ", not
    Rome". The accepted text may contain wrapping too, so each spelling is compared.
    """
    heads = {found}
    if other := says("and_not", found):
        heads.add(found[: other.start()].rstrip(" ,"))
    heads |= {head.rstrip(STOPS) for head in heads}
    heads |= {unwrapped(head) for head in heads} | {bare(head) for head in heads}
    return {head.rstrip(STOPS) for head in heads} | heads


def judge_regex(problem: Problem, completion: Completion) -> Part:
    """Score 1 if the pattern matches the answer, else 0.

    Reads ``pattern``, ``mode``, ``flags`` and ``where`` from the spec. A text on which the pattern
    backtracks for more than a second of CPU time fails.
    """
    compiled = _compiled(PATTERN.read(problem), FLAGS.read(problem))
    match, where = getattr(compiled, MODE.read(problem)), REGEX_PLACE.read(problem)
    found = place(completion, where)
    if found is None:
        return Part(0.0, detail="no answer")
    plain = bare(found) if where in ("auto", "marked") else found
    try:
        matched = match(found, timeout=MATCH_SECONDS)
        if matched is None and plain != found:
            matched = match(plain, timeout=MATCH_SECONDS)
    # A text on which the pattern backtracks too long counts as judged, with a score of 0.
    # If a text on which the pattern backtracks were not judged, a policy could write such texts to
    # avoid a verdict.
    except TimeoutError:
        detail = f"the text makes the pattern backtrack for more than {MATCH_SECONDS:g} s"
        return Part(0.0, detail=detail)
    except MemoryError:
        return Part(0.0, detail="the text makes the pattern run out of memory")
    return Part(float(matched is not None), extracted=matched[0] if matched else None)


def place(completion: Completion, where: str) -> str | None:
    """Return the text that ``spec.where`` selects from a completion, or None if the text is
    missing."""
    whole = completion.text if where == "trace" else completion.answer_text
    if len(whole) > MAX_TEXT:
        return None
    text = clipped(whole)
    if where in ("auto", "marked"):
        seen = uncommented(text, marked=True)
        if found := commitment(seen).parts:
            return " | ".join(found)
        text = seen or text
    if where == "last_line":
        text = text.rpartition("\n")[2].strip()
    return text if text and where != "marked" else None


def normalized(text: str, problem: Problem) -> str:
    """Return a text in the normal form that the ``ignore_*`` options of a problem define."""
    text = unicodedata.normalize("NFC", text.strip())
    if IGNORE_ACCENTS.read(problem):
        letters = unicodedata.normalize("NFD", text)
        text = "".join(c for c in letters if not unicodedata.combining(c))
    if IGNORE_CASE.read(problem):
        text = text.casefold()
    if IGNORE_PUNCTUATION.read(problem):
        text = "".join(" " if unicodedata.category(c)[0] == "P" else c for c in text)
    return " ".join(text.split()) if IGNORE_WHITESPACE.read(problem) else text


@lru_cache(maxsize=1024)
def _compiled(pattern: str, flags: str) -> Any:
    import regex

    # Version 0 behaves like the standard library's re.
    # Version 1 of the package regex changes the meaning of character sets.
    bits = regex.V0
    for letter in flags:
        bits |= getattr(regex, letter.upper())
    return regex.compile(pattern, bits)


def _is_pattern(value: Any) -> bool:
    import regex

    try:
        return isinstance(value, str) and bool(value) and bool(_compiled(value, ""))
    except (regex.error, OverflowError, RecursionError):
        return False


def _are_flags(value: Any) -> bool:
    return isinstance(value, str) and set(value) <= set(LETTERS)


EXACT_PLACE = Field("where", _PLACE, default="auto", check=one_of(*PLACES))
_EITHER = "true or false"
IGNORE_CASE = flag("ignore_case", _EITHER, True)
IGNORE_WHITESPACE = flag("ignore_whitespace", "true (runs count as one space) or false", True)
IGNORE_PUNCTUATION = flag("ignore_punctuation", _EITHER)
IGNORE_ACCENTS = flag("ignore_accents", _EITHER)
EXACT = Verifier(
    name="exact",
    version=3,
    judge=judge_exact,
    domain="answers that are a short text: a name, a word, a line",
    fields=(
        ANSWER,
        EXACT_PLACE,
        IGNORE_CASE,
        IGNORE_WHITESPACE,
        IGNORE_PUNCTUATION,
        IGNORE_ACCENTS,
    ),
    accepts="the accepted text in the place that `where` selects, with or without **, quotes, $, ` "
    f"and a final period; a reply of more than {MAX_TEXT} characters has no answer",
    text_only=True,
    cached=True,
)

PATTERN = Field(
    "pattern",
    "a regular expression (the regex module's, version 0: as in re)",
    needed=True,
    check=_is_pattern,
)
MODE = Field("mode", "fullmatch, search", default="fullmatch", check=one_of("fullmatch", "search"))
FLAGS = Field("flags", f"letters among {LETTERS}, as in (?{LETTERS})", default="", check=_are_flags)
REGEX_PLACE = Field(
    "where",
    f"{_PLACE}; trace (the whole completion, with its reasoning)",
    default="whole",
    check=one_of(*PLACES, "trace"),
)
REGEX = Verifier(
    name="regex",
    version=3,
    judge=judge_regex,
    domain="answers whose form a pattern describes",
    fields=(PATTERN, MODE, FLAGS, REGEX_PLACE),
    accepts="a text that the pattern matches, in the place that `where` selects, without "
    "surrounding white space (for auto and marked also without emphasis, quotes and final period); "
    f"a reply of more than {MAX_TEXT} characters has no answer",
    limits=Limits(cpu_seconds=MATCH_SECONDS),
    text_only=True,
    cached=True,
    packages=("regex",),
)
