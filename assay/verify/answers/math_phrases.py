"""What sentences say: the value that a phrase such as "the answer is" is followed by, or a sentence is about."""

from __future__ import annotations

import re

from assay.verify.answers.latex_text import canonical
from assay.verify.answers.math_retract import BY_CASE, CHANGED, GIVEN, is_anothers, is_denied
from assay.verify.answers.number_words import NUMBER_WORDS
from assay.verify.answers.plain_numbers import read_number
from assay.verify.answers.units import read_unit

MAX_ANSWER = 1000
MAX_SHORT = 80
MAX_SENTENCE = 200
MAX_ENDING = 4000  # characters in which the last line or sentence of a reply is looked for
MAX_PHRASES = 100  # that are looked at, the last ones

_GAP = r"[\s*_]{0,8}"
_IS = (
    r"(?:(?:is|are|was|equals|becomes)\b|(?:should|would|will|must|has\sto|have\sto)\sbe\b|(?:comes|works|evaluates)"
    r"\s(?:out\s)?to(?:\sbe)?\b|turns\sout\sto\sbe\b|=|→)"
)
_OTHER = r"(?:\s{1,3}(?!(?:is|are|was)\b)[\w'$\\{}()^/,-]{1,40})"
_THEN = r"(?:\s{0,3}(?:therefore|thus|hence|then|simply|just|indeed|clearly|exactly|precisely|equal\sto|now)\b,?)?"
_ANCHORS = (
    # how a line that holds an answer begins; then how a sentence says it, in several languages
    r"####",
    rf"^\W{{0,6}}(?:(?:the\s|my\s)?(?:final\s|correct\s)?(?:answers?|result)|ans|final|A){_GAP}[:：=→]{_GAP}",
    rf"^\s*#{{1,6}}\s{_GAP}(?:final\s)?answer{_GAP}:?{_GAP}\n",
    rf"\bfinal\s{{1,3}}answer{_GAP}(?:[:：]|is\b[:：]?|\n){_GAP}",
    rf"\b(?:answers?|result|solutions?(?:\sset)?)\b{_OTHER}{{0,8}}?{_GAP}{_IS}{_THEN}{_GAP}[:：]?",
    rf"\bthat\s(?:solves?|satisf(?:y|ies))\b{_OTHER}{{0,6}}?{_GAP}{_IS}{_GAP}[:：]?",
    rf"\b(?:answer|ans){_GAP}[:：.]{_GAP}(?=[\s$\\(-]*\S)",
    r"\b(?:in\sconclusion|to\sconclude|en\sconclusi[oó]n|em\sconclus[aã]o|in\sconclusione|conclusion\s?:|abschlie[sß]+end)[,:]?",
    r"(?:结论|結論|结果|結果|Вывод|Заключение|निष्कर्ष|الخلاصة)[\s*]{0,6}(?:[:：]|是|为|為|は)",
    r"(?:ناتج|نتيجة|النتيجة)[^.\n]{0,80}?\s(?:هو|هي)\b",
    r"(?:答案|答え|答|正解|الجواب|الإجابة|정답|답|उत्तर)[\s*]{0,4}(?:是|为|為|は|هو|هي|은|는)?[\s*]{0,4}[:：]?",
    r"\b(?:r[ée]ponse|respuesta|antwort|risposta|resposta|ответ|odpowied[źz]|cevap|jawaban|svar|antwoord|r[ée]sultat"
    r"|resultado|ergebnis|risultato|результат|l[öo]sung|soluci[óo]n)"
    r"\s{0,3}(?:finale?|final)?\s{0,3}(?:est\b|es\b|ist\b|è|é|är\b|is\b|[:：—=-]){1,3}\s{0,3}[:：]?",
)
ANCHOR = re.compile(
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
_FOLLOWING = re.compile(r"(?:[ ]?[/°]?[ ]?[A-Za-z°]+(?:[²³]|\^\{?-?\d\}?)?){1,5}")
_LISTED = re.compile(r"[\s,;]*(?:and|or)?[\s,;]*")
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


_APPROXIMATE = re.compile(
    r"^(?:(?:approximately|about|around|roughly|exactly|precisely|simply|just|indeed|equal to|now|thus|hence|therefore"
    r"|clearly|given by)\b[\s,:]*)+",
    re.IGNORECASE,
)
_REASON = re.compile(
    r",?(?<!as well)\s+(?:because|since|which|where|given that|as (?!a\b|well\b)|due to|after|so that|when)\b.*$|\s+(?:because|since)\b.*$",
    re.IGNORECASE | re.DOTALL,
)
HEDGE = re.compile(
    r"\b(?:or|maybe|perhaps|possibly|alternatively|either|otherwise|unless|unsure|guess\w*|doubt\w*"
    r"|(?:could|might|may)(?:\s+also|\s+well|\s+even)?\s+(?:also\s+)?be|not\s+sure|no\s+idea|don'?t\s+know|cannot|can't"
    r"|unable|unclear|impossible|won't|not\s+going|refuse|ou|oder|oppure|или|либо|أو|या)\b|\?|或|也许|可能是|または|もしくは|또는",
    re.IGNORECASE,
)
_BOUND = re.compile(
    r"\b(?:(?:less|more|greater|fewer|smaller|larger|bigger|higher|lower|other|rather)\s+than|at\s+(?:least|most)"
    r"|between|under|over|above|below|up\s+to|no\s+more|except|excluding|besides|but|not|never|neither|isn't|cannot|wrong|incorrect)\s+"
    r"(?:\w+\s+){0,2}?[\\$({*-]{0,4}(?:\d|boxed|[dt]?frac|sqrt|pi\b)",
    re.IGNORECASE,
)
_NEGATED = re.compile(
    r"\b(?:not|never|rather\s+than|instead\s+of)\s+(?:\w+\s+)?[-$]?\d[\d.,]*|\bisn't\s+[-$]?\d[\d.,]*",
    re.IGNORECASE,
)
_SUPPOSED = re.compile(
    r"\b(?:if|suppose|supposing|assume|assuming|whether|imagine|pretend|don'?t\s+think|think\s+not|wrong|incorrect|false"
    r"|not\s+(?:the|an?|my|correct|right))\b",
    re.IGNORECASE,
)
_DISOWNED = re.compile(
    r"\b(?:is|are|was|were)\s+(?:\w+\s+)?(?:wrong|incorrect|false|not)\b", re.IGNORECASE
)
_EDGES = re.compile(r"^(?:[\s,\"“‘…]|\.{2,5}(?=\s))+|[\s\"”✅✔☑🎉👍\ufe0f]+$")
_THE_ANSWER = re.compile(
    r"\s+(?:is|are)\s+(?:the|my|our)\s+(?:final\s+|correct\s+)?answers?\W*$", re.IGNORECASE
)
CONNECTIVE = re.compile(
    r"^(?:(?:so|thus|hence|therefore|then|ok|okay|(?:I|we|you|one)\s+(?:get|got|have|obtain|find|found)"
    r"|(?:it|this|that|which)(?:\s+(?:is|equals|gives|makes)|'s))\b[\s,:]*)+",
    re.IGNORECASE,
)
_PLACE = re.compile(
    r"\b(?:step|problem|question|case|part|example|section|equation|line|page|figure|chapter|option|choice)\s+#?\d+\b",
    re.IGNORECASE,
)
_SPELLED = re.compile(
    rf"\b(?:{'|'.join(sorted(NUMBER_WORDS - {'one', 'first', 'second', 'dozen'}))})\b",
    re.IGNORECASE,
)
_EXCLAMATION = re.compile(r"(?<=[a-z]{2})!+$")  # n! is a factorial
_LOOKS_LIKE_A_VALUE = re.compile(r"^\W{0,4}\\?[$\d(\[.-]|[\\^]")
_BULLET = re.compile(r"^\s*(?:\d{1,2}[.)]|\(?[a-z]\)|[-*•])\s+")


_BETWEEN = re.compile(
    r"[\s.,;*$?]*(?:(?:and|or|also|maybe|perhaps|alternatively|otherwise|possibly)\b[\s,]*)?(?:the\s|another\s|an?\s)?"
    r"(?:final\s|possible\s|second\s|other\s)?",
    re.IGNORECASE,
)
_JOINS = re.compile(
    r"\b(?:and|or|also|maybe|perhaps|alternatively|otherwise|possibl[ey]|another|second|other|either|else|unless|if)\b",
    re.IGNORECASE,
)
_BUT = re.compile(r"^not\s+\S{1,60},?\s+but\s+(?:rather\s+|instead\s+)?(?=\S)", re.IGNORECASE)
_NOT_THAT = re.compile(r"(?<=[\w$})]),?\s\(?(?:and\s)?not\s[-$\\\w.,{}]{1,30}\)?$", re.IGNORECASE)
_WORKED = re.compile(
    r"(?:,\s(?:which\s(?:is|equals)|that\sis,?|i\.e\.,?|namely)|\s=)\s(-?\d[\d.,/]*)$"
)


def find_phrase(
    text: str, start: int, only_values: bool, truncated: bool = False
) -> tuple[tuple[str, ...], str, int] | None:
    """Return (values, phrase, end) of what the last phrase such as "the answer is" after ``start`` says.

    only_values: a phrase may overrule a box before it only by a number or a formula. Phrases that
    follow one another at once, or that and, or and the like join, are one commitment of several
    values; where one corrects or denies what is before it, the last one counts.
    """
    matches = list(ANCHOR.finditer(text, start))[-MAX_PHRASES:]
    matches = [match for match in matches if not is_denied(text, match.start(), only_values)]
    for index in range(len(matches) - 1, -1, -1):
        found = _said(text, matches[index], only_values, truncated)
        if found is None:
            continue
        value, phrase, end = found
        values = [value]
        opening = matches[index].start()
        for match in reversed(matches[:index]):
            before = _said(text, match, only_values, truncated)
            if before is None or not _are_joined(text, match, before[0], before[2], opening):
                break
            values.insert(0, before[0])
            opening = match.start()
        return tuple(dict.fromkeys(values)), phrase, end
    return None


def _are_joined(text: str, first: re.Match[str], said: str, end: int, opening: int) -> bool:
    """Whether two phrases are one commitment: nothing but and, or or the like stands between them."""
    if end > opening:  # the later phrase stands inside what the first one says
        return bool(_JOINS.search(text, first.end(), opening))
    return bool(_BETWEEN.fullmatch(text, end, opening)) and not re.match(r"not\b", said)


def _said(
    text: str, match: re.Match[str], only_values: bool, truncated: bool
) -> tuple[str, str, int] | None:
    """Return (value, phrase, end) of what follows a phrase, or None where it says nothing."""
    if (only_values and _is_weak(text, match)) or GIVEN.search(match[0]):
        return None
    content, end = _content_after(text, match.end())
    if truncated and end >= len(text.rstrip()):
        return None  # the rest of it was cut off
    content = _EDGES.sub("", _APPROXIMATE.sub("", _EDGES.sub("", content))).rstrip(".")
    content = _balanced(_NOT_THAT.sub("", _BUT.sub("", content)))
    if (worked := _WORKED.search(content)) and CHANGED.search(content[: worked.start()]):
        content = worked[1]  # the square root of 36, which is 6
    if _DISOWNED.search(content):
        return None
    if not content or (only_values and not _LOOKS_LIKE_A_VALUE.search(content)):
        return None
    reason = _REASON.search(content)
    if (
        reason
        and reason.start()
        and not BY_CASE.search(reason[0])
        and value_of(content[: reason.start()]) is not None
    ):
        content = content[: reason.start()].strip()
    if only_values and not is_answer_alone(content):
        return None
    value = value_of(content)
    if value is not None and not _names_another(content):
        return value, content, end
    if len(content) <= MAX_SENTENCE and not only_values:
        return content, "", end
    return None


def _names_another(content: str) -> bool:
    """Whether a phrase that begins with a number goes on to another one: 5 even though 6."""
    if not re.match(r"[-$\\(*]{0,3}\d", content) or "=" in content or is_answer_alone(content):
        return False
    return len({canonical(number) for _, _, number in numbers_of(content)}) > 1


def _balanced(content: str) -> str:
    """Drop a closing bracket or dollar at the end that was opened before the phrase."""
    content = re.sub(r"\*{1,2}!+$", "", content)
    if content.count("**") == 1:
        content = content.replace("**", "")
    if content.endswith(")") and content.count(")") > content.count("("):
        content = content[:-1].rstrip(". ")
    if content.endswith("$") and content.count("$") == 1 and content[:-1].strip():
        inner = content[:-1].strip()
        content = f"${inner}$"
    return content


def _is_weak(text: str, match: re.Match[str]) -> bool:
    """Whether a phrase is too vague to overrule a box: it opens no line and says neither final nor is."""
    opens_line = not text[: match.start()].rpartition("\n")[2].strip()
    return not opens_line and not re.search(r"####|final|\bis\b", match[0], re.IGNORECASE)


def _content_after(text: str, position: int) -> tuple[str, int]:
    """Return the sentence or the displayed formula that begins at ``position``, and where it ends."""
    rest = text[position : position + 4 * MAX_ANSWER]
    stripped = rest.lstrip(" \t:*_")
    if stripped.startswith("\n"):
        stripped = stripped.lstrip()
    position += len(rest) - len(stripped)
    display = re.match(_DISPLAY, stripped, re.DOTALL)
    if display:
        return display[0], position + display.end()
    line = stripped.partition("\n")[0]
    sentence = re.split(
        r"(?<!\b[A-Z])\.\s+(?=[A-Z\W]|\d+\s(?:would\sbe|is|was)\s(?:too|not|wrong|impossible)\b)|[。！？]|(?<=[a-z]{2})!(?=\s|$)|\s+####",
        line,
        maxsplit=1,
    )[0]
    return sentence.strip().strip("*").rstrip(".。").strip(), position + len(sentence)


def is_answer_alone(text: str) -> bool:
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
    sentence = _EXCLAMATION.sub("", sentence.strip().rstrip(".。").strip())
    if not sentence:
        return None
    if is_answer_alone(sentence):
        return sentence.strip("*").strip()
    if HEDGE.search(sentence) or _BOUND.search(sentence) or CHANGED.search(sentence):
        return None
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
    if equals and (after := numbers_of(equals)):
        return after[0][2]
    numbers = numbers_of(sentence)
    if not numbers:
        return None
    if len({canonical(text) for _, _, text in numbers}) == 1:
        return with_unit(sentence, *numbers[-1])
    if not re.search(r"\w", sentence[numbers[-1][1] :]):
        first = len(numbers) - 1
        while first and _LISTED.fullmatch(sentence[numbers[first - 1][1] : numbers[first][0]]):
            first -= 1
        return sentence[numbers[first][0] : numbers[-1][1]].strip()
    money = [text for _, _, text in numbers if re.search(r"[$€£¥₹%]", text)]
    return money[0] if len(money) == 1 else None


def numbers_of(text: str) -> list[tuple[int, int, str]]:
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


_SUM = re.compile(
    r"(?:^|\s)\d[\d.,]*(?:\s?[+*/×÷·-]\s?\d[\d.,]{0,30}){1,8}\s?=\s?(-?\d[\d,]*(?:\.\d+)?)[\s.!]*$"
)
_FIRST = re.compile(r"\W*(?:first|next|let|note|since|because|start)\b", re.IGNORECASE)
_ARITHMETIC = re.compile(r"[\d\s.]*\d(?:\s*[+*×·]\s*|\s+[-/]\s+)[\d\s.+*×·/-]*\d")


def of_one_sentence(text: str) -> str | None:
    """Return the one value of a reply that is a single short sentence, or None.

    A number that the sentence denies is none of its values; one that hedges has no value at all.
    """
    if "\n" in text or len(text) > MAX_SENTENCE or HEDGE.search(text) or _SUPPOSED.search(text):
        return None
    if is_anothers(text) or any(
        is_denied(text, m.start()) or GIVEN.search(m[0]) for m in ANCHOR.finditer(text)
    ):
        return None
    named = CONNECTIVE.sub("", _THE_ANSWER.sub("", text))
    if named != text and is_answer_alone(named) and re.search(r"\d", named):
        return named
    text = _PLACE.sub(" ", _NEGATED.sub(" ", text))
    if (
        CHANGED.search(text)
        or _BOUND.search(text)
        or len([s for s in _SENTENCE.split(_protect(text)) if s.strip()]) != 1
    ):
        return None
    if _SPELLED.search(text):
        return None
    if (sum_ := _SUM.search(text)) and text.count("=") == 1 and not _FIRST.match(text):
        return sum_[1]
    bold = _BOLD.findall(text)
    if len(bold) == 1 and read_number(bold[0]) is not None:
        text = text.replace("**", "")
    formulas = [m[0] for m in _MATH.finditer(text) if re.search(r"[\d\\=]", m[0])]
    rest = _MATH.sub(" ", text)
    values = list(dict.fromkeys(canonical(number) for _, _, number in numbers_of(rest)))
    if len(formulas) == 1 and not values:
        return formulas[0]
    if formulas or ((bare := _BARE.findall(rest)) and len(bare) > 1):
        return None
    if bare:
        return bare[0]
    if len(values) == 1 and "=" not in rest and _stands_alone(rest):
        return with_unit(rest, *numbers_of(rest)[-1])
    return None


def _stands_alone(text: str) -> bool:
    """Whether the numbers of a sentence are whole: no other digits, and no signs that go on with them."""
    start = 0
    for first, end, _ in numbers_of(text):
        if re.search(r"\d", text[start:first]) or re.search(
            r"[\\{}\[\]+*/^_&|~…(]\s*$|\.\.$", text[start:first]
        ):
            return False
        if re.match(r"\s*(?:\\|[+&|~^_{}\[\]*/…]|\.\.)", text[end:]):
            return False
        start = end
    return not re.search(r"\d", text[start:])


def with_unit(text: str, start: int, end: int, number: str) -> str:
    """Return a number with the unit of measurement that follows it; other words are no part of it."""
    following = _FOLLOWING.match(text, end)
    if following is None:
        return number
    words = following[0]
    while words:
        unit = read_unit(words.strip())
        if unit and (unit.factors or unit.scale) and not unit.nouns:
            return number + words
        shorter = re.match(r"(.*\S)[\s/]+\S+$", words, re.DOTALL)
        words = shorter[1] if shorter else ""
    return number


def _is_open(sentence: str) -> bool:
    """Whether a sentence leaves its value open: it hedges, bounds or only supposes it."""
    return any(each.search(sentence) for each in (HEDGE, _BOUND, _SUPPOSED))


def of_last_line(text: str) -> str | None:
    """Return the last line, or the displayed formula that ends a reply, where it is only an answer.

    A line of an enumeration is none: one with a bullet, or one of several that are values alike.
    """
    blocks = [line.strip() for line in _protect(text[-MAX_ENDING:]).split("\n") if line.strip()]
    if len(blocks) < 2:
        return None
    last, before = (block.replace("\0", "\n") for block in (blocks[-1], blocks[-2]))
    if len(before) < 40 and HEDGE.search(before):
        return None
    if read_number(last.rstrip(".")) is not None and re.fullmatch(r"[^=]{0,39}\d[^\w.]*", before):
        return None
    if _BULLET.match(last) or HEDGE.search(last) or not re.search(r"[\d\\]", last):
        return None
    if not _MATH.fullmatch(last) and not is_answer_alone(last):
        return None
    if _MATH.fullmatch(before) or (re.search(r"[\d\\]", before) and is_answer_alone(before)):
        names = [re.split(r"[=<>]", canonical(line), maxsplit=1) for line in (before, last)]
        if len(names[0]) == 2 and _ARITHMETIC.fullmatch(before.rpartition("=")[2].strip(" .$")):
            pass  # arithmetic that the last line carries out
        elif any(len(sides) == 1 for sides in names) or names[0][0].strip() == names[1][0].strip():
            return None
    return last.rstrip(".").strip("*").strip() if not _MATH.fullmatch(last) else last


def of_final_emphasis(text: str) -> str | None:
    """Return the bold value that the last sentence of a reply ends in, where it is the only one."""
    ending = _protect(text[-MAX_ENDING:])
    sentences = [s for s in _SENTENCE.split(ending) if re.search(r"\w", s)]
    if not sentences:
        return None
    sentence = sentences[-1].replace("\0", "\n")
    bold = list(_BOLD.finditer(sentence))
    if len(bold) != 1 or not re.search(r"\w", sentence[: bold[0].start()]):
        return None
    if re.search(r"\w", sentence[bold[0].end() :]) or len(sentence) > 2 * MAX_SENTENCE:
        return None
    if _is_open(sentence) or not is_answer_alone(bold[0][1]):
        return None
    return bold[0][1] if re.search(r"[\d\\]", bold[0][1]) else None


def of_last_sentence(text: str) -> tuple[str, str] | None:
    """Return (value, sentence) of the last sentence, or of the one before where the last names no number."""
    sentences = [
        s for s in _SENTENCE.split(_protect(text[-MAX_ENDING:])) if s and re.search(r"\w", s)
    ][-2:]
    for sentence in reversed(sentences):
        if any(is_denied(sentence, match.start()) for match in ANCHOR.finditer(sentence)):
            return None
        sentence = re.sub(r"^\s*(?:\d+[.)]|[-*•])\s+", "", sentence.replace("\0", "\n"))
        value = value_of(sentence)
        if value is not None and re.search(r"[\d\\$]", value):
            return value, sentence.strip().rstrip(".")
        if re.search(r"\d", sentence):
            return None
        if copula := _COPULA.search(sentence.rstrip(".!。* ")):
            return copula[1], ""
    return None


def _protect(text: str) -> str:
    """Keep displayed formulas in one line, so that a sentence may hold one."""
    return _MATH.sub(lambda m: m[0].replace("\n", "\0"), text)
