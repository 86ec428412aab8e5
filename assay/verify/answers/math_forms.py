"""Answers of special forms: times, dates, numbers in a base, ratios, fixed phrases, arithmetic still to be done.

Each function takes canonical texts and says whether the form is there at all (None: it is not).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from assay.verify.answers.latex_text import brackets_of, split_top, squeeze
from assay.verify.answers.number_words import NUMBER_WORDS
from assay.verify.answers.plain_numbers import read_number

Equal = Callable[[str, str], bool]

_PHRASES = (
    (r"(?:the set of )?(?:all |any )?(?:real numbers|reals|real number)", r"\mathbb{R}"),
    (r"(?:the set of )?(?:all )?integers", r"\mathbb{Z}"),
    (r"(?:the )?(?:empty set|null set)", r"\emptyset"),
    (r"(?:there (?:is|are) )?no (?:real )?solutions?(?: exists?)?", r"\emptyset"),
    (r"dne|does not exist|the limit does not exist", "does not exist"),
    (r"(?:negative|minus) (?:\\infty|infinity)", r"-\infty"),
    (r"(?:positive |plus |\+\s*)(?:\\infty|infinity)|infinity|infinite", r"\infty"),
)
_PHRASE_RULES = tuple((re.compile(pattern, re.IGNORECASE), text) for pattern, text in _PHRASES)
_OPEN_INTERVAL = re.compile(r"([\[\]])\s*([^\[\]]+,[^\[\]]+?)\s*([\[\]])")
_ANGLES = re.compile(r"^\\langle\s*(.*?)\s*\\rangle$")
_CHOOSE = re.compile(r"^(?:C|nCr)\s*\(\s*(\d+)\s*,\s*(\d+)\s*\)$")
_NESTED = re.compile(r"^\[\s*\[[^\[\]]*\](?:\s*,\s*\[[^\[\]]*\])*\s*\]$")


@lru_cache(maxsize=4096)
def plain_form(text: str) -> str:
    """Return a canonical answer in a form that the later stages read: brackets, phrases, matrices."""
    if len(text) > 2000:
        return text
    for _ in range(3):
        brackets, within = brackets_of(text)
        if brackets != "()" or "," in within or ";" in within or not within:
            break
        text = within
    if "\\" in text or "," in text or " or " in text:
        text = _rewritten(text)
    for pattern, plain in _PHRASE_RULES:
        if pattern.fullmatch(text):
            return plain
    if (text[:1] == "]" or text[-1:] == "[" or "[" in text) and _has_outward(text):
        text = _OPEN_INTERVAL.sub(_round, text)
    if match := _ANGLES.match(text):
        return f"({match[1]})"
    if match := _CHOOSE.match(text):
        return rf"\binom{{{match[1]}}}{{{match[2]}}}"
    if _NESTED.match(text):
        rows = re.findall(r"\[([^\[\]]*)\]", text)
        return r"\begin{pmatrix}" + r"\\".join(r.replace(",", "&") for r in rows) + r"\end{pmatrix}"
    return text


_BUILDER = re.compile(
    r"\\\{\s*([a-zA-Z])\s*(?:\\in \s*\\mathbb\{R\}\s*)?[|:]\s*((?:[^|:{}]|\{[^{}]*\})*?)\s*\\\}"
)
_THOUSANDS = re.compile(r"(-?\d{1,3}(?:,\d{3})+)(\s*(?:\\pi|\\sqrt|[a-z](?![a-z]))[^,;]*)")
_SMALL = re.compile(r"\\(begin|end)\s*\{smallmatrix\}")
_CASES = re.compile(r"\\begin\s*\{cases\}(.*)\\end\s*\{cases\}", re.DOTALL)
_ASSIGNED = re.compile(r"\s*([a-z])\s*=\s*([^=<>,]+)")


def _rewritten(text: str) -> str:
    """Write sets by condition, systems of values and grouped digits before a letter in a plainer way."""
    if (match := _BUILDER.fullmatch(text)) and re.search(r"[<>]|\\[lg]e ", match[2]):
        name = re.search(rf"(?<![a-zA-Z\\]){match[1]}(?![a-zA-Z])", match[2])
        return match[2] if name and "," not in match[2] else text
    if match := _THOUSANDS.fullmatch(text):
        return match[1].replace(",", "") + match[2]
    if match := _CASES.fullmatch(text):
        rows = [row.strip(" ,;&").replace("&", "") for row in match[1].split(r"\\") if row.strip()]
        return ", ".join(rows) if all(map(_ASSIGNED.fullmatch, rows)) else text
    if " or " in text and "=" in text:
        return _points_of(text)
    return _SMALL.sub(r"\\\1{pmatrix}", text)


def _points_of(text: str) -> str:
    """Return ``(5, 8), (8, 5)`` for ``x=5, y=8 or x=8, y=5``, and any other text as it is."""
    points: list[dict[str, str]] = []
    for piece in re.split(r"\s*[,;]?\s+or\s+", text):
        found = [_ASSIGNED.fullmatch(each) for each in re.split(r",|\band\b", piece)]
        names = {match[1]: match[2].strip() for match in found if match}
        if len(names) < 2 or len(names) != len(found):
            return text
        points.append(names)
    if len({tuple(sorted(point)) for point in points}) != 1:
        return text
    return ", ".join(f"({', '.join(point[name] for name in sorted(point))})" for point in points)


def _has_outward(text: str) -> bool:
    """Whether brackets are written outward somewhere, as in ]0,1[ or [0,1[."""
    matches = list(_OPEN_INTERVAL.finditer(text))
    return bool(matches) and any(m[1] == "]" or m[3] == "[" for m in matches)


def _round(match: re.Match[str]) -> str:
    return f"{'(' if match[1] == ']' else '['}{match[2]}{')' if match[3] == '[' else ']'}"


_VECTOR = re.compile(
    r"^\\begin\s*\{[pbvBV]?(?:small)?matrix\}(.*)\\end\s*\{[pbvBV]?(?:small)?matrix\}$", re.DOTALL
)


def vector(text: str) -> list[str]:
    """Return the entries of a column or a row of two or more, or nothing."""
    match = _VECTOR.match(text)
    if match is None:
        return []
    rows = [row.strip() for row in match[1].split(r"\\") if row.strip()]
    if len(rows) > 1 and not any("&" in row for row in rows):
        return rows
    return (
        [cell.strip() for cell in rows[0].split("&")] if len(rows) == 1 and "&" in rows[0] else []
    )


_CLOCK = re.compile(
    r"(\d{1,2}):([0-5]\d)(?::([0-5]\d))?\s*(?:([ap])\.?\s?m\.?)?(?:\s*o'clock)?", re.IGNORECASE
)
_HOUR = re.compile(r"(\d{1,2})\s*(?:([ap])\.?\s?m\.?|o'clock)", re.IGNORECASE)
_NOON = {"noon": (720, True), "midday": (720, True), "midnight": (0, True)}


def same_time(gold: str, found: str) -> bool | None:
    """Compare times of day, with or without am and pm; None where the expected text is none."""
    expected = _time(gold)
    if expected is None:
        return None
    answered = _time(found)
    if answered is None:
        return None
    (a, marked), (b, other) = expected, answered
    return (
        a == b
        if marked == other
        else a % 43200 == b % 43200 and (a == b or a >= 43200 or b >= 43200)
    )


def _time(text: str) -> tuple[int, bool] | None:
    """Return (seconds since midnight, whether that half of the day is named)."""
    lowered = text.lower().strip()
    if lowered in _NOON:
        return _NOON[lowered][0] * 60, True
    match = _CLOCK.fullmatch(lowered) or _HOUR.fullmatch(lowered)
    if match is None:
        return None
    if match.re is _HOUR:
        hour, minute, second, half = int(match[1]), 0, 0, match[2]
    else:
        hour, minute, second, half = int(match[1]), int(match[2]), int(match[3] or 0), match[4]
    if hour > (12 if half else 24):
        return None
    if half:
        hour = hour % 12 + (12 if half == "p" else 0)
    return (hour * 60 + minute) * 60 + second, bool(half) or hour > 12


_MONTHS = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
]
_MONTH = {name: n for n, name in enumerate(_MONTHS, 1)} | {
    name[:3]: n for n, name in enumerate(_MONTHS, 1)
}


def same_date(gold: str, found: str) -> bool | None:
    """Compare dates with a month's name; None where one of them is none."""
    expected, answered = _date(gold), _date(found)
    return None if expected is None or answered is None else expected == answered


def _date(text: str) -> tuple[int, int, int] | None:
    """Return (year, month, day); 0 for what is left out."""
    words = re.findall(r"[a-z]+|\d+", text.lower())
    if not 2 <= len(words) <= 6 or re.search(r"[^\w\s,.^{}]", text):
        return None
    months = [_MONTH[word] for word in words if word in _MONTH]
    numbers = [int(word) for word in words if word.isdigit() and len(word) <= 4]
    rest = [w for w in words if w not in _MONTH and not w.isdigit()]
    if (
        len(months) != 1
        or not 1 <= len(numbers) <= 2
        or set(rest) - {"st", "nd", "rd", "th", "of", "the"}
    ):
        return None
    years = [n for n in numbers if n > 31]
    days = [n for n in numbers if n <= 31]
    if len(years) > 1 or len(days) > 1:
        return None
    return (years or [0])[0], months[0], (days or [0])[0]


_BASED = re.compile(
    r"\(?(\d[0-9A-Za-z]{0,200}|[0-9A-F]{1,200}(?=\)?_\{?16))\)?_\{?(\d\d?|[a-z]{3,8})\}?"
)
_BASE_WORDS = dict(
    zip(
        [
            "two",
            "three",
            "four",
            "five",
            "six",
            "seven",
            "eight",
            "nine",
            "ten",
            "eleven",
            "twelve",
        ],
        map(str, range(2, 13)),
        strict=True,
    )
)


def _based(text: str) -> tuple[str, str] | None:
    """Return (digits, base) of ``204_5``, or None."""
    match = _BASED.fullmatch(squeeze(text))
    if match is None:
        return None
    base = _BASE_WORDS.get(match[2], match[2])
    return (match[1], base) if base.isdigit() else None


def same_based(gold: str, found: str) -> bool | None:
    """Compare numbers in a base; an answer that names none is in the expected one, or in base ten."""
    pair = _based(gold), _based(found)
    if pair == (None, None):
        return None
    (a, base_a), (b, base_b) = pair[0] or (squeeze(gold), ""), pair[1] or (squeeze(found), "")
    if a.lower() == b.lower() and base_a and base_b in (base_a, ""):
        return True
    if base_b and not base_a and a == b:
        return base_b == "10"
    try:
        return int(a, int(base_a or 10)) == int(b, int(base_b or 10))
    except ValueError:
        return False


def _ratio(text: str) -> list[str]:
    """Return the terms of ``7:32`` or ``7 to 32``, or nothing."""
    if "=" in text:
        return []
    text = re.sub(r"(?<=\d) to (?=\d)", ":", text)
    if ":" not in text:
        return []
    terms = split_top(text, ":")
    return terms if len(terms) > 1 and sum(read_number(t) is not None for t in terms) > 1 else []


def same_ratio(gold: str, found: str, equal: Equal) -> bool | None:
    """Compare ratios, up to a common factor; one of two terms is also its quotient."""
    a, b = _ratio(gold), _ratio(found)
    if not a and not b:
        return None
    if len(a) != len(b):
        single, terms = (found, a) if a else (gold, b)
        if len(terms) != 2 or ":" in single or not re.search(r"/|\\frac|\.", single):
            return False
        return equal(single, rf"\frac{{{terms[0]}}}{{{terms[1]}}}")
    numbers = [[read_number(term) for term in side] for side in (a, b)]
    if all(number is not None for side in numbers for number in side):
        x, y = ([n.value for n in side if n is not None] for side in numbers)
        pairs = zip(x, y, strict=True)
        return bool(x[0] and y[0]) and all(p * y[0] == q * x[0] for p, q in pairs)
    return all(map(equal, a, b))


_NUMERAL = r"(?:\d[\d,.]*|\\frac\{\d+\}\{\d+\}|\(-?\d[\d,.]*\))"
_ARITHMETIC = re.compile(
    rf"[-+(]*\s*{_NUMERAL}\)*(?:\s*(?:[-+*/x]|\\times|\\cdot|\\div)\s*[-(]*{_NUMERAL}\)*)+"
)
_UNDONE = re.compile(r"(?<=[\d)}])\s*(?:[-+*x]|\\times|\\cdot)\s*")


def is_undone(text: str) -> bool:
    """Whether a text is a sum, a difference or a product of numerals, which anybody could still work out."""
    return bool(_ARITHMETIC.fullmatch(text.strip()) and _UNDONE.search(text))


_CALL = re.compile(
    r"\\(?:(?P<angle>(?:arc)?(?:sin|cos|tan|cot|sec|csc)h?)|(?P<logarithm>log|ln|lg)"
    r"|(?P<other>gcd|lcm|max|min|sup|inf|det|arg|Re|Im|b?mod|lfloor|lceil))(?![a-zA-Z])"
    r"|(?P<rounded>[⌊⌈])|(?P<size>\|[^|<>=:]+\|)|(?P<determinant>vmatrix)"
)
_VARIABLE = re.compile(r"[a-zA-Z](?:_(?:\w|\{\w+\}))?")
_COMMAND = re.compile(r"\\[a-zA-Z]+")


def is_called(gold: str, text: str) -> bool:
    r"""Whether a text calls a function of numbers that the expected constant does without, as ``\gcd(12,18)``.

    Powers, roots, fractions, factorials and binomials write a number down; a function has a value
    that is still to be found. One of the same family in the expected text (``\ln 2``) shows that the
    question leaves it so.
    """
    head, remainder, _ = text.partition(r"\mod")
    if "=" in text or (remainder and squeeze(head) == squeeze(gold)):
        return False
    return bool(_families(text) - _families(gold))


def _families(text: str) -> set[str | None]:
    return {match.lastgroup for match in _CALL.finditer(text)}


def is_constant(text: str) -> bool:
    """Whether an expected answer has no letters but those of commands, e and i."""
    return not re.search("[a-df-hj-zA-Z]", _COMMAND.sub("", text))


_TIMES = re.compile(r"\s*(?:\\cdot|\\times|\*)(?![a-zA-Z])\s*")
_SUM = re.compile(r"(?<=[\w)}\]!°])\s*[-+](?!\s*$)")
_PRODUCT = re.compile(r"(?<=[\d)}])\*(?=[\d(\\])")
_WRITTEN = re.compile(r"\^|!|binom|choose")  # how large numbers are written: 3 * 2^{10}


def is_unsummed(gold: str, text: str, numeral: bool) -> bool:
    """Whether a text has more sums or quotients to work out than the expected constant.

    numeral: the constant is one number as digits, so that a product is to be worked out, too. A
    complex number may be written as the sum of its parts.
    """
    gold, text = (_TIMES.sub("*", each) for each in (gold, text))
    most = max(len(_SUM.findall(gold)), int(bool(re.search(r"(?<![a-zA-Z\\])i(?![a-zA-Z])", text))))
    if len(_SUM.findall(text)) > most or (r"\div" in text and r"\div" not in gold):
        return True
    return numeral and bool(_PRODUCT.search(text)) and not _WRITTEN.search(text)


_COMPARED = re.compile(r"\\(?:le|ge|ne)(?![a-zA-Z])|[<>]")


def is_unsolved(text: str) -> bool:
    """Whether an inequality in one variable does not have it alone on a side, as in ``x - 2 > 0``."""
    for piece in re.split(r"\s(?:or|and)\s|,|\\cup|\\cap", text):
        sides = [_COMMAND.sub(" ", side) for side in _COMPARED.split(piece)]
        named = [set(_VARIABLE.findall(side)) for side in sides]
        names = set[str]().union(*named)
        if len(sides) < 2 or len(names) != 1:
            continue
        holding = [side.strip() for side, found in zip(sides, named, strict=True) if found]
        if len(holding) > 1 or holding[0] not in names:
            return True
    return False


_FUNCTION_WORDS = {
    "sin",
    "cos",
    "tan",
    "log",
    "exp",
    "sqrt",
    "pi",
    "max",
    "min",
    "mod",
    "gcd",
    "lcm",
}
_SHORT_WORDS = {"yes", "no", "odd", "up", "he", "she", "it", "am", "pm"}


def is_words(text: str) -> bool:
    """Whether an answer is language and no mathematics: Even, Monday, African wild dog."""
    if re.search(r"[\d\\^_={}<>+*/|]", text):
        return False
    words = re.findall(r"[^\W\d_]+", text)
    if any(word.lower() in _FUNCTION_WORDS for word in words):
        return False
    if len(words) == 1 and (words[0].lower() in _SHORT_WORDS or _is_name(words[0])):
        return True
    return max(map(len, words), default=0) >= 4


def _is_name(word: str) -> bool:
    return len(word) == 3 and word.istitle()


_LEADING = ("a", "an", "the", "on", "in", "at", "it", "is", "its")


def words_of(text: str, case: bool = False) -> str:
    """Return the words alone, without an article or a preposition before them."""
    text = re.sub(r"\\(?![a-zA-Z])|[{}]", "", text)
    words = re.findall(r"[^\W_]+", text if case else text.casefold())
    while len(words) > 1 and words[0].lower() in _LEADING:
        del words[0]
    return "".join(words)


_QUALIFIERS = re.compile(
    r"(?<![a-zA-Z\\])(?:not?|non|never|less|more|greater|fewer|than|least|most|anything|but|except|without|unless"
    r"|half|twice|thrice|double|triple|square root|cube root|root|opposite|reciprocal|inverse|negation|negative"
    r"|minus|plus|times|over|under|above|below|beyond|outside|divided|multiplied|squared|cubed|factorial|etc|others?"
    r"|error|percent|roughly|almost|nearly|complement)(?![a-zA-Z])|(?<=[\d})])\s*(?:and|or|to) +(?=[-\d\\])",
    re.IGNORECASE,
)
_JOINED = re.compile(r" (?:and|or|to) +", re.IGNORECASE)


def is_qualified(text: str) -> bool:
    """Whether words make something else of a value: a negation, an operation, a comparison, an "and so on"."""
    return any(not _JOINED.fullmatch(f" {m[0].strip()} ") for m in _QUALIFIERS.finditer(text))


def is_altered(text: str) -> bool:
    """Whether a text in which a value is looked for denies it, goes on after it, or marks it."""
    return bool(_QUALIFIERS.search(text) or _CONTINUED.search(text))


_CONTINUED = re.compile(r"\\[lc]?dots|\.\.\.|[\d}]'|\d_|[₀-₉]|degrees?\s*$|\\h?phantom")


def is_number_word(text: str) -> bool:
    """Whether a text begins with a number in words."""
    first = re.match(r"[A-Za-z]+", text)
    return bool(first) and first[0].lower() in NUMBER_WORDS


def inside(text: str) -> str:
    """Return what stands in the brackets that enclose a text, or the text."""
    return brackets_of(text)[1]
