"""Which answer a text commits to: boxes, answer tags, phrases, or a text that only is an answer.

The last commitment counts. Boxes or tags that stand together are one commitment of several parts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

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
from assay.verify.answers.math_retract import is_disowned, second_thought
from assay.verify.answers.math_shown import in_symbols, shown_text
from assay.verify.answers.plain_numbers import read_number

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
    r"\b(?:so|thus|hence|therefore|then|wait|actually|no|nope|oops|sorry|mean|meant|scratch|correct\w*|mistake\w*|wrong|instead|rather|final\w*|which|gives?"
    r"|becomes?|simplif\w*|impl\w+|check\w*|verif\w*|because|since|now|after|next|using|from|is)\b|=",
    re.IGNORECASE,
)
_SPOKEN_BOX = re.compile(r"\\(?:text|mbox|textbf|mathrm)\s*\{([^{}]*)\}")
_SIGN = re.compile(r"(?:(?<=[=$(\s])|^)-(?:\\!|\\,)?$")
_TAIL = re.compile(
    r"\s?\\(?:cdot|times)\s?\d[^\s$.,;)]{0,20}|\^(?!\{?\s?\\(?:circ|text))(?:\{[^{}]{0,20}\}|\d)|\.\d{1,20}(?!\d)"
    r"|\s(?:hundred|thousand|million|billion|trillion|dozen|squared|cubed|factorial)\b",
    re.IGNORECASE,
)
_ABOUT = re.compile(r"\b(?:approximately|about|around|roughly|approx)\b|≈|\\approx", re.IGNORECASE)
_ARROW = re.compile(
    r"^(?:(?:=+>|-+>|→|⇒|⟹|∴|=|\\(?:Rightarrow|implies|therefore|to|rightarrow)\b)\s*)+"
)
_OBJECT = re.compile(
    r"\{\s*\"(?:final[_ ]?)?(?:answer|result)\"\s*:[^{}\[\]]{1,200}\}", re.IGNORECASE
)
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
    text = _SPACES.sub(lambda m: m[0][:2], shown_text(text[-MAX_SCANNED:]).strip())
    plain = _HOPE.sub("", text.rstrip()).strip()
    hoped, text = len(plain) < len(text.strip()), plain
    if not text:
        return None
    marked = boxes_of(text) if "oxed" in text or "box" in text else []
    marked += _tags(text) if ">" in text else []
    marked = [_with_operators(text, mark) for mark in sorted(marked)[-MAX_MARKS:]]
    found, end = _last_run(text, marked)
    phrase = find_phrase(text, end, only_values=found is not None, truncated=truncated)
    if phrase is not None and not _is_approximation(phrase[0], text[end : phrase[2]], found):
        values, words, end = phrase
        found = Commitment(values, phrase=words, how="phrase")
    if found is not None:
        found = _with_second_thought(found, text[end:], truncated)
    elif not marked and not truncated:
        found = _unmarked(text, fallback, hoped)
    if found is None or any(len(part) > MAX_ANSWER for part in found.parts):
        return None
    return replace(found, parts=tuple(in_symbols(part) for part in found.parts))


def _with_second_thought(found: Commitment, rest: str, truncated: bool) -> Commitment | None:
    """Add what follows at once as an alternative, 5 (or maybe 6), or put it in its place: 5. No, 6."""
    thought = second_thought(rest)
    if thought is None:
        return found
    value, replaces = thought
    if replaces:
        cut_off = truncated and len(rest) < 200
        return Commitment((value,), how="correction") if value and not cut_off else None
    if value is None or value in found.parts:
        return found
    return Commitment((*found.parts, value), how=found.how)


def _is_approximation(values: tuple[str, ...], said: str, box: Commitment | None) -> bool:
    """Whether a phrase only says about how much the box before it is, which it does not overrule."""
    if box is None or len(values) != 1 or len(box.parts) != 1 or not _ABOUT.search(said):
        return False
    about, exact = read_number(values[0].strip("$ ")), read_number(box.parts[0].strip("$ "))
    if about is None or exact is None:
        return about is not None
    return abs(about.value - exact.value) * 100 <= abs(exact.value)


def _with_operators(text: str, mark: tuple[int, int, str]) -> tuple[int, int, str]:
    """Return a mark with what makes its value another one outside it: a minus, a power, million."""
    start, end, content = mark
    if text[start] == "<" or not content.strip():
        return mark
    if sign := _SIGN.search(text[max(0, start - 4) : start]):
        start, content = start - len(sign[0]), f"-({content})" if "+" in content else f"-{content}"
    if tail := _TAIL.match(text[end : end + 60]):
        end, content = end + tail.end(), content + tail[0]
    return start, end, content


def _unmarked(text: str, fallback: Fallback, hoped: bool) -> Commitment | None:
    """Return the answer of a text in which nothing marks one."""
    if _CUT_OFF.search(text):
        return None
    if (quoted := _QUOTED.fullmatch(text)) is not None:
        text = next(filter(None, quoted.groups())).strip()
    if _OBJECT.fullmatch(text):
        return _of_object(text)
    text = _ARROW.sub("", text)
    said = CONNECTIVE.sub("", text)
    if said and is_answer_alone(said):
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


def _of_object(text: str) -> Commitment | None:
    """Return the value of a reply that is a JSON object with an answer and nothing else."""
    try:
        (value,) = json.loads(text).values()
    except ValueError:
        return None
    if isinstance(value, bool) or not isinstance(value, (str, int, float)) or not str(value):
        return None
    return Commitment((str(value).strip(),), how="object")


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
    filled = [mark for mark in marked if mark[2].strip() and not is_disowned(text, *mark[:2])]
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
