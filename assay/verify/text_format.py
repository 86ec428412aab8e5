"""Verifier ``think_format``: whether a completion keeps the form that its prompt asks for."""

from __future__ import annotations

from assay.types import Completion, Problem, ThinkFormat
from assay.verify.base import KnownError, Part, Verifier


def judge_think_format(problem: Problem, completion: Completion) -> Part:
    """Score 1 where the think block has its form, else 0; the detail says what is wrong.

    ``free``: the text opens with the block, closes it once, and an answer follows. ``opened``: the
    prompt opened the block, so the text only closes it. ``empty``: the prompt holds the empty block,
    so the text has no tag, and an answer. ``off``: nothing is asked, everything passes. Both the
    reasoning and the answer must hold something besides white space.
    """
    fault = _fault(completion.text, completion.think)
    return Part(0.0 if fault else 1.0, detail=fault)


def _fault(text: str, think: ThinkFormat) -> str:
    if think.mode == "off":
        return ""
    opens, closes = text.count(think.open_tag), text.count(think.close_tag)
    if think.mode == "empty":
        if opens or closes:
            return "a think tag in no-think mode"
        return "" if text.strip() else "no answer"
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
    if not before.strip():
        return "an empty think block"
    return "" if answer.strip() else "no answer after the close tag"


THINK_FORMAT = Verifier(
    name="think_format",
    version=1,
    judge=judge_think_format,
    domain="the form of the reasoning block",
    accepts="the tags of the prompt's think format, exactly once, in order, with content",
    known_errors=(
        KnownError(
            "content is any text: filler passes",
            {"think": "free"},
            "<think>.</think>.",
            says="passed",
            should_say="failed",
        ),
        KnownError(
            "a tag that the reasoning quotes counts as a tag",
            {"think": "free"},
            "<think>I must close with </think> at the end.</think>5",
            says="failed",
            should_say="passed",
        ),
    ),
    text_only=True,
    modules=("assay.verify.text_format", "assay.types"),
)
