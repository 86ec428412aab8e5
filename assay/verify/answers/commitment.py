"""Find a text's final answer: boxes, answer tags and phrases such as "the answer is".

An answer mark is a box or an answer tag. The last mark counts, and adjacent marks are one answer of
several parts. Words before a mark can negate the answer, and words after the mark can retract or
replace the answer. phrases.toml lists these words. Each verifier parses the content of a mark by
its own rules.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from assay.verify.answers.tables import opens, pattern, says

PHRASES = ("answer_line", "final_answer", "answer_is")
# Number of characters at the end of a text in which an answer is searched.
MAX_TEXT = 100_000
# Number of boxes and tags that are read, counted from the end of the text.
MAX_MARKS = 2000
# Number of answer phrases that are read, counted from the end of the text.
MAX_PHRASES = 100
# Maximum nesting depth of boxes.
MAX_NESTED = 8
# Maximum number of characters of a reply that is read as JSON.
MAX_OBJECT = 2000
# Maximum number of characters of a correction that replaces an answer.
MAX_REPLACED = 40

_SPECIAL = re.compile(r"<\|[^|<>]{1,40}\|>|</s>|<eos>|<end_of_turn>|<｜[^｜]{1,40}｜>")
_OPENING = re.compile(
    r"(?:\s*(?:<\|[^|<>]{1,40}\|>|<s>|<bos>|<start_of_turn>|<｜[^｜]{1,40}｜>)"
    r"\s{0,4}(?:(?:assistant|model|final|user|system)\b)?)+",
    re.IGNORECASE,
)
_OTHER_ROLE = re.compile(r"\b(?:user|system)\b[^|]*$", re.IGNORECASE)
_COMMENT = re.compile(
    r"<!--.*?(?:-->|\Z)|\\iffalse\b.*?(?:\\fi\b|\Z)"
    r"|\\begin\{comment\}.*?(?:\\end\{comment\}|\Z)"
    r"|^[ \t]*(?<!\\)%[^\n]*|^\[[^\]\n]{1,40}\]:\s?\#[^\n]*",
    re.DOTALL | re.MULTILINE,
)
HTML_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_STRUCK = re.compile(
    r"~~[^~]{1,1000}~~|<(?P<tag>del|s|strike)>[^<]{1,1000}</(?P=tag)>", re.IGNORECASE
)
# LaTeX commands that strike their argument out or make it invisible.
_STRIKING = re.compile(
    r"\\(?:[bx]?cancel|cancelto\{[^{}]{0,40}\}|sout|xout|st|[hv]?phantom"
    r"|(?:text)?color\s{0,4}\{\s{0,4}white\s{0,4}\})\s{0,4}(?=\{)"
)
_MARK = re.compile(r"box|oxed|answer|####", re.IGNORECASE)
_SIGNS = ("%", "<!--", "\\iffalse", "]: #", "{comment}", "~~", "</")
# In a JSON string, the \b of an unescaped \boxed is a backspace character (\x08).
_BOX = re.compile(
    r"(?P<command>\\|\x08|(?<![A-Za-z\\]))(?:d?boxed|oxed|fbox|framebox)\s*"
    r"(?:\{|(?P<bare>\\?[\w.]+))"
)
_TAG = re.compile(r"<\s*(/?)\s*(?:final[_ ]?)?answer\s*>", re.IGNORECASE)
_WORD = re.compile(r"\w")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
# In a text that also has a line "B:", the mark "A:" is an option's label and not "Answer:".
_OTHER_LETTER = re.compile(r"^[^\w\n]{0,6}B\**[ \t]{0,3}[:：]", re.MULTILINE)
_EXPLAINS = re.compile(r"\s{0,9}[^\n]{0,300}[:：][ \t]{0,3}$", re.MULTILINE)
_BEFORE = re.compile(r"[*_ \t]{0,9}\n\s*+(?:[*-][ \t]+)?|\*{1,3}[ \t]+")
_ENOUGH = re.compile(r"[.!?;](?:\s|$)|,?\s(?:because|since|as|so|not)\b")
# These words show that a phrase such as "sorry for" or "it is a city" is no correction.
_ASIDE = re.compile(r"(?:an?|the|for|about|if|that|to|let)\s")
_PAIRS = (("**", "**"), ("__", "__"), ("*", "*"), ("`", "`"), ('"', '"'), ("“", "”"), ("«", "»"))
_QUOTES = dict([*_PAIRS[4:], ("'", "'"), ("‘", "’"), ("「", "」")])
STOPS = ".。!！"
_FENCE = re.compile(r"\A```[\w+-]*[ \t]*\n(.*?)\n?```\Z", re.DOTALL)
_BLOCK = re.compile(r"[ \t]*```[^\n]*\n(?=\s*\S)(.*?)\n```", re.DOTALL)
# First characters of the texts that `_WRAPS` and `_FENCE` match.
_WRAPPERS = frozenset("`\\{$*_")
_WRAPS = tuple(
    re.compile(rf"{wrap}\Z", re.DOTALL)
    for wrap in (
        r"\\(?:text|textbf|textit|mathrm|mathbf|mathit|textrm|textsf|mbox)\s*\{(.*)\}",
        r"\{\\(?:bf|rm|it|sf)\s+(.*)\}",
        r"\\[(\[](.*)\\[)\]]",
        r"\$\$?([^$]*)\$\$?",
        r"\*\*(.*?)\*\*",
        r"__(.*?)__",
        r"`([^`]*)`",
        r"\*([^*]*)\*",
    )
)


@dataclass(frozen=True, slots=True)
class Mark:
    """An answer mark: a box or an answer tag in a text.

    start, end: positions of the whole mark. inside: position at which the content starts.
    """

    start: int
    inside: int
    end: int
    content: str


@dataclass(frozen=True, slots=True)
class Commitment:
    """The final answer of a text.

    parts: contents of the answer. Adjacent boxes give several parts.
    earlier: contents of earlier boxes that differ from `parts`. Earlier boxes count only together
        with `parts`, and only if the expected answer has several parts.
    phrase: the words around a single part, if these words can also be the answer.
    how: ``box``, ``tag``, ``phrase``, or the name of the fallback that found the answer.
    end: position in the text at which the answer ends; 0 if unknown.
    """

    parts: tuple[str, ...]
    earlier: tuple[str, ...] = ()
    phrase: str = ""
    how: str = ""
    end: int = 0


def clipped(text: str) -> str:
    """Return the assistant turn of a text, up to the special token that ends the turn."""
    text = text[-MAX_TEXT:].strip()
    if "<" not in text:
        return text
    text = text.rpartition("<|begin_of_solution|>")[2]
    if opening := _OPENING.match(text):
        if _OTHER_ROLE.search(opening[0]):
            # A text that begins with a user or system turn contains no answer.
            return ""
        text = text[opening.end() :]
    return _SPECIAL.split(text, maxsplit=1)[0].strip()


def uncommented(text: str, marked: bool = False) -> str:
    """Remove HTML comments, because a renderer hides them.

    marked: whether only comments that contain an answer mark are removed. A comment without a mark
        can be part of an answer in HTML.
    """
    if "<!--" not in text:
        return text
    hidden = HTML_COMMENT.sub(lambda m: m[0] if marked and not _MARK.search(m[0]) else " ", text)
    return hidden.strip()


def shown(text: str) -> str:
    """Return the text of the assistant turn without comments and struck-out answers."""
    text = clipped(text)
    if any(sign in text for sign in _SIGNS):
        text = _COMMENT.sub(" ", text)
        text = _STRUCK.sub(lambda m: " " if _MARK.search(m[0]) else m[0], text)
    if "\\" not in text or not _STRIKING.search(text):
        return text
    closing = _closings(text, 0)
    kept: list[str] = []
    start = 0
    for match in _STRIKING.finditer(text):
        end = closing.get(match.end(), 0)
        if match.start() >= start and end and _MARK.search(text, match.end(), end):
            kept.append(text[start : match.start()])
            start = end
    return " ".join((*kept, text[start:]))


def _closings(text: str, start: int) -> dict[int, int]:
    """Map the position of each opening brace after ``start`` to the position after the matching
    closing brace."""
    found: dict[int, int] = {}
    opened: list[int] = []
    for match in _BRACE.finditer(text, start):
        if match[0] == "{":
            opened.append(match.start())
        elif match[0] == "}" and opened:
            found[opened.pop()] = match.end()
    return found


def marks(text: str, depth: int = 0) -> list[Mark]:
    """Return the closed answer tags and boxes in text order.

    If an answer mark contains another mark, return only the inner mark. A box that contains an
    inner box next to alternatives ("or 5") is returned whole.
    """
    found: list[Mark] = []
    every = (*(_boxes(text) if "ox" in text else ()), *(_tags(text) if "<" in text else ()))
    for mark in sorted(every, key=lambda mark: mark.start)[-MAX_MARKS:]:
        if found and mark.start < found[-1].end:
            continue
        nested = depth < MAX_NESTED and ("box" in mark.content or "<" in mark.content)
        inner = marks(mark.content, depth + 1) if nested else []
        if not inner or says("alternatives", "".join(text_between(mark.content, inner))):
            found.append(mark)
            continue
        found += [
            Mark(mark.inside + m.start, mark.inside + m.inside, mark.inside + m.end, m.content)
            for m in inner
        ]
        # The rest of an outer mark, such as "}" or "</answer>", belongs to the last inner mark.
        # Without this correction, the end of the outer mark would be read as text after the answer.
        if not _WORD.search(mark.content, inner[-1].end):
            found[-1] = replace(found[-1], end=mark.end)
    return found


def text_between(text: str, found: Iterable[Mark]) -> Iterator[str]:
    """Yield the text before, between and after the given marks."""
    start = 0
    for mark in found:
        yield text[start : mark.start]
        start = mark.end
    yield text[start:]


def _boxes(text: str) -> Iterator[Mark]:
    position, closing = 0, None
    while match := _BOX.search(text, position):
        position = match.end()
        if match["bare"]:
            if match["command"]:
                yield Mark(match.start(), match.start("bare"), position, match["bare"])
            continue
        # Braces are matched once for all boxes of a text.
        # A separate scan for each box would take quadratic time.
        closing = _closings(text, position - 1) if closing is None else closing
        if position - 1 not in closing:
            # The text was cut off inside this box, so the box contains no complete answer.
            return
        inside, position = position, closing[position - 1]
        yield Mark(match.start(), inside, position, text[inside : position - 1])


def _tags(text: str) -> Iterator[Mark]:
    opened: re.Match[str] | None = None
    for match in _TAG.finditer(text):
        if not match[1]:
            opened = match
        elif opened is not None:
            content = text[opened.end() : match.start()]
            yield Mark(opened.start(), opened.end(), match.end(), content)
            opened = None


def _is_mark_negated(text: str, mark: Mark) -> bool:
    before = text[max(0, mark.start - 40) : mark.start]
    if says("unmeant", before) or _say_others(before.rstrip(" $\\([*:") + " "):
        return True
    after = text[mark.end : mark.end + 160]
    if not after.strip(" .$\n"):
        return False
    return bool(opens("disowned", after) or opens("taken_back", after))


def _say_others(before: str) -> bool:
    said = says("says", before)
    return said is not None and not says("own", before, 0, said.start())


def chosen(text: str, found: Iterable[Mark]) -> tuple[list[Mark], list[Mark]]:
    """Return (earlier marks, last group of adjacent marks), without marks that the text negates."""
    kept = [one for one in found if one.content.strip() and not _is_mark_negated(text, one)]
    run = _last_run(text, kept)
    return kept[: len(kept) - len(run)], run


def _last_run(text: str, found: list[Mark]) -> list[Mark]:
    """Return the last group of adjacent boxes and tags; the group usually is a single box."""
    # Two marks are adjacent if the text between them joins them, names alternatives, or is short.
    # A short text separates two marks if its words derive a new result, such as "so" or "gives".
    run = found[-1:]
    for mark in reversed(found[:-1]):
        between = text[mark.end : run[0].start]
        if not (
            (len(between) <= 60 and opens("joining", between))
            or (len(between) <= 120 and says("alternatives", between))
            or (len(between) <= 40 and not says("deriving", between))
        ):
            break
        run.insert(0, mark)
    return run


def last_marks(text: str) -> list[Mark]:
    """Return the last group of adjacent boxes and tags, leaving out those that the text negates."""
    return chosen(text, marks(text))[1]


def phrases(
    text: str, start: int, *names: str, beside_box: bool = False
) -> Iterator[re.Match[str]]:
    """Yield the answer phrases after ``start`` from last to first, without negated phrases.

    names: entries of phrases.toml. beside_box: whether the text has a box before the answer
        phrases.
    """
    lettered = None
    for match in reversed(list(pattern(*names).finditer(text, start))[-MAX_PHRASES:]):
        if match["letter"]:
            lettered = bool(_OTHER_LETTER.search(text)) if lettered is None else lettered
            if lettered:
                continue
        if match["heading"] and _EXPLAINS.match(text, match.end()):
            continue
        if not is_negated(text, match.start(), beside_box):
            yield match


def is_negated(text: str, position: int, beside_box: bool = False) -> bool:
    """Return whether the words before an answer phrase negate it or attribute it to someone else.

    beside_box: whether the text has a box before the answer phrase. A phrase such as "the expected
        answer is" after a box counts as negated, so that it does not overrule the box.
    """
    before = text[max(0, position - 80) : position]
    if says("denied", before) or _say_others(before) or (beside_box and says("another", before)):
        return True
    closing = says("unquote", text, position, position + 400) if says("quote", before) else None
    return closing is not None and bool(re.search(r"[A-Za-z]", closing[1]))


def last_phrase(text: str, start: int = 0) -> Mark | None:
    """Return the line that follows the last answer phrase after ``start``.

    If a correction such as "no wait: Rome" follows, return the correction instead. A correction
    also replaces a tag or box before ``start``.
    """
    found = next((m for m in phrases(text, start, *PHRASES) if not _is_asked(text, m)), None)
    phrase = _line_after(text, found) if found else None
    begin = found.end() if found and phrase else start
    return (retraction(text, begin) if begin else None) or phrase


def _is_asked(text: str, match: re.Match[str]) -> bool:
    return bool(says("asked", text[max(0, match.start() - 60) : match.start()]))


def retraction(text: str, start: int) -> Mark | None:
    """Return the new answer in the last correction after ``start``, such as "no wait: Rome"."""
    found: Mark | None = None
    for match in pattern("retracted").finditer(text, start):
        rest = text[match.end() : match.end() + 4 * MAX_REPLACED].partition("\n")[0]
        content = _ENOUGH.split(rest, maxsplit=1)[0].strip(" \t:,").removesuffix("**")
        short = content and len(content) <= MAX_REPLACED and len(content.split()) <= 3
        if short and not _ASIDE.match(content):
            found = Mark(match.start(), match.end(), match.end() + len(rest), content)
    return found


def _line_after(text: str, phrase: re.Match[str]) -> Mark | None:
    """Return the line or fenced block that follows an answer phrase.

    An emphasis or quotation mark whose partner is outside the line is removed.
    """
    inside = phrase.end()
    if before := _BEFORE.match(text, inside):
        inside = before.end()
    if fence := _BLOCK.match(text, inside):
        return Mark(phrase.start(), fence.start(1), fence.end(1), fence[1].strip())
    content = text[inside:].partition("\n")[0]
    end = inside + len(content)
    content = content.strip()
    for opening, closing in _PAIRS:
        content = _without_unpaired(content, opening, closing)
    return Mark(phrase.start(), inside, end, content) if content else None


def _without_unpaired(content: str, opening: str, closing: str) -> str:
    """Remove an emphasis or quotation mark at a line's edge whose partner is outside the line."""
    alone = (
        content.count(opening) == 1
        if opening == closing
        else (content.count(closing) > content.count(opening))
    )
    bare = content.rstrip(STOPS)
    if alone and content.startswith(closing):
        return content.removeprefix(closing).strip()
    return bare.removesuffix(closing).rstrip() if alone and bare.endswith(closing) else content


def commitment(text: str) -> Commitment:
    """Return the final answer that a text marks; the answer has no parts if the text marks none.

    An answer phrase after the last answer tag or box overrules the tag or box. Adjacent boxes give
    several parts.
    """
    run = last_marks(text)
    end = run[-1].end if run else 0
    if phrase := last_phrase(text, end):
        return Commitment((phrase.content,), end=phrase.end)
    return Commitment(tuple(dict.fromkeys(mark.content.strip() for mark in run)), end=end)


def object_answers(text: str) -> list[str | float]:
    """Return the answers in a JSON reply such as ``{"answer": "B"}``, or an empty list."""
    text = unwrapped(text) if len(text) <= MAX_OBJECT else ""
    if not (text.startswith("{") and text.endswith("}")):
        return []
    try:
        values: dict[str, Any] = json.loads(text)
    except (ValueError, RecursionError):
        return []
    named = [value for key, value in values.items() if pattern("answer_key").fullmatch(key)]
    listed = named[0] if len(named) == 1 and isinstance(named[0], list) else named
    plain = all(isinstance(each, (str, int, float)) for each in listed)
    # Values are compared by identity, because 1 == True in Python and the number 1 is an answer.
    return listed if plain and len(named) == 1 and not any(each is True for each in listed) else []


def bare(text: str) -> str:
    """Return an answer without surrounding quotes, wrapping and final period."""
    for _ in range(4):
        before = text
        text = unwrapped(text.strip().rstrip(STOPS))
        closing, inside = _QUOTES.get(text[:1]), text[1:-1]
        if closing and inside and text[-1] == closing and not {text[0], closing} & {*inside}:
            text = inside.strip()
        if text == before:
            break
    return text


def unwrapped(text: str) -> str:
    r"""If a fence, ``$``, ``\text{}`` or emphasis wraps a whole text, remove the wrapping."""
    text = text.strip()
    for _ in range(8):
        if text[:1] not in _WRAPPERS:
            return text
        match = _FENCE.match(text) or next((m for w in _WRAPS if (m := w.match(text))), None)
        if match is None or (match[1].count("{") != match[1].count("}") and "\\" in match[0][:2]):
            return text
        text = match[1].strip()
    return text
