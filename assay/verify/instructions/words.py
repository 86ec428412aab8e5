"""Count words like the public scorer of instructions, and extract visible text."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

_WORD = re.compile(r"\w+")
_BEYOND_ASCII = re.compile(r"[^\x00-\x7f]")
# These characters shape adjacent letters.
_JOINERS = "\u200c\u200d"
# Unicode classifies these as letters, but they are invisible.
_BLANK_LETTERS = "\u115f\u1160\u3164\uffa0"
# Word boundaries of NLTK's word_tokenize, which the public scorer uses. Boundaries contain no
# letters.
_CUT = re.compile(
    r"""[\s«»“”‘’„`"@#$%&;?!*\[\](){}<>\u2012-\u2015]|''|--|\.\.+|[:,](?!\d)"""
    r"""|(?<!\w)'(?!(?i:re|ve|ll|m|t|s|d|n)\b)(?=\w)"""
)
# Endings that the tokenizer splits off a word, and split points of contractions.
_CLITIC = re.compile(r"(.*[^'])('[sSmMdD]|'ll|'LL|'re|'RE|'ve|'VE|n't|N'T|')")
_PAIR = re.compile(
    r"(?i)\b(can)(not)\b|\b(d)('ye)\b|\b(gim)(me)\b|\b(gon)(na)\b|\b(got)(ta)\b|\b(lem)(me)\b"
    r"|\b(more)('n)\b|\b(wan)(na)\Z"
)
_CONTENT = re.compile(r"[^\W_]")


def num_words(text: str) -> int:
    r"""Return the number of runs of letters with their marks, decimal digits and underscores.

    This is ``\w+`` of the ``regex`` package, as in NLTK 3.10, except that invisible characters
    alone are not a word. (``\w`` of the standard library, as in older NLTK, splits Indic words at
    vowel signs and counts ``½`` as a word.)
    """
    if not text.isascii():
        text = _BEYOND_ASCII.sub(lambda match: _stand_in(match[0]), text)
    return len(_WORD.findall(text))


@lru_cache(maxsize=4096)
def _stand_in(char: str) -> str:
    """Return a character's replacement for word counting: a letter, nothing, or a gap."""
    category = unicodedata.category(char)
    if category[0] == "M" or char in _JOINERS:
        return ""
    letter = category[0] == "L" and char not in _BLANK_LETTERS
    return "a" if letter or category in ("Nd", "Nl", "Pc") else " "


def num_capital_words(text: str) -> int:
    """Return the number of tokens with a capital letter and no small letter.

    ``I`` is one, ``DON'T`` is two (``DO``, ``N'T``), ``WELL-KNOWN`` is one.
    """
    return sum(_num_capital_tokens(piece) for piece in _CUT.split(text) if piece)


def _num_capital_tokens(piece: str) -> int:
    if "'" not in piece and len(piece) < 5:
        return int(piece.isupper())
    clitic = ""
    if found := _CLITIC.fullmatch(piece.removesuffix(".")):
        piece, clitic = found[1], found[2]
    parts = _PAIR.sub(lambda match: " ".join(part for part in match.groups() if part), piece)
    return sum(part.isupper() for part in (*parts.split(" "), clitic))


def visible(text: str) -> str:
    """Return the visible text, without HTML comments and zero-width characters."""
    if "<!--" in text:
        first, *comments = text.split("<!--")
        text = first + "".join(comment.partition("-->")[2] for comment in comments)
    if text.isascii():
        return text
    return "".join(char for char in text if unicodedata.category(char) != "Cf")


def has_content(text: str) -> bool:
    """Return whether a text contains a letter or a digit."""
    return _CONTENT.search(text) is not None
