"""Parse numbers in words: ``twenty-five``, ``two and a half``, ``three quarters``."""

from __future__ import annotations

import re
from fractions import Fraction

from assay.verify.answers.tables import read_table

_WORDS, SCALES, _PARTS = (
    {word: int(value) for word, _, value in (each.partition("=") for each in listed.split())}
    for listed in read_table("units.toml")["numbers"].values()
)
NUMBER_WORDS = {*_WORDS, *SCALES, *_PARTS} - {"half", "halve", "quarter"}


def read_words(text: str) -> Fraction | None:
    """Return the value of a number in English words, or None for any other text."""
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
                # "one two" is no number, but "twenty two" is a number.
                return None
            current = (current or 0) + _WORDS[word]
        # "dozen" needs no number before it, unlike "thousand".
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
    """Parse ``half``, ``one half``, ``three quarters``, ``two and a half``, ``two thirds``."""
    part = words[-1].removesuffix("s") if words else ""
    if part not in _PARTS:
        return None
    ahead = words[:-1]
    if not ahead:
        # The word "third" without a number is an ordinal, not a fraction.
        return Fraction(1, 2) if part == "half" else None
    if "and" in ahead:
        position = ahead.index("and")
        whole = _integer(ahead[:position])
        top = _integer([{"a": "one", "an": "one"}.get(w, w) for w in ahead[position + 1 :]])
        return None if whole is None or top is None else whole + top / _PARTS[part]
    top = Fraction(1) if ahead in (["a"], ["an"]) else _integer(ahead)
    return None if top is None else top / _PARTS[part]
