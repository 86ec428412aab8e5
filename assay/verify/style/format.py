"""Verifiers of form: ``think_format`` (the reasoning block) and ``answer_tags`` (the answer's tags)."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from assay.errors import VerifierError, message
from assay.types import Completion, Problem, ThinkFormat
from assay.verify.base import Field, Part, Verifier, known_errors

OPEN_TAG, CLOSE_TAG = "<answer>", "</answer>"

# Letters and symbols by their category, yet nothing is seen of them: fillers and the empty braille cell.
_UNSEEN = frozenset("\u115f\u1160\u2800\u3164\uffa0\ufffc")


def judge_think_format(problem: Problem, completion: Completion) -> Part:
    """Score 1 where the think block has its form, else 0; the detail says what is wrong.

    ``free``: the text opens with the block, closes it once, and an answer follows. ``opened``: the
    prompt opened the block, so the text only closes it. ``empty``: the prompt holds the empty block,
    so the text has no tag, and an answer. ``off``: nothing is asked, everything passes. Both the
    reasoning and the answer must hold something that can be seen.
    """
    fault = _think_fault(completion.text, completion.think)
    return Part(0.0 if fault else 1.0, detail=fault)


def judge_answer_tags(problem: Problem, completion: Completion) -> Part:
    """Score 1 where the answer stands between its tags, which stand exactly once, else 0.

    Only the text outside the think block is looked at. After the close tag comes nothing but white
    space; before the open tag anything may stand, unless ``only`` is true. Reads ``open_tag``,
    ``close_tag`` and ``only`` of the spec.
    """
    open_tag = _tag(problem, "open_tag", OPEN_TAG)
    close_tag = _tag(problem, "close_tag", CLOSE_TAG)
    only: Any = problem.spec.get("only", False)
    if not isinstance(only, bool):
        raise VerifierError(message("spec.only", repr(only), "true or false"))
    outside = completion.answer_text
    if not has_content(outside):
        return Part(0.0, detail="no text outside the think block")
    fault, answer = _answer_fault(outside, open_tag, close_tag, only)
    return Part(0.0 if fault else 1.0, detail=fault, extracted=answer)


def has_content(text: str) -> bool:
    """Whether there is anything to see: not only white space, control or zero-width characters."""
    return any(
        char.isprintable() and not char.isspace() and char not in _UNSEEN for char in text.strip()
    )


def _think_fault(text: str, think: ThinkFormat) -> str:
    if think.mode == "off":
        return ""
    opens, closes = text.count(think.open_tag), text.count(think.close_tag)
    if near := _near_tag(text, think.open_tag, think.close_tag):
        return f"{near!r} instead of a tag"
    if think.mode == "empty":
        if opens or closes:
            return "a think tag in no-think mode"
        return "" if has_content(text) else "no answer"
    wanted = 1 if think.mode == "free" else 0
    if opens != wanted:
        return f"{opens} open tags; accepted: {wanted}"
    if closes != 1:
        return f"{closes} close tags; accepted: 1"
    before, _, answer = text.partition(think.close_tag)
    if wanted:
        ahead, opened, before = before.partition(think.open_tag)
        if not opened:
            return "the close tag comes before the open tag"
        if ahead.strip():
            return "text before the open tag"
    if not has_content(before):
        return "an empty think block"
    return "" if has_content(answer) else "no answer after the close tag"


def _answer_fault(text: str, open_tag: str, close_tag: str, only: bool) -> tuple[str, str | None]:
    opens, closes = text.count(open_tag), text.count(close_tag)
    if near := _near_tag(text, open_tag, close_tag):
        return f"{near!r} instead of a tag", None
    if opens != 1:
        return f"{opens} open tags; accepted: 1", None
    if closes != 1:
        return f"{closes} close tags; accepted: 1", None
    before, _, rest = text.partition(open_tag)
    answer, closed, after = rest.partition(close_tag)
    if not closed:
        return "the close tag comes before the open tag", None
    if not has_content(answer):
        return "nothing between the tags", None
    if after.strip():
        return "text after the close tag", answer.strip()
    if only and before.strip():
        return "text before the open tag", answer.strip()
    return "", answer.strip()


def _near_tag(text: str, open_tag: str, close_tag: str) -> str:
    """Return the first misspelled tag of a text (``</Think >``), or an empty string."""
    pattern = _tag_pattern(open_tag, close_tag)
    if pattern is None or "<" not in text:
        return ""
    for found in pattern.finditer(text):
        if found[0] not in (open_tag, close_tag):
            return found[0]
    return ""


@lru_cache(maxsize=64)
def _tag_pattern(open_tag: str, close_tag: str) -> re.Pattern[str] | None:
    """Return what matches a tag in any spelling; None for tags that are not ``<name>``, ``</name>``."""
    name = re.fullmatch(r"<([\w-]+)>", open_tag)
    if name is None or close_tag != f"</{name[1]}>":
        return None
    return re.compile(
        rf"<[ \t]{{0,4}}/?[ \t]{{0,4}}{name[1]}[ \t]{{0,4}}/?[ \t]{{0,4}}>", re.IGNORECASE
    )


def _tag(problem: Problem, key: str, default: str) -> str:
    value: Any = problem.spec.get(key, default)
    if not _is_tag(value):
        raise VerifierError(message(f"spec.{key}", repr(value), "text that is not blank"))
    return value


def _is_tag(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


THINK_FORMAT = Verifier(
    name="think_format",
    version=2,
    judge=judge_think_format,
    lane="inline",
    domain="the form of the reasoning block",
    accepts="the tags of the prompt's think format, exactly once, in order, spelled exactly, with content",
    weight=0.1,
    known_errors=known_errors("think_format"),
    text_only=True,
    cached=True,
    modules=("assay.verify.style.format", "assay.types"),
)

ANSWER_TAGS = Verifier(
    name="answer_tags",
    version=1,
    judge=judge_answer_tags,
    lane="inline",
    domain="the form of the answer: between tags, once, at the end",
    fields=(
        Field("open_tag", "text that is not blank", default=OPEN_TAG, check=_is_tag),
        Field("close_tag", "text that is not blank", default=CLOSE_TAG, check=_is_tag),
        Field(
            "only",
            "true or false: whether text before the open tag is a fault",
            default=False,
            check=lambda value: isinstance(value, bool),
        ),
    ),
    accepts="outside the think block: the tags exactly once, in order, spelled exactly, with content, "
    "and nothing but white space after them",
    weight=0.1,
    known_errors=known_errors("answer_tags"),
    text_only=True,
    cached=True,
    modules=("assay.verify.style.format", "assay.verify.base", "assay.types"),
)
