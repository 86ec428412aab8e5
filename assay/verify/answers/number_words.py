"""Numbers in words: ``twenty-five``, ``two and a half``, ``three quarters``."""

from __future__ import annotations

import re
from fractions import Fraction

_NUMERALS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen"
    " sixteen seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety"
)
_WORDS = dict(zip(_NUMERALS.split(), [*range(20), *range(20, 100, 10)], strict=True))
SCALES = {
    "hundred": 10**2,
    "thousand": 10**3,
    "million": 10**6,
    "billion": 10**9,
    "trillion": 10**12,
    "lakh": 10**5,
    "crore": 10**7,
    "dozen": 12,
}
_ORDINALS = (
    "zeroth first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth"
    " thirteenth fourteenth fifteenth sixteenth seventeenth eighteenth nineteenth twentieth"
)
_ORDINAL = dict(zip(_ORDINALS.split(), range(21), strict=True)) | {
    f"{tens}ieth": value
    for tens, value in (
        ("thirt", 30),
        ("fort", 40),
        ("fift", 50),
        ("sixt", 60),
        ("sevent", 70),
        ("eight", 80),
    )
}
_PARTS = {"half": 2, "halve": 2, "quarter": 4} | {
    word: value for word, value in _ORDINAL.items() if value > 2
}
NUMBER_WORDS = {*_WORDS, *SCALES, *_ORDINAL}


def read_words(text: str) -> Fraction | None:
    """Return the number that words are, or None."""
    words = re.findall(r"[a-z]+", text.lower())
    if not words or len(words) > 12 or re.search(r"[^A-Za-z\s-]", text):
        return None
    negative = words[0] in ("minus", "negative")
    words = words[negative:]
    value = _fraction(words)
    if value is None:
        value = _integer(words)
    return None if value is None else (-value if negative else value)


def _integer(words: list[str]) -> Fraction | None:
    total, current = 0, None
    for word in words:
        if word in _WORDS:
            if (
                current is not None
                and current % 100
                and not (current % 100 >= 20 > 9 >= _WORDS[word])
            ):
                return None  # "one two" is no number
            current = (current or 0) + _WORDS[word]
        elif word in SCALES and (current is not None or word == "dozen"):
            current = (current or 1) * SCALES[word]
            if SCALES[word] > 100:
                total, current = total + current, 0
        elif word == "a" and current is None and len(words) > 1:
            current = 1
        elif word != "and" or current is None:
            return None
    return None if current is None else Fraction(total + current)


def _fraction(words: list[str]) -> Fraction | None:
    """Read ``half``, ``one half``, ``three quarters``, ``two and a half``, ``two thirds``."""
    part = words[-1].removesuffix("s") if words else ""
    if part not in _PARTS:
        return None
    ahead = words[:-1]
    if not ahead:
        return Fraction(1, 2) if part == "half" else None  # a third alone is an ordinal
    if "and" in ahead:
        position = ahead.index("and")
        whole = _integer(ahead[:position])
        top = _integer([{"a": "one", "an": "one"}.get(w, w) for w in ahead[position + 1 :]])
        return None if whole is None or top is None else whole + top / _PARTS[part]
    top = Fraction(1) if ahead in (["a"], ["an"]) else _integer(ahead)
    return None if top is None else top / _PARTS[part]
