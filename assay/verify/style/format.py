"""Verifiers ``think_format`` (the reasoning block) and ``answer_tags`` (the answer's tags)."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

from assay.host.fields import Field, choice, flag, is_text
from assay.types import Completion, Problem, ThinkFormat
from assay.verify.base import Part, Verifier

# Unicode classifies these invisible fillers and the empty braille pattern as visible letters or
# symbols.
_UNSEEN = frozenset("\u115f\u1160\u2800\u3164\uffa0\ufffc")


OPEN_TAG = Field("open_tag", "text that is not blank", default="<answer>", check=is_text)
CLOSE_TAG = Field("close_tag", "text that is not blank", default="</answer>", check=is_text)
BLOCK = choice("think_block", "filled", "empty")
ONLY = flag("only", "true or false: whether text before the open tag is a fault")


def judge_think_format(problem: Problem, completion: Completion) -> Part:
    """Score 1 if the think block has the required form, else 0. The detail names the fault.

    The completion's think mode decides the form:

    - ``free``: the text starts with a think block, which is closed once, and an answer follows.
    - ``opened``: the prompt ends with the open tag, so the text has only the close tag.
    - ``empty``: the prompt ends with an empty block, so the text is an answer without tags.
    - ``off``: every text passes.

    The reasoning and the answer must have visible content. If the spec's ``think_block`` is
    ``empty``, the think block must be empty, as the prompt ``/no_think`` requires of Qwen3.
    """
    fault = _think_fault(completion.text, completion.think, BLOCK.read(problem) == "filled")
    return Part(0.0 if fault else 1.0, detail=fault)


def judge_answer_tags(problem: Problem, completion: Completion) -> Part:
    """Score 1 if the answer is between two tags that each occur exactly once, else 0.

    Reads ``open_tag``, ``close_tag`` and ``only`` from the spec. The verifier reads only text
    outside the think block. White space may follow the close tag. Other text may precede the open
    tag, unless the spec's ``only`` is true.
    """
    tags, only = (OPEN_TAG.read(problem), CLOSE_TAG.read(problem)), ONLY.read(problem)
    if not has_content(completion.answer_text):
        return Part(0.0, detail="no text outside the think block")
    fault, before, answer, after = _split(completion.answer_text, *tags)
    if not fault and not has_content(answer):
        fault = "nothing between the tags"
    if fault:
        return Part(0.0, detail=fault)
    if after.strip():
        fault = "text after the close tag"
    elif only and before.strip():
        fault = "text before the open tag"
    return Part(0.0 if fault else 1.0, detail=fault, extracted=answer.strip())


def has_content(text: str) -> bool:
    """Return whether a text contains a visible character."""
    return any(map(_is_seen, text))


def _is_seen(char: str) -> bool:
    """Return whether a character is visible without other characters. A combining mark is not."""
    return char.isprintable() and unicodedata.category(char)[0] not in "MZ" and char not in _UNSEEN


def _think_fault(text: str, think: ThinkFormat, filled: bool) -> str:
    if think.mode == "off":
        return ""
    if think.mode == "empty":
        if near := _near_tag(text, think.open_tag, think.close_tag):
            return f"{near!r} instead of a tag"
        if think.open_tag in text or think.close_tag in text:
            return "a think tag in no-think mode"
        return "" if has_content(text) else "no answer"
    is_free = think.mode == "free"
    fault, before, reasoning, answer = _split(text, think.open_tag, think.close_tag, is_free)
    if not fault and before.strip():
        fault = "text before the open tag"
    if not fault and has_content(reasoning) != filled:
        fault = "an empty think block" if filled else "reasoning in a block that must be empty"
    if not fault and not has_content(answer):
        fault = "no answer after the close tag"
    return fault


def _split(
    text: str, open_tag: str, close_tag: str, opens: bool = True
) -> tuple[str, str, str, str]:
    """Return the format fault, and the texts before, between and after the tags.

    opens: True if the text must contain the open tag, False if it must not.
    """
    num_open, num_close, before = text.count(open_tag), text.count(close_tag), ""
    if near := _near_tag(text, open_tag, close_tag):
        return f"{near!r} instead of a tag", "", "", ""
    if num_open != int(opens):
        return f"{num_open} open tags; accepted: {int(opens)}", "", "", ""
    if num_close != 1:
        return f"{num_close} close tags; accepted: 1", "", "", ""
    if opens:
        before, _, text = text.partition(open_tag)
    inside, closed, after = text.partition(close_tag)
    return "" if closed else "the close tag comes before the open tag", before, inside, after


def _near_tag(text: str, open_tag: str, close_tag: str) -> str:
    """Return the first misspelled tag of a text (``</Think >``), or ""."""
    pattern = _tag_pattern(open_tag, close_tag)
    if pattern is None or "<" not in text:
        return ""
    found = (match[0] for match in pattern.finditer(text))
    near = next((tag for tag in found if tag not in (open_tag, close_tag)), "")
    if near or text.isascii():
        return near
    # After invisible characters are removed, a text can contain more tags than before.
    plain = "".join(char for char in text if _is_seen(char) or char.isspace())
    tags = [match[0] for match in pattern.finditer(plain)]
    return tags[0] if len(tags) > len(pattern.findall(text)) else ""


@lru_cache(maxsize=64)
def _tag_pattern(open_tag: str, close_tag: str) -> re.Pattern[str] | None:
    """Return a pattern for a tag in any spelling, or None if the tags are not ``<NAME>``."""
    name = re.fullmatch(r"<([\w-]+)>", open_tag)
    if name is None or close_tag != f"</{name[1]}>":
        return None
    space = r"[ \t]{0,4}"
    return re.compile(rf"<{space}/?{space}{name[1]}{space}/?{space}>", re.IGNORECASE)


THINK_FORMAT = Verifier(
    name="think_format",
    version=3,
    judge=judge_think_format,
    executor="inline",
    domain="the form of the reasoning block",
    fields=(BLOCK,),
    accepts="the tags of the prompt's think format, each once, in order and exactly spelled, "
    "around visible content (or around none if think_block is empty)",
    weight=0.1,
    text_only=True,
    cached=True,
)

ANSWER_TAGS = Verifier(
    name="answer_tags",
    version=2,
    judge=judge_answer_tags,
    executor="inline",
    domain="the form of the answer: between tags, once, at the end",
    fields=(OPEN_TAG, CLOSE_TAG, ONLY),
    accepts="outside the think block: the tags, each once, in order and exactly spelled, around "
    "visible content, and only white space after them",
    weight=0.1,
    text_only=True,
    cached=True,
)
