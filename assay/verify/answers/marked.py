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
_LEADS = r"(?:(?:so|thus|hence|therefore|correction|edit|update|actually|wait|sorry|no)\b[,:;.!]{0,2}\s){0,3}"
_PHRASE = re.compile(
    rf"^[^\w\n]{{0,6}}{_LEADS}(?:my\s|the\s)?(?:final\s|correct\s)?(?:answer|solution|ans)\**\s{{0,3}}[:：]"
    r"|\b(?:final|correct)\s+answer\**\s{0,3}(?:[:：]|is\b:?)"
    r"|\banswer\**\s{1,3}is\b:?"
    r"|^[^\w\n]{0,6}final\**\s{0,3}[:：]"
    r"|^[^\w\n]{0,6}(?P<letter>(?-i:A))\**[ \t]{0,3}[:：]"
    r"|^(?P<heading>(?:\#{1,6}[ \t]{0,3}|\*\*)\**(?:the\s|my\s)?(?:final\s|correct\s)?answer\**)[ \t]{0,3}$"
    r"|^\#\#\#\#",
    re.IGNORECASE | re.MULTILINE,
)
_OTHER_LETTER = re.compile(r"^[^\w\n]{0,6}B\**[ \t]{0,3}[:：]", re.MULTILINE)  # A: is then a label
_IS = r"(?:it|that|this|(?:the|my)\s(?:final\s|correct\s)?(?:answer|option|choice))(?:['’]s|\s(?:is|should\sbe|must\sbe|would\sbe))(?:\s(?:really|actually|in\sfact))?"
_RETRACTS = re.compile(
    rf"\b(?:no,?\s?wait|wait,?\s?no|correction|scratch\sthat|on\ssecond\sthoughts?|I\smeant?|my\smistake|sorry|oops)\b[\s,:;.!—–-]{{0,4}}(?:actually,?\s)?(?:{_IS}\b)?"
    rf"|\b(?:actually|in\sfact|but|wait|no|hmm)\b[\s,:;.!—–-]{{1,3}}(?:actually\s|really\s)?{_IS}\b",
    re.IGNORECASE,
)
_ENOUGH = re.compile(r"[.!?;](?:\s|$)|,?\s(?:because|since|as|so|not)\b")
_ASIDE = re.compile(r"(?:an?|the|for|about|if|that|to|let)\s")  # "sorry for", "it is a city"
_SHORT = 40  # characters of what a retraction puts in an answer's place
_EXPLAINS = re.compile(r"\s{0,9}[^\n]{0,300}[:：][ \t]{0,3}$", re.MULTILINE)
_BEFORE = re.compile(r"\A(?:[*_ \t]{0,9}\n\s*+(?:[*-][ \t]+)?|\*{1,3}[ \t]+)")
_DENIED = re.compile(
    r"\b(?:false|untrue|incorrect|wrong|not\s{1,3}true|not\s{1,3}the\s{1,3}case|not|doubt|deny)\s{1,3}that\s{1,3}(?:the\s{1,3})?(?:final\s{1,3}|correct\s{1,3})?\Z"
    r"|\b(?:is|if|whether|could|might)\s{1,3}(?:the|my)\s{1,3}(?:final\s{1,3}|correct\s{1,3})?\Z",
    re.IGNORECASE,
)
_PAIRS = (("**", "**"), ("__", "__"), ("*", "*"), ("`", "`"), ('"', '"'), ("“", "”"), ("«", "»"))
_QUOTES = (*_PAIRS[4:], ("'", "'"), ("‘", "’"), ("「", "」"))
_STOPS = ".。!！"
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
    """Return what follows the last "the answer is", "Answer:" or ####, up to the end of its line.

    What takes it back ("no wait: Rome") stands in its place, also in that of a tag or box before ``start``.

    A phrase that is denied ("it is false that the answer is") or that asks marks nothing.
    """
    found: re.Match[str] | None = None
    labels: bool | None = None
    for match in _PHRASE.finditer(text, start):
        if _DENIED.search(text[max(0, match.start() - 60) : match.start()]):
            continue
        if match["letter"] and (labels := _labels_letters(text) if labels is None else labels):
            continue
        if match["heading"] and _EXPLAINS.match(text, match.end()):
            continue  # no answer, but an explanation begins there
        found = match
    phrase = None if found is None else _phrase(text, found)
    begin = found.end() if phrase is not None and found is not None else start
    return (retraction(text, begin) if begin else None) or phrase


def retraction(text: str, start: int) -> Mark | None:
    """Return what the last "no wait: Rome" or "actually, it is Rome" after ``start`` puts in an answer's place."""
    found: Mark | None = None
    for match in _RETRACTS.finditer(text, start):
        rest = text[match.end() : match.end() + 4 * _SHORT].partition("\n")[0]
        content = _ENOUGH.split(rest, maxsplit=1)[0].strip(" \t:,").removesuffix("**")
        if (
            content
            and not _ASIDE.match(content)
            and len(content) <= _SHORT
            and len(content.split()) <= 3
        ):
            found = Mark(content, match.start(), match.end() + len(rest))
    return found


def _phrase(text: str, found: re.Match[str]) -> Mark | None:
    """Return the content of a phrase, without the half of an emphasis or quotation that began before it."""
    head = text[text.rfind("\n", 0, found.start() + 1) + 1 : found.end()][-200:]
    rest = text[found.end() :]
    content = rest.lstrip(" \t")
    for opening, closing in _PAIRS:
        if (
            opening in content[:2]
            and content.startswith(closing)
            and _is_open(head, opening, closing)
        ):
            content = content[len(closing) :].lstrip(" \t")
            head = ""
    content = _BEFORE.sub("", content, count=1)
    begin = found.end() + len(rest) - len(content)
    if content.startswith("```"):
        inside, closed, _ = content.partition("\n")[2].partition("\n```")
        if closed and inside.strip():
            end = begin + content.index("\n") + 1 + len(inside)
            return Mark(inside.strip(), found.start(), end)
    content = content.partition("\n")[0]
    end = begin + len(content)
    content = content.strip()
    for opening, closing in _PAIRS:
        bare = content.rstrip(_STOPS)
        if bare.endswith(closing) and _is_open(head, opening, closing):
            if bare.count(closing) % 2 or opening != closing:
                content = bare.removesuffix(closing).rstrip()
            break
    return Mark(content, found.start(), end) if content else None


def _labels_letters(text: str) -> bool:
    """Whether "A:" is the label of an option in a text, not the mark of an answer."""
    return _OTHER_LETTER.search(text) is not None


def _is_open(head: str, opening: str, closing: str) -> bool:
    """Whether a quotation or emphasis that begins in a text does not end there."""
    if opening == closing:
        if opening == "*":
            head = head.replace("**", "")
        return head.count(opening) % 2 == 1
    return head.count(opening) > head.count(closing)


def committed(text: str) -> tuple[str, ...]:
    """Return the contents of the last commitment of a text, () where nothing marks one.

    A phrase after the last tag or box overrules it. Several contents: marks that stand together.
    """
    return commitment(text)[0]


def commitment(text: str) -> tuple[tuple[str, ...], int]:
    """Return the contents of the last commitment, and where it ends in the text (0 where there is none)."""
    run = last_marks(text)
    end = run[-1].end if run else 0
    phrase = last_phrase(text, end)
    if phrase is not None:
        return (phrase.content,), phrase.end
    return tuple(dict.fromkeys(mark.content for mark in run)), end


def bare(text: str) -> str:
    """Return an answer without the quotes and the wrapping around it, and without a sentence's end."""
    for _ in range(4):
        before = text
        text = unwrapped(text.strip().rstrip(_STOPS))
        for opening, closing in _QUOTES:
            inside = text[len(opening) : -len(closing)]
            if len(text) > 2 and text[0] == opening and text[-1] == closing and opening not in inside and closing not in inside:  # fmt: skip
                text = inside.strip()
        if text == before:
            break
    return text


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
