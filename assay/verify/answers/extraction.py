"""Which answer a text commits to: boxes, answer tags, phrases, or a text that only is an answer.

The last commitment counts. Boxes or tags that stand together are one commitment of several parts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from assay.verify.answers.math_phrases import (
    ANCHOR,
    CONNECTIVE,
    MAX_ANSWER,
    MAX_SHORT,
    find_phrase,
    is_answer_alone,
    numbers_of,
    of_final_emphasis,
    of_last_line,
    of_last_sentence,
    of_one_sentence,
)
from assay.verify.answers.math_policy import Fallback

MAX_SCANNED = 100_000  # characters at the end of a text in which an answer is looked for
MAX_NESTED = 8  # boxes inside one another
MAX_MARKS = 2000  # boxes and tags that are looked at, the last ones


@dataclass(frozen=True, slots=True)
class Commitment:
    """An answer as it stands in a text.

    parts: what was committed to; several where boxes stand together. earlier: the other, different
    boxes of the text; they count only with `parts`, as the parts of an expected answer of several.
    phrase: the whole phrase around a single part, where that may be the answer too. how: ``box``,
    ``tag``, ``phrase``, or the name of what found it.
    """

    parts: tuple[str, ...]
    earlier: tuple[str, ...] = ()
    phrase: str = ""
    how: str = ""


_SPECIAL = re.compile(r"<\|[^|<>]{1,40}\|>|</s>|<eos>|<end_of_turn>|<｜[^｜]{1,40}｜>")
_HOPE = re.compile(r"\bI hope (?:it|this) (?:is correct|helps)[.!]*$", re.IGNORECASE)
_BOX = re.compile(r"(?:\\|\x08|(?<![A-Za-z\\]))(?:d?boxed|oxed|fbox|framebox)\s*(\{|\\?[\w.]+)")
_SPACES = re.compile(r"[ \t]{3,}|\n{3,}")
_ANSWER_TAG = re.compile(r"<\s*(/?)\s*(?:final[_ ]?)?answer\s*>", re.IGNORECASE)
_JOINING = re.compile(
    r"^(?:[\s,;.&$]|\\[\[\]()]|\\q?quad|\\[,;:! n]|\\\\|\\text\s*\{\s*(?:and|or|,)\s*\}|\(?[a-z\d]{1,3}[).:]|[-*•]"
    r"|(?:and|or|alternatively|maybe|perhaps)\b|[A-Za-z]\w*(?:_\{?\w+\}?)?\s*(?:\(\w\))?\s*=)*$",
    re.IGNORECASE,
)
_OR = re.compile(
    r"\b(?:or|alternatively|maybe|perhaps|possibl\w*|possibilit\w*|either|could|might|guess\w*|option\w*|another|else"
    r"|otherwise|choice|candidate\w*|try)\b",
    re.IGNORECASE,
)
_DERIVING = re.compile(
    r"\b(?:so|thus|hence|therefore|then|wait|actually|no|sorry|correct\w*|mistake\w*|wrong|instead|rather|final\w*|which|gives?"
    r"|becomes?|simplif\w*|impl\w+|check\w*|verif\w*|because|since|now|after|next|using|from|is)\b|=",
    re.IGNORECASE,
)
_DISOWNED = re.compile(
    r"^[\s$*.)\]\\]{0,6}(?:is|was|would\s+be|seems|looks)\s+(?:\w+\s+)?(?:wrong|incorrect|not|false|a\s+mistake|impossible)\b",
    re.IGNORECASE,
)
_DENIED_BOX = re.compile(
    r"\b(?:not|isn't|cannot\s+be|can't\s+be|never|neither|nor)(?:\s+(?:equal(?:\s+to)?|be|simply|just))?\s*[\s$\\(\[*:]{0,6}$",
    re.IGNORECASE,
)
_NUMBER = r"(?:\\?\$)?[-+]?(?:\\(?:frac|dfrac|sqrt|pi)[^\s.,;]*|\d[\d.,/]*\d|\d)"
_SECOND_THOUGHT = re.compile(
    r"^[\s$.,;:!)*\]\\}(/-]{0,10}(?:(?:or|alternatively|maybe|perhaps|possibly|otherwise|else|but|and|also|if\s+not|if\s+that\s+is"
    r"\s+wrong)\b[\s,]*)+(?:(?:it|this|that|they|the\s+answer)\s*)?(?:(?:is|'s|are|could|might|may|can|would)\b\s*)?"
    r"(?:(?:also|even|maybe|perhaps|possibly|instead|well|be|as)\b\s*){0,4}[\s$(\\]{0,4}?"
    rf"(?P<value>{_NUMBER})"
    r"|^[\s$.,;:!)*\]\\}(/-]{0,10}(?:(?:actually|however|but|though|although|wait|hmm)\b[\s,]*){1,2}"
    rf"(?P<rival>{_NUMBER})\s+(?:is|are|could|might|may|would|works?)\b[^.\n]{{0,30}}?\b(?:possible|also|valid|too|well|be)\b"
    r"|^[\s$.,;:!)*\]\\}(/-]{0,10}(?:(?:actually|however|but|though|although|wait|hmm)\b[\s,]*){0,2}"
    r"(?:it|this|that|the\s+answer)\s+(?:could|might|may)\s+(?:also\s+|instead\s+)?be\s+[\s$(\\]{0,4}?"
    rf"(?P<other>{_NUMBER})",
    re.IGNORECASE,
)
_SPOKEN_BOX = re.compile(r"\\(?:text|mbox|textbf|mathrm)\s*\{([^{}]*)\}")
_NEXT_LINE = re.compile(rf"^[\s.*$]*\n[\s*$]*(?:or[\s*$]+)?({_NUMBER})[\s.*$]*(?:\n|$)")
_QUOTED = re.compile(
    r"```\w*\n([^`]{1,300})\n?```|>\s*([^>\n]{1,300})|[\"“']([^\"“”\n]{1,300})[\"”']"
)
_CUT_OFF = re.compile(
    r"(?:[=+/^({\\-]|(?<!\*)\*)\s*$|\\f?boxed\b|<answer>"
)  # inside a formula, a box or a tag


def find_answer(
    text: str, fallback: Fallback = "none", truncated: bool = False
) -> Commitment | None:
    """Return the last answer that a text commits to, or None.

    fallback: what may count where no box, tag or phrase marks an answer and the text is more than
    an answer. ``sentence``: the value of its last sentence, where that sentence has just one;
    ``last_number``: the last number; ``none``: nothing. truncated: the text was cut off, so that
    only a mark that is closed counts.
    """
    truncated = truncated and not text.endswith("\n")
    text = _SPACES.sub(lambda m: m[0][:2], text[-MAX_SCANNED:].strip())
    if "<" in text:
        text = _SPECIAL.split(text, maxsplit=1)[0] if _SPECIAL.search(text) else text
    plain = _HOPE.sub("", text.rstrip()).strip()
    hoped, text = len(plain) < len(text.strip()), plain
    if not text:
        return None
    marked = boxes_of(text) if "oxed" in text or "box" in text else []
    marked += _tags(text) if ">" in text else []
    found, end = _last_run(text, sorted(marked)[-MAX_MARKS:])
    phrase = find_phrase(text, end, only_values=found is not None, truncated=truncated)
    if phrase is not None:
        values, words = phrase
        if words:
            end = max(end, text.rfind(words[-40:]) + len(words[-40:]))
        found = Commitment(values, phrase=words, how="phrase")
    if found is not None:
        found = _with_second_thought(found, text[end:])
    elif not marked and not truncated:
        found = _unmarked(text, fallback, hoped)
    return found if found and all(len(part) <= MAX_ANSWER for part in found.parts) else None


def _with_second_thought(found: Commitment, rest: str) -> Commitment:
    """Add what follows at once as an alternative: 5 (or maybe 6)."""
    if (line := _NEXT_LINE.match(rest[:200])) and line[1] not in found.parts:
        return Commitment((*found.parts, line[1]), how=found.how)
    match = _SECOND_THOUGHT.match(rest[:200])
    if match is None or (
        re.match(r"^\W*but\b", rest)
        and not re.search(r"\b(?:could|might|may|maybe|perhaps)\b", match[0])
    ):
        return found
    value = match["value"] or match["rival"] or match["other"]
    return found if value in found.parts else Commitment((*found.parts, value), how=found.how)


def _unmarked(text: str, fallback: Fallback, hoped: bool) -> Commitment | None:
    """Return the answer of a text in which nothing marks one."""
    if _CUT_OFF.search(text):
        return None
    if (quoted := _QUOTED.fullmatch(text)) is not None:
        text = next(filter(None, quoted.groups()))
    said = CONNECTIVE.sub("", text)
    if is_answer_alone(said):
        return Commitment((said,), phrase=said if said != text else "", how="whole")
    for rule in (of_one_sentence, of_last_line, of_final_emphasis):
        if (value := rule(text)) is not None:
            return Commitment((value,), how=rule.__name__.removeprefix("of_"))
    if fallback == "sentence" or hoped:
        said = of_last_sentence(text)
        return Commitment((said[0],), phrase=said[1], how="sentence") if said else None
    if fallback == "last_number":
        numbers = numbers_of(text)
        return Commitment((numbers[-1][2],), how="last_number") if numbers else None
    return None


def _tags(text: str) -> list[tuple[int, int, str]]:
    """Return (start, end, content) of every closed pair of answer tags, innermost only."""
    found: list[tuple[int, int, str]] = []
    opened: tuple[int, int] | None = None
    for match in _ANSWER_TAG.finditer(text):
        if not match[1]:
            opened = match.span()
        elif opened is not None:
            found.append((opened[0], match.end(), text[opened[1] : match.start()]))
            opened = None
    return found


def boxes_of(text: str) -> list[tuple[int, int, str]]:
    """Return (start, end, content) of every closed box, outermost only."""
    found: list[tuple[int, int, str]] = []
    position = 0
    while match := _BOX.search(text, position):
        if match[1] != "{":
            if match[0].startswith(("\\", "\x08")):
                found.append((match.start(), match.end(), match[1]))
            position = match.end()
            continue
        depth, end = 1, match.end()
        while end < len(text) and depth:
            if text[end] == "\\":
                end += 2
                continue
            depth += (text[end] == "{") - (text[end] == "}")
            end += 1
        if depth or end > len(text):
            break  # cut off inside the box: nothing was committed
        found.append((match.start(), end, text[match.end() : end - 1]))
        position = end
    return found


def _last_run(text: str, marked: list[tuple[int, int, str]]) -> tuple[Commitment | None, int]:
    """Return the last boxes or tags that stand together, and where they end."""
    marked = [mark for n, mark in enumerate(marked) if n == 0 or mark[0] >= marked[n - 1][1]]
    filled = [mark for mark in marked if mark[2].strip() and not _is_disowned(text, mark)]
    if not filled:
        return None, marked[-1][1] if marked else 0
    run = [filled[-1]]
    for mark in reversed(filled[:-1]):
        if not _stand_together(text[mark[1] : run[0][0]]):
            break
        run.insert(0, mark)
    parts = _unique(_inner(content) for _, _, content in run)
    if not parts:
        return None, filled[-1][1]
    earlier = _unique(_inner(content) for _, _, content in filled[: -len(run)])
    earlier = tuple(part for part in earlier if part not in parts)
    how = "tag" if text[run[-1][0]] == "<" else "box"
    return Commitment(parts, earlier, how=how), filled[-1][1]


def _stand_together(between: str) -> bool:
    """Whether what stands between two marks makes them one commitment, or alternatives."""
    if len(between) <= 60 and _JOINING.match(between):
        return True
    if len(between) <= 120 and _OR.search(between):
        return True
    return len(between) <= 40 and not _DERIVING.search(between)


def _is_disowned(text: str, mark: tuple[int, int, str]) -> bool:
    """Whether a text takes a mark back at once: is wrong, or not before it."""
    before, after = text[max(0, mark[0] - 40) : mark[0]], text[mark[1] : mark[1] + 60]
    return bool(_DISOWNED.match(after) or _DENIED_BOX.search(before))


def _inner(content: str, depth: int = 0) -> str:
    """Return the answer inside a box or tag, which may hold a box or a phrase of its own."""
    content = content.strip()
    if (spoken := _SPOKEN_BOX.fullmatch(content)) and ANCHOR.search(spoken[1]):
        content = spoken[1].strip().rstrip(".")
    if "boxed" in content or "<answer>" in content:
        nested = boxes_of(content)
        if len(nested) > 1:
            run, _ = _last_run(content, nested)
            return ", ".join(run.parts) if run else content
        if depth >= MAX_NESTED:
            return ""
        return _inner(nested[-1][2], depth + 1) if nested else content
    if len(content) > MAX_SHORT or "\n" in content or ANCHOR.search(content):
        phrase = find_phrase(content, 0, only_values=False)
        if phrase is not None:
            return ", ".join(phrase[0])
    return content if len(content) <= MAX_ANSWER else ""


def _unique(parts: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part for part in parts if part))
