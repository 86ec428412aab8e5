"""Where a text marks its answer: tags, boxes, phrases; and what stands alone in its last line.

Nothing here interprets the content: each verifier reads it by its own rules. Marks that stand
together are one commitment, so that a verifier of single answers can refuse them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

MAX_TEXT = 100_000  # characters at the end of a text that are looked at

_TOGETHER = 60  # characters between two marks of one commitment
_TAG = re.compile(r"<answer>|</answer>", re.IGNORECASE)
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_BETWEEN = re.compile(
    r"(?:[\s,;.&/|$*]|\\[\[\]()]|\\text\s*\{\s*(?:and|or)?\s*\}|\b(?:and|or|alternatively|maybe|perhaps|possibly|also)\b)*",
    re.IGNORECASE,
)
_OR = re.compile(r"\b(?:or|either|both|alternatively|maybe|perhaps)\b", re.IGNORECASE)
_PHRASE = re.compile(
    r"^[^\w\n]{0,6}(?:(?:so|thus|hence|therefore),?\s)?(?:my\s|the\s)?(?:final\s|correct\s)?(?:answer|solution|ans)\**\s{0,3}[:：]\**"
    r"|\b(?:final|correct)\s+answer\**\s{0,3}(?:[:：]|is\b:?)"
    r"|\banswer\s{1,3}is\b:?"
    r"|^####",
    re.IGNORECASE | re.MULTILINE,
)
_SPECIAL = re.compile(r"<\|[^|<>]{1,40}\|>|</s>|<eos>|<end_of_turn>|<｜[^｜]{1,40}｜>")
_FENCE = re.compile(r"\A```[\w+-]*[ \t]*\n(.*?)\n?```\Z", re.DOTALL)
_WRAPS = (
    re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mathit|textrm|textsf|mbox)\s*\{(.*)\}\Z", re.DOTALL),
    re.compile(r"\{\\(?:bf|rm|it|sf)\s+(.*)\}\Z", re.DOTALL),
    re.compile(r"\\[(\[](.*)\\[)\]]\Z", re.DOTALL),
    re.compile(r"\$\$?([^$]*)\$\$?\Z", re.DOTALL),
    re.compile(r"\*\*(.*?)\*\*\Z", re.DOTALL),
    re.compile(r"__(.*?)__\Z", re.DOTALL),
    re.compile(r"`([^`]*)`\Z", re.DOTALL),
    re.compile(r"(?:\*([^*]*)\*)\Z", re.DOTALL),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mark:
    """One place that marks an answer: its content, and where the mark begins and ends."""

    content: str
    start: int
    end: int


def clipped(text: str) -> str:
    """Return the end of a text, without what follows a template's own special token."""
    text = text[-MAX_TEXT:].strip()
    return _SPECIAL.split(text, maxsplit=1)[0].strip() if "<" in text else text


def marks(text: str) -> list[Mark]:
    """Return every closed answer tag and box, in order.

    Of a box in a tag the box, unless the tag names alternatives beside it.
    """
    found = sorted((*_tags(text), *_boxes(text)), key=lambda mark: (mark.start, -mark.end))
    kept: list[Mark] = []
    for mark in found:
        if kept and mark.end <= kept[-1].end:  # inside the one before
            outer = kept[-1].content
            if _OR.search(outer.replace(text[mark.start : mark.end], "", 1)):
                continue
            kept.pop()
        kept.append(mark)
    return [mark for mark in kept if mark.content]


def last_marks(text: str) -> list[Mark]:
    """Return the last tags or boxes that stand together: usually one."""
    run: list[Mark] = []
    for mark in reversed(marks(text)):
        between = text[mark.end : run[0].start] if run else ""
        if run and (len(between) > _TOGETHER or not _BETWEEN.fullmatch(between)):
            break
        run.insert(0, mark)
    return run


def last_phrase(text: str, start: int = 0) -> Mark | None:
    """Return what follows the last "the answer is", "Answer:" or ####, up to the end of its line."""
    found: re.Match[str] | None = None
    for found in _PHRASE.finditer(text, start):  # noqa: B007
        pass
    if found is None:
        return None
    rest = text[found.end() :]
    content = rest.lstrip(" \t*")
    if content.startswith("\n"):
        content = content.lstrip()
    begin = found.end() + len(rest) - len(content)
    content = content.partition("\n")[0]
    return Mark(content.strip(), found.start(), begin + len(content)) if content.strip() else None


def committed(text: str) -> tuple[str, ...]:
    """Return the contents of the last commitment of a text, () where nothing marks one.

    A phrase after the last tag or box overrules it. Several contents: marks that stand together.
    """
    run = last_marks(text)
    phrase = last_phrase(text, run[-1].end if run else 0)
    if phrase is not None:
        return (phrase.content,)
    return tuple(dict.fromkeys(mark.content for mark in run))


def unwrapped(text: str) -> str:
    r"""Return a text without the fence, ``$``, ``\text{}`` or emphasis that wraps the whole of it."""
    text = text.strip()
    for _ in range(8):
        match = _FENCE.match(text) or next((m for w in _WRAPS if (m := w.match(text))), None)
        if match is None or (match[1].count("{") != match[1].count("}") and "\\" in match[0][:2]):
            return text
        text = match[1].strip()
    return text


def _tags(text: str) -> Iterator[Mark]:
    opened: re.Match[str] | None = None
    for match in _TAG.finditer(text):
        if match[0][1] != "/":
            opened = match
        elif opened is not None:
            yield Mark(text[opened.end() : match.start()].strip(), opened.start(), match.end())
            opened = None


def _boxes(text: str) -> Iterator[Mark]:
    position = 0
    while match := _BOX.search(text, position):
        depth, end = 1, match.end()
        while end < len(text) and depth:
            if text[end] == "\\":
                end += 2
                continue
            depth += (text[end] == "{") - (text[end] == "}")
            end += 1
        if depth or end > len(text):
            return  # cut off inside the box: nothing was committed
        yield Mark(text[match.end() : end - 1].strip(), match.start(), end)
        position = end
