"""Find the mathematical answer of a text: a box, a tag, a phrase, or a bare answer.

The last answer counts. Text directly after the answer can retract the answer, correct it, or add an
alternative. An alternative after the answer becomes an additional part of the answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from assay.verify.answers.commitment import (
    MAX_TEXT,
    Commitment,
    Mark,
    chosen,
    marks,
    phrases,
    shown,
)
from assay.verify.answers.latex_text import canonical
from assay.verify.answers.math_policy import Fallback
from assay.verify.answers.plain_numbers import read_number
from assay.verify.answers.sentences import (
    DISPLAY,
    MATH_PHRASES,
    MAX_SENTENCE,
    MAX_SHORT,
    is_answer_alone,
    only_value_of,
    unmarked_answer,
    value_of,
    value_of_last_sentence,
)
from assay.verify.answers.tables import opens, pattern, says

MAX_ANSWER = 1000
# Number of characters after a phrase that are searched for further computation with the phrase's
# value.
MAX_REST = 4000

# LaTeX authors write thousands separators as ",\!" or "{,}" to avoid the space after a comma.
_THOUSANDS = re.compile(r"(?<=\d)(?:,\\!|\{,\})\s{0,2}(?=\d{3}(?!\d))")
_SPACES = re.compile(r"[ \t]{3,}|\n{3,}")
_SPOKEN = re.compile(
    r"\\(?:text|mbox|textbf|mathrm)\s{0,4}\{([^{}]*\b(?:answer|result)s?\b[^{}]*)\}", re.IGNORECASE
)
# A minus sign directly before a box is part of the answer.
_SIGN = re.compile(r"(?:(?<=[=$(\s])|^)-(?:\\!|\\,)?$")
# A power, a factor, decimals or a number word directly after a box changes the answer's value.
_TAIL = re.compile(
    r"\s?\\(?:cdot|times)\s?\d[^\s$.,;)]{0,20}|\^(?!\{?\s?\\(?:circ|text))(?:\{[^{}]{0,20}\}|\d)"
    r"|\.\d{1,20}(?!\d)"
    r"|\s(?:hundred|thousand|million|billion|trillion|dozen|squared|cubed|factorial)\b",
    re.IGNORECASE,
)
_OPENING, _CLOSING = re.compile(r"[(\[]"), re.compile(r"[)\]]")
_EDGES = re.compile(r"^(?:[\s,\"“‘…]|\.{2,5}(?=\s))+|[\s\"”✅✔☑🎉👍\ufe0f]+$")
_WORKED = re.compile(
    r"(?:,\s(?:which\s(?:is|equals)|that\sis,?|i\.e\.,?|namely)|\s=)\s(-?\d[\d.,/]*)$"
)
_LOOKS_LIKE_A_VALUE = re.compile(r"^\W{0,4}\\?[$\d(\[.-]|[\\^]")
_STOP = re.compile(
    r"(?<!\b[A-Z])\.\s+(?=[A-Z\W]|\d+\s(?:would\sbe|is|was)\s(?:too|not|wrong|impossible)\b)"
    r"|[。！？]|(?<=[a-z]{2})!(?=\s|$)|\s+####"
)


def find_answer(
    text: str, fallback: Fallback = "none", truncated: bool = False
) -> Commitment | None:
    """Return the final answer of a text, or None if the text has no final answer.

    fallback: source of the answer if no box, tag or phrase marks an answer in a longer text.
        ``sentence``: the value of the last sentence, if the sentence has exactly one value.
        ``last_number``: the last number. ``none``: no fallback.
    truncated: whether the text was cut off. In a text that was cut off, only closed boxes and tags
        count.
    """
    # A text that was cut off after a line break has a complete last line.
    truncated = truncated and not text.endswith("\n")
    # The phrase patterns allow only a few spaces, so longer runs of white space are shortened.
    text = _SPACES.sub(lambda m: m[0][:2], shown(text[-MAX_TEXT:]))
    text = _THOUSANDS.sub(",", text) if "\\!" in text or "{,}" in text else text
    text = _SPOKEN.sub(r"\1", text) if "\\" in text else text
    plain = pattern("hope").sub("", text).strip()
    had_courtesy, text = len(plain) < len(text), plain
    if not text:
        return None
    every = [_with_operators(text, mark) for mark in marks(text)]
    found = _marked(text, every)
    end = every[-1].end if every else 0
    said = find_phrase(text, end, beside_box=found is not None, truncated=truncated)
    if said is not None and not _is_approximation(said, text[end : said.end], found):
        found, end = said, said.end
    if found is not None:
        found = _with_correction(found, text[end:], truncated)
    elif not every and not truncated:
        found = unmarked_answer(text, fallback, had_courtesy)
    if found is None or any(len(part) > MAX_ANSWER for part in found.parts):
        return None
    return found


def _marked(text: str, every: list[Mark]) -> Commitment | None:
    """Return the answer in the last group of adjacent boxes or tags, or None."""
    before, run = chosen(text, every)
    parts = _unique(run)
    if not parts:
        return None
    earlier = tuple(part for part in _unique(before) if part not in parts)
    how = "tag" if text[run[-1].start] == "<" else "box"
    return Commitment(parts, earlier, how=how)


def _with_operators(text: str, mark: Mark) -> Mark:
    """Return an answer mark extended by an operator next to its box, such as a minus sign or a
    power."""
    if text[mark.start] == "<" or not mark.content.strip():
        return mark
    start, end, content = mark.start, mark.end, mark.content
    if sign := _SIGN.search(text[max(0, start - 4) : start]):
        start, content = start - len(sign[0]), f"-({content})" if "+" in content else f"-{content}"
    if tail := _TAIL.match(text[end : end + 60]):
        end, content = end + tail.end(), content + tail[0]
    return Mark(start, mark.inside, end, content)


def _unique(found: Iterable[Mark]) -> tuple[str, ...]:
    parts = dict.fromkeys(_inner(mark.content.strip()) for mark in found)
    return tuple(part for part in parts if part)


def _inner(content: str) -> str:
    """Return the answer inside a box or answer tag.

    If long content contains an answer phrase, the phrase's answer is returned.
    """
    if len(content) > MAX_SHORT or "\n" in content or pattern(*MATH_PHRASES).search(content):
        said = find_phrase(content, 0)
        if said is not None:
            return ", ".join(said.parts)
    return content if len(content) <= MAX_ANSWER else ""


def _with_correction(found: Commitment, rest: str, truncated: bool) -> Commitment | None:
    """Retract, replace or extend an answer according to the text after the answer, as in "5 (or
    maybe 6)"."""
    rest = rest[:200]
    if not rest.strip(" .$\n"):
        return found
    if says("in_a_case", found.phrase or found.parts[0]) and (other := opens("other_case", rest)):
        value = other["value"].strip(" $(\\")
        return found if value in found.parts else replace(found, parts=(*found.parts, value))
    thought = opens("beside", rest)
    if thought is None or not thought["line"]:
        if corrected := opens("corrected", rest):
            value = corrected["value"].strip(" $(*\\")
            cut_off = truncated and len(rest) < 200
            return Commitment((value,), how="correction") if value and not cut_off else None
        if opens("taken_back", rest):
            return None
    if thought is None or (
        re.match(r"\W*but\b", rest)
        and not re.search(r"\b(?:could|might|may|maybe|perhaps)\b", thought[0])
    ):
        return found
    value = next(filter(None, thought.groups()))
    return found if value in found.parts else Commitment((*found.parts, value), how=found.how)


def _is_approximation(said: Commitment, words: str, box: Commitment | None) -> bool:
    """Return whether a phrase only approximates the value in the box before it.

    An approximation such as "about 3.14" after a box does not overrule an exact value in the box.
    """
    if box is None or len(said.parts) != 1 or len(box.parts) != 1 or not says("about", words):
        return False
    about, exact = (read_number(each.strip("$ ")) for each in (said.parts[0], box.parts[0]))
    if about is None or exact is None:
        return about is not None
    return abs(about.value - exact.value) * 100 <= abs(exact.value)


def find_phrase(
    text: str, start: int, beside_box: bool = False, truncated: bool = False
) -> Commitment | None:
    """Return the answer in the last phrase such as "the answer is" after ``start``, or None.

    beside_box: whether a box precedes the phrase. Only an answer phrase with a number or a formula
        overrules a box.

    Consecutive answer phrases, and phrases joined by words such as "and", are one answer with
    several values. If a phrase corrects or negates the previous phrase, only the last phrase
    counts.
    """
    found = phrases(text, start, *MATH_PHRASES, beside_box=beside_box)
    is_on_the_way = False
    for later in found:
        said = _content_of(text, later, beside_box, truncated)
        weak = _is_weak_word(later[0])
        if said is None or (weak and is_on_the_way):
            continue
        if weak and _is_continued(said, text[said.end : said.end + MAX_REST]):
            # If the text computes further with the phrase's value, this value and earlier values
            # are intermediate.
            is_on_the_way = True
            continue
        values = said.parts
        for match in found:
            before = _content_of(text, match, beside_box, truncated)
            if before is None or not _are_joined(text, match, before, later):
                break
            values, later = (*before.parts, *values), match
        return replace(said, parts=tuple(dict.fromkeys(values)))
    return None


def _is_weak_word(phrase: str) -> bool:
    """Return whether a phrase such as "the result is" can mark an intermediate result."""
    return bool(says("of_a_step", phrase) or (says("weak", phrase) and "final" not in phrase))


def _is_continued(said: Commitment, rest: str) -> bool:
    """Return whether the text after a phrase computes further or concludes another value.

    rest: the text after the answer phrase.
    """
    last = value_of_last_sentence(rest) if re.search(r"\d", rest) else None
    if last is not None and canonical(last[0]) == canonical(said.parts[-1]):
        return False
    if on := opens("goes_on", rest):
        return not says("checks", rest[on.end() :].partition(".")[0])
    return last is not None and opens("concluding", last[1]) is not None


def _are_joined(text: str, first: re.Match[str], said: Commitment, later: re.Match[str]) -> bool:
    """Return whether two phrases are one answer, with only a word such as "and" between them."""
    # If two phrases overlap, the first phrase's content can contain the later phrase.
    if said.end > later.start():
        return bool(says("joins", text, first.end(), later.start()))
    if opens("lead", later[0]) or re.match(r"not\b", said.parts[0]):
        return False
    return bool(pattern("between").fullmatch(text, said.end, later.start()))


def _content_of(
    text: str, match: re.Match[str], beside_box: bool, truncated: bool
) -> Commitment | None:
    """Return the answer that the words after an answer phrase state, or None."""
    if (beside_box and _is_weak(text, match)) or says("given", match[0]):
        return None
    content, end = _content_after(text, match.end())
    if truncated and end >= len(text.rstrip()):
        # The completion was truncated before the phrase's content ended.
        return None
    content = _EDGES.sub("", pattern("approximate").sub("", _EDGES.sub("", content))).rstrip(".")
    content = _balanced(pattern("not_that").sub("", pattern("not_but").sub("", content)))
    if (worked := _WORKED.search(content)) and says("changed", content, 0, worked.start()):
        # In "the square root of 36, which is 6", the answer is 6.
        content = worked[1]
    if not content or says("false", content):
        return None
    reason = says("reason", content)
    if reason and reason.start() and not says("by_case", reason[0]):
        head = content[: reason.start()].strip()
        content = content if value_of(head) is None else head
    if beside_box and not (_LOOKS_LIKE_A_VALUE.search(content) and is_answer_alone(content)):
        return None
    if (value := only_value_of(content)) is not None:
        return Commitment((value,), phrase=content, how="phrase", end=end)
    whole = len(content) <= MAX_SENTENCE and not beside_box
    return Commitment((content,), how="phrase", end=end) if whole else None


def _balanced(content: str) -> str:
    """Remove a closing bracket or dollar sign whose opening partner precedes the phrase."""
    content = re.sub(r"\*{1,2}!+$", "", content)
    if content.count("**") == 1:
        content = content.replace("**", "")
    # Both kinds of brackets are counted together, because "[0, 1)" is balanced.
    if content.endswith((")", "]")) and len(_CLOSING.findall(content)) > len(
        _OPENING.findall(content)
    ):
        content = content[:-1].rstrip(". ")
    if content.endswith("$") and content.count("$") == 1 and content[:-1].strip():
        content = f"${content[:-1].strip()}$"
    return content


def _is_weak(text: str, match: re.Match[str]) -> bool:
    """Return whether an answer phrase is too vague to overrule a box."""
    opens_line = not text[: match.start()].rpartition("\n")[2].strip()
    return not opens_line and not re.search(r"####|final|\bis\b", match[0], re.IGNORECASE)


def _content_after(text: str, position: int) -> tuple[str, int]:
    """Return (content, end) of the sentence or displayed formula that begins at ``position``."""
    rest = text[position : position + 4 * MAX_ANSWER]
    stripped = rest.lstrip(" \t:*_")
    if stripped.startswith("\n"):
        stripped = stripped.lstrip()
    position += len(rest) - len(stripped)
    if display := re.match(DISPLAY, stripped, re.DOTALL):
        return display[0], position + display.end()
    sentence = _STOP.split(stripped.partition("\n")[0], maxsplit=1)[0]
    return sentence.strip().strip("*").rstrip(".。").strip(), position + len(sentence)
