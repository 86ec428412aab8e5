"""Verifiers ``exact`` and ``regex``: an answer that equals an accepted text, or matches a pattern."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, cast

from assay.errors import VerifierError, message
from assay.types import Completion, Problem
from assay.verify.answers.commitment import MAX_TEXT, bare, clipped, committed, unwrapped
from assay.verify.base import Field, Limits, Part, Verifier, known_errors

PLACES = ("auto", "whole", "last_line", "marked")
FLAGS = "imsx"
MATCH_SECONDS = 1.0  # of CPU time that one text may spend on one pattern

_PLACE = (
    "auto (the last tag, box or 'the answer is'; else the whole answer), whole, last_line or "
    "marked (a tag, box or phrase, nothing else)"
)
_ANSWER = "text, a number, or a list of accepted ones"
_STOPS = ".。!！"
_CONTRAST = re.compile(
    r"(?:,|\s[-–—])\s(?:and\s)?not\s(?!only\b|just\b|merely\b|necessarily\b|sure\b|certain\b|correct\b|right\b|true\b|really\b|exactly\b|that\b)|,?\s(?:rather\sthan|instead\sof)\s"
)


def judge_exact(problem: Problem, completion: Completion) -> Part:
    """Score 1 where the answer equals an accepted text after normalization, else 0.

    Reads ``answer``, ``where`` and the ``ignore_*`` options of the spec.
    """
    answer: Any = problem.spec.get("answer")
    if not is_text_answer(answer):
        raise VerifierError(message(f"problem {problem.id}: spec.answer", repr(answer)[:80], _ANSWER))  # fmt: skip
    golds = [str(one) for one in cast("Sequence[Any]", answer if isinstance(answer, (list, tuple)) else [answer])]  # fmt: skip
    found = place(problem, completion, "auto")
    if found is None:
        return Part(0.0, detail="no answer")
    wanted = {normalized(gold, problem) for gold in golds}
    # a sentence's own end is no part of the answer, unless the accepted text has one too
    spellings = spellings_of(found)
    if problem.spec.get("where", "auto") == "auto":  # the accepted text may hold a mark itself
        spellings.add(clipped(completion.answer_text))
    right = any(normalized(spelling, problem) in wanted for spelling in sorted(spellings))
    return Part(float(right), extracted=found)


def spellings_of(found: str) -> set[str]:
    """Return an answer as it stands and without what is around it: emphasis, quotes, a stop, ", not Rome"."""
    heads = {found}
    if contrast := _CONTRAST.search(found):
        heads.add(found[: contrast.start()].rstrip(" ,"))
    heads |= {head.rstrip(_STOPS) for head in heads}
    heads |= {unwrapped(head) for head in heads} | {bare(head) for head in heads}
    return {head.rstrip(_STOPS) for head in heads} | heads


def judge_regex(problem: Problem, completion: Completion) -> Part:
    """Score 1 where the pattern matches, else 0.

    Reads ``pattern``, ``mode``, ``flags`` and ``where`` of the spec. A text on which the pattern
    backtracks for more than a second of CPU time fails: judging the pattern is the author's
    work, and no text may buy itself out of a judgement.
    """
    pattern, flags = problem.spec.get("pattern"), problem.spec.get("flags", "")
    mode = problem.spec.get("mode", "fullmatch")
    where = f"problem {problem.id}: spec."
    if not isinstance(flags, str) or not set(flags) <= set(FLAGS):
        raise VerifierError(message(f"{where}flags", repr(flags), f"letters among {FLAGS}"))
    if mode not in ("fullmatch", "search"):
        raise VerifierError(message(f"{where}mode", repr(mode), "fullmatch, search"))
    if not isinstance(pattern, str) or not pattern:
        raise VerifierError(message(f"{where}pattern", repr(pattern)[:80], "a regular expression"))
    compiled = _compiled(pattern, flags, where)
    found = place(problem, completion, "whole")
    if found is None:
        return Part(0.0, detail="no answer")
    try:
        match = getattr(compiled, mode)(found, timeout=MATCH_SECONDS)
        plain = bare(found) if problem.spec.get("where") in ("auto", "marked") else found
        if match is None and plain != found:
            match = getattr(compiled, mode)(plain, timeout=MATCH_SECONDS)
    except TimeoutError:
        return Part(0.0, detail=f"the text makes the pattern backtrack for more than {MATCH_SECONDS:g} s")  # fmt: skip
    except MemoryError:
        return Part(0.0, detail="the text makes the pattern run out of memory")
    return Part(float(match is not None), extracted=match[0] if match else None)


def place(problem: Problem, completion: Completion, default: str) -> str | None:
    """Return the part of a completion's answer that ``spec.where`` names, None where there is none."""
    where = problem.spec.get("where", default)
    if where not in PLACES:
        raise VerifierError(message(f"problem {problem.id}: spec.where", repr(where), ", ".join(PLACES)))  # fmt: skip
    whole = completion.answer_text
    if len(whole) > MAX_TEXT:
        return None
    text = clipped(whole)
    if where in ("auto", "marked") and (found := committed(text)):
        return found[0] if len(found) == 1 else " | ".join(found)
    if where == "last_line":
        text = text.rpartition("\n")[2].strip()
    return text if text and where != "marked" else None


def normalized(text: str, problem: Problem) -> str:
    """Return a text as the ``ignore_*`` options of a problem compare it."""
    spec = problem.spec
    text = unicodedata.normalize("NFC", text.strip())
    if spec.get("ignore_accents", False):
        text = "".join(c for c in unicodedata.normalize("NFD", text) if not unicodedata.combining(c))  # fmt: skip
    if spec.get("ignore_case", True):
        text = text.casefold()
    if spec.get("ignore_punctuation", False):
        text = "".join(" " if unicodedata.category(c)[0] == "P" else c for c in text)
    if spec.get("ignore_whitespace", True):
        text = " ".join(text.split())
    return text


@lru_cache(maxsize=1024)
def _compiled(pattern: str, flags: str, where: str) -> Any:
    import regex

    bits = regex.V0
    for letter in flags:
        bits |= {"i": regex.I, "m": regex.M, "s": regex.S, "x": regex.X}[letter]
    try:
        return regex.compile(pattern, bits)
    except (regex.error, OverflowError, RecursionError) as error:
        raise VerifierError(message(f"{where}pattern", f"{pattern[:60]!r} ({error})", "a regular expression of the regex module")) from error  # fmt: skip


def is_text_answer(value: Any) -> bool:
    """Whether a value may be what ``exact`` expects."""
    if isinstance(value, (list, tuple)):
        listed = cast("Sequence[Any]", value)
        return bool(listed) and all(is_text_answer(one) and not isinstance(one, (list, tuple)) for one in listed)  # fmt: skip
    return bool(value.strip()) if isinstance(value, str) else type(value) in (int, float)


def _is_pattern(value: Any) -> bool:
    try:
        return isinstance(value, str) and bool(value) and bool(_compiled(value, "", ""))
    except VerifierError:
        return False


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _is_place(value: Any) -> bool:
    return value in PLACES


EXACT = Verifier(
    name="exact",
    version=1,
    judge=judge_exact,
    domain="answers that are one text: a name, a word, a line",
    fields=(
        Field("answer", _ANSWER, needed=True, check=is_text_answer, equates=True),
        Field("where", _PLACE, default="auto", check=_is_place),
        Field("ignore_case", "true or false", default=True, check=_is_bool),
        Field("ignore_whitespace", "true (runs of white space are one) or false", default=True, check=_is_bool),
        Field("ignore_punctuation", "true or false", default=False, check=_is_bool),
        Field("ignore_accents", "true or false", default=False, check=_is_bool),
    ),
    accepts="the accepted text itself, wrapped in **, quotes, $ or ` and ended by a period or not, where spec.where says; "
    f"a reply of more than {MAX_TEXT} characters has no answer",
    known_errors=known_errors("exact"),
    text_only=True,
    cached=True,
    modules=("assay.verify.answers", "assay.types"),
)  # fmt: skip

REGEX = Verifier(
    name="regex",
    version=1,
    judge=judge_regex,
    domain="answers whose form a pattern describes",
    fields=(
        Field("pattern", "a regular expression (the regex module's, version 0: as in re)", needed=True, check=_is_pattern),
        Field("mode", "fullmatch, search", default="fullmatch", check=lambda value: value in ("fullmatch", "search")),
        Field("flags", f"letters among {FLAGS}, as in (?{FLAGS})", default="", check=lambda value: isinstance(value, str) and set(value) <= set(FLAGS)),
        Field("where", _PLACE, default="whole", check=_is_place),
    ),
    accepts="a text that the pattern matches, where spec.where says, without white space around it (for auto and marked also without emphasis, quotes and a final period); "
    f"a reply of more than {MAX_TEXT} characters has no answer",
    known_errors=known_errors("regex"),
    limits=Limits(cpu_seconds=MATCH_SECONDS),
    text_only=True,
    cached=True,
    modules=("assay.verify.answers", "assay.types"),
    packages=("regex",),
)  # fmt: skip
