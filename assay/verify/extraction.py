"""Which answer a text commits to: boxes, answer tags, phrases, or a text that only is an answer.

The last commitment counts. Boxes or tags that stand together are one commitment of several parts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from assay.verify.latex_text import canonical
from assay.verify.plain_numbers import read_number

Fallback = Literal["sentence", "last_number", "none"]

MAX_SCANNED = 100_000  # characters at the end of a text in which an answer is looked for
MAX_ANSWER = 1000
MAX_SHORT = 80


@dataclass(frozen=True, slots=True)
class Commitment:
    """An answer as it stands in a text.

    parts: what was committed to; several where boxes stand together. earlier: the other, different
    boxes of the text; they count only with `parts`, as the parts of an expected answer of several.
    phrase: the whole phrase around a single part, where that may be the answer too.
    """

    parts: tuple[str, ...]
    earlier: tuple[str, ...] = ()
    phrase: str = ""


_SPECIAL = re.compile(r"<\|[^|<>]{1,40}\|>|</s>|<eos>|<end_of_turn>|<｜[^｜]{1,40}｜>")
_HOPE = re.compile(r"\bI hope (?:it|this) (?:is correct|helps)[.!]*$", re.IGNORECASE)
_BOX = re.compile(r"\\(?:boxed|fbox)\s*(\{|\\?[\w.]+)")
_SPACES = re.compile(r"[ \t]{3,}|\n{3,}")
_JOINING = re.compile(
    r"^(?:[\s,;.&$]|\\[\[\]()]|\\q?quad|\\[,;:! n]|\\\\|\\text\s*\{\s*(?:and|or|,)\s*\}"
    r"|(?:and|or|alternatively|maybe|perhaps)\b|[A-Za-z]\w*(?:_\{?\w+\}?)?\s*(?:\(\w\))?\s*=)*$",
    re.IGNORECASE,
)
_OR = re.compile(r"\b(?:or|alternatively|maybe|perhaps|possibly|either)\b", re.IGNORECASE)

_GAP = r"[\s*]{0,8}"
_ANCHORS = (
    # 0: how a line that holds an answer begins; then how a sentence says it, in several languages
    r"####",
    rf"^\W{{0,6}}(?:(?:the\s)?final\sanswer|answer|ans|final|A){_GAP}[:：]{_GAP}",
    rf"\bfinal\s{{1,3}}answer{_GAP}(?:[:：]|is\b[:：]?|\n){_GAP}",
    rf"\b(?:answer|result)\b(?:\s{{1,3}}(?!is\b)[\w'$\\{{}}()^/,-]{{1,40}}){{0,8}}?{_GAP}(?:\bis\b|=|\bequals\b){_GAP}[:：]?",
    rf"\banswer{_GAP}[:：]{_GAP}",
    r"(?:答案|答え|答|正解|الجواب|الإجابة|정답|답|उत्तर)\s{0,3}(?:是|为|為|は|هو|هي|은|는)?\s{0,3}[:：]?",
    r"\b(?:r[ée]ponse|respuesta|antwort|risposta|resposta|ответ|odpowied[źz]|cevap|jawaban|svar|antwoord)"
    r"\s{0,3}(?:finale?|final)?\s{0,3}(?:est\b|es\b|ist\b|è|é|är\b|is\b|[:：—=-]){1,3}\s{0,3}[:：]?",
)
_ANCHOR = re.compile(
    "|".join(f"(?:{pattern})" for pattern in _ANCHORS), re.IGNORECASE | re.MULTILINE
)

_DISPLAY = r"\$\$.{1,1000}?\$\$|\\\[.{1,1000}?\\\]"
_INLINE = r"(?<![\\\d])\$(?!\s*\d[\d.,]*\s+[a-z]{2})[^$\n]{1,1000}?(?<!\\)\$|\\\(.{1,1000}?\\\)"
_MATH = re.compile(f"{_DISPLAY}|{_INLINE}", re.DOTALL)
_JOINED_MATH = re.compile(
    rf"(?:{_DISPLAY}|{_INLINE})(?:\s*(?:,|and|or|, and)\s*(?:{_DISPLAY}|{_INLINE}))*", re.DOTALL
)
_BOLD = re.compile(r"\*\*(.+?)\*\*", re.DOTALL)
_BARE = re.compile(
    r"-?\\[dt]?frac\s*\{[^{}]*\}\s*\{[^{}]*\}|(?:(?<!\d)-?\d{1,20})?\\sqrt\s*\{[^{}]*\}"
)
_NUMBER = re.compile(
    r"(?<![A-Za-z0-9_.^{/\\])(?:[€£¥₹]|\\?\$)?\s?[-−]?(?:\\?\$)?"
    r"(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d{1,3}(?: \d{3})+(?!\d)|\d+[.,]\d+|\.\d+|\d+)"
    r"(?:\s*/\s*\d+|\s+\d+\s*[/⁄]\s*\d+|\s*⁄\s*\d+)?(?:[eE][+-]?\d+)?"
    r"(?:\s*(?:\\?%|percent\b)|\s?[€£¥₹$]|(?:m|cm|km|mm)[²³]|°)?"
)
_COPULA = re.compile(r"\b(?:is|are|was|were)\s+\**([A-Za-z][A-Za-z -]{0,60})$")
_LISTED = re.compile(r"[\s,;]*(?:and|or)?[\s,;]*")
_CUT_OFF = re.compile(
    r"(?:[=+/^({\\-]|(?<!\*)\*)\s*$|\\f?boxed\b|<answer>"
)  # inside a formula, a box or a tag
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=\D|\d+\.\s)|(?<=[。！？؟।])\s*|\n+")
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")
_SPOKEN = re.compile(
    r"\\(?:begin|end)\s*\{[^{}]*\}|\\(?:text|mbox|mathrm|textbf|mathbf|operatorname)\s*\{[^{}]*\}|\\[A-Za-z]+"
)
_MATH_WORDS = {
    "and",
    "or",
    "pi",
    "sqrt",
    "sin",
    "cos",
    "tan",
    "log",
    "ln",
    "exp",
    "infinity",
    "inf",
    "mod",
}


def find_answer(text: str, fallback: Fallback = "sentence") -> Commitment | None:
    """Return the last answer that a text commits to, or None.

    fallback: what may count where no box, tag or phrase marks an answer and the text is more than
    an answer. ``sentence``: the value of its last sentence, where that sentence has just one;
    ``last_number``: the last number; ``none``: nothing.
    """
    text = _SPACES.sub(lambda m: m[0][:2], text[-MAX_SCANNED:].strip())
    if "<" in text:
        text = _SPECIAL.split(text, maxsplit=1)[0] if _SPECIAL.search(text) else text
    text = _HOPE.sub("", text.rstrip()).strip()
    if not text:
        return None
    marked = _boxes(text) if "boxed" in text or "fbox" in text else []
    marked += _tags(text) if "</" in text else []
    found, end = _last_run(text, sorted(marked))
    found = _phrase(text, end, only_values=found is not None) or found
    if found is None and not marked:
        found = _unmarked(text, fallback)
    return found if found and all(len(part) <= MAX_ANSWER for part in found.parts) else None


def _unmarked(text: str, fallback: Fallback) -> Commitment | None:
    """Return the answer of a text in which nothing marks one."""
    if _CUT_OFF.search(text):
        return None
    if _is_answer_alone(text):
        return Commitment((text,))
    if fallback == "none":
        return None
    return _of_sentence(text) if fallback == "sentence" else _last_number(text)


def _tags(text: str) -> list[tuple[int, int, str]]:
    """Return (start, end, content) of every closed pair of answer tags, innermost only."""
    opening, closing = "<answer>", "</answer>"
    lowered = text.lower()
    if len(lowered) != len(text):  # a character whose lower case is longer
        lowered = text
    found: list[tuple[int, int, str]] = []
    position = 0
    while (end := lowered.find(closing, position)) >= 0:
        start = lowered.rfind(opening, position, end)
        if start >= 0:
            found.append((start, end + len(closing), text[start + len(opening) : end]))
        position = end + len(closing)
    return found


def _boxes(text: str) -> list[tuple[int, int, str]]:
    """Return (start, end, content) of every closed box, outermost only."""
    found: list[tuple[int, int, str]] = []
    position = 0
    while match := _BOX.search(text, position):
        if match[1] != "{":
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
    if not marked:
        return None, 0
    run = [marked[-1]]
    for mark in reversed(marked[:-1]):
        between = text[mark[1] : run[0][0]]
        near = len(between) <= 60 and _JOINING.match(between)
        if not near and not (len(between) <= 120 and _OR.search(between)):
            break
        run.insert(0, mark)
    parts = _unique(_inner(content) for _, _, content in run)
    parts = tuple(part for part in parts if part)
    if not parts:
        return None, marked[-1][1]
    earlier = _unique(_inner(content) for _, _, content in marked[: -len(run)])
    earlier = tuple(part for part in earlier if part not in parts)
    return Commitment(parts, earlier), marked[-1][1]


def _inner(content: str) -> str:
    """Return the answer inside a box or tag, which may hold a box or a phrase of its own."""
    content = content.strip()
    if "boxed" in content or "<answer>" in content:
        nested = _boxes(content)
        return _inner(nested[-1][2]) if nested else content
    if len(content) > MAX_SHORT or "\n" in content or _ANCHOR.search(content):
        phrase = _phrase(content, 0, only_values=False)
        if phrase is not None:
            return phrase.parts[0]
    return content if len(content) <= MAX_ANSWER else ""


def _unique(parts: object) -> tuple[str, ...]:
    return tuple(dict.fromkeys(parts))  # type: ignore[call-overload, arg-type]


def _phrase(text: str, start: int, only_values: bool) -> Commitment | None:
    """Return what the last phrase such as "the answer is" after ``start`` says.

    only_values: a phrase may overrule a box before it only by a number or a formula.
    """
    for match in reversed(list(_ANCHOR.finditer(text, start))):
        if only_values and _is_weak(text, match):
            continue
        content = _content_after(text, match.end())
        if not content or (only_values and not re.match(r"\W{0,4}\\?[$\d(\[.-]", content)):
            continue
        if only_values and not _is_answer_alone(content):
            continue
        value = value_of(content)
        if value is not None:
            return Commitment((value,), phrase=content)
        if len(content) <= MAX_SHORT and not only_values:
            return Commitment((content,))
    return None


def _is_weak(text: str, match: re.Match[str]) -> bool:
    """Whether a phrase is too vague to overrule a box: it opens no line and says neither final nor is."""
    opens_line = not text[: match.start()].rpartition("\n")[2].strip()
    return not opens_line and not re.search(r"####|final|\bis\b", match[0], re.IGNORECASE)


def _content_after(text: str, position: int) -> str:
    """Return the sentence or the displayed formula that begins at ``position``."""
    rest = text[position : position + 4 * MAX_ANSWER].lstrip(" \t:*")
    if rest.startswith("\n"):
        rest = rest.lstrip()
    display = re.match(_DISPLAY, rest, re.DOTALL)
    if display:
        return display[0]
    line = rest.partition("\n")[0]
    sentence = re.split(
        r"(?<!\b[A-Z])\.\s+(?=[A-Z\W])|[。！？]|(?<=\D)[!?](?=\s|$)|\s+####", line, maxsplit=1
    )[0]
    return sentence.strip().strip("*").rstrip(".。").strip()


def _is_answer_alone(text: str) -> bool:
    """Whether a text is only an answer: a value, a formula or a short phrase without prose around it."""
    text = text.strip().strip("*").strip()
    if "\n" in text or len(text) > 300:
        return False
    if read_number(text.rstrip(".")) is not None:
        return True
    words = [
        word for word in _WORD.findall(_SPOKEN.sub(" ", text)) if word.lower() not in _MATH_WORDS
    ]
    if not re.search(r"[\d=+^\\$]", text):
        return len(words) <= 4 and len(text) <= MAX_SHORT
    if (
        len(words) > 1
        or (words and len(text) > MAX_SHORT)
        or re.search(r"[^\W\d_a-zA-Z]{2,}", text)
    ):
        return False
    return not re.search(r"[?؟]|[A-Za-z][.!]\s", text)


def value_of(sentence: str) -> str | None:
    """Return the one value that a sentence ends in or is about, or None where that is not clear."""
    sentence = sentence.strip().rstrip(".。!").strip()
    if not sentence:
        return None
    if _is_answer_alone(sentence):
        return sentence.strip("*").strip()
    for pattern in (_BOLD, _JOINED_MATH):
        found = list(pattern.finditer(sentence))
        if found and re.search(r"\w", sentence[found[-1].end() :]):
            found = [match for match in found if re.search(r"[\d\\=]", match[0])]  # no mere names
        if not found:
            continue
        first, last = found[0], found[-1]
        if not re.search(r"\w", sentence[last.end() :]) or len(found) == 1:
            return (last[1] if pattern is _BOLD else last[0]).strip()
        if not re.search(r"\w", sentence[: first.start()]):
            return (first[1] if pattern is _BOLD else first[0]).strip()
    if bare := list(_BARE.finditer(sentence)):
        return bare[-1][0]
    return _number_of(sentence)


def _number_of(sentence: str) -> str | None:
    """Return the number a sentence is about: after its last equals sign, the only one, at its end, or money."""
    equals = sentence.rpartition("=")[2] if "=" in sentence else ""
    if equals and (after := _numbers(equals)):
        return after[0][2]
    numbers = _numbers(sentence)
    if not numbers:
        return None
    if len({canonical(text) for _, _, text in numbers}) == 1:
        return numbers[-1][2]
    if not re.search(r"\w", sentence[numbers[-1][1] :]):
        first = len(numbers) - 1
        while first and _LISTED.fullmatch(sentence[numbers[first - 1][1] : numbers[first][0]]):
            first -= 1
        return sentence[numbers[first][0] : numbers[-1][1]].strip()
    money = [text for _, _, text in numbers if re.search(r"[$€£¥₹%]", text)]
    return money[0] if len(money) == 1 else None


def _numbers(text: str) -> list[tuple[int, int, str]]:
    found: list[tuple[int, int, str]] = []
    for match in _NUMBER.finditer(text):
        number = match[0].strip()
        before = text[: match.start()].rstrip()
        if number[0] in "-−" and before and (before[-1].isalnum() or before[-1] in ")]}"):
            number = number[1:]  # a subtraction, not a sign
        following = text[match.end() : match.end() + 1]
        if following.isascii() and following.isalnum():
            continue
        found.append((match.start(), match.end(), number))
    return found


def _of_sentence(text: str) -> Commitment | None:
    """Return the value of the last sentence, or of the one before where the last names no number."""
    sentences = [s for s in _SENTENCE.split(_protect(text)) if s and re.search(r"\w", s)][-2:]
    for sentence in reversed(sentences):
        sentence = re.sub(r"^\s*(?:\d+[.)]|[-*•])\s+", "", sentence.replace("\0", "\n"))
        value = value_of(sentence)
        if value is not None and re.search(r"[\d\\$]", value):
            return Commitment((value,), phrase=sentence.strip().rstrip("."))
        if re.search(r"\d", sentence):
            return None
        if copula := _COPULA.search(sentence.rstrip(".!。* ")):
            return Commitment((copula[1],))
    return None


def _protect(text: str) -> str:
    """Keep displayed formulas in one line, so that a sentence may hold one."""
    return _MATH.sub(lambda m: m[0].replace("\n", "\0"), text)


def _last_number(text: str) -> Commitment | None:
    numbers = _numbers(text)
    return Commitment((numbers[-1][2],)) if numbers else None
