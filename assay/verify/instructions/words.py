"""Count words like IFEval's public scorer, and extract visible text."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

_WORD = re.compile(r"\w+")
_BEYOND_ASCII = re.compile(r"[^\x00-\x7f]")
# Zero-width joiners change the shape of adjacent letters and belong to the word.
_JOINERS = "\u200c\u200d"
# Invisible fillers that Unicode classifies as letters.
_BLANK_LETTERS = "\u115f\u1160\u3164\uffa0"
# Boundaries at which NLTK's word_tokenize splits a text. The public scorer uses word_tokenize.
_CUT = re.compile(
    r"""[\s«»“”‘’„`"@#$%&;?!*\[\](){}<>\u2012-\u2015]|''|--|\.\.+|[:,](?!\d)"""
    r"""|(?<!\w)'(?!(?i:re|ve|ll|m|t|s|d|n)\b)(?=\w)"""
)
# Endings that word_tokenize splits off a word, such as 's and n't.
_CLITIC = re.compile(r"(.*[^'])('[sSmMdD]|'ll|'LL|'re|'RE|'ve|'VE|n't|N'T|')")
# Contractions that word_tokenize splits in two, such as "cannot".
_PAIR = re.compile(
    r"(?i)\b(can)(not)\b|\b(d)('ye)\b|\b(gim)(me)\b|\b(gon)(na)\b|\b(got)(ta)\b|\b(lem)(me)\b"
    r"|\b(more)('n)\b|\b(wan)(na)\Z"
)
_CONTENT = re.compile(r"[^\W_]")


def num_words(text: str) -> int:
    r"""Return the number of words: runs of letters with their marks, digits and underscores.

    The result is that of ``\w+`` in the ``regex`` package, as in NLTK 3.10, except that invisible
    characters alone are no word.
    """
    # In Python's standard module re, \w splits Indic words at vowel signs and matches "½".
    if not text.isascii():
        text = _BEYOND_ASCII.sub(lambda match: _stand_in(match[0]), text)
    return len(_WORD.findall(text))


@lru_cache(maxsize=4096)
def _stand_in(char: str) -> str:
    """Return the ASCII text that replaces a character for counting: a letter, "" or a space."""
    category = unicodedata.category(char)
    if category[0] == "M" or char in _JOINERS:
        return ""
    letter = category[0] == "L" and char not in _BLANK_LETTERS
    return "a" if letter or category in ("Nd", "Nl", "Pc") else " "


def num_capital_words(text: str) -> int:
    """Return the number of tokens with a capital letter and no lower-case letter.

    Tokens are those of NLTK's word_tokenize: ``I`` and ``WELL-KNOWN`` are one token each, and
    ``DON'T`` is two (``DO``, ``N'T``).
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
    """Return a text without HTML comments and zero-width characters."""
    if "<!--" in text:
        first, *comments = text.split("<!--")
        text = first + "".join(comment.partition("-->")[2] for comment in comments)
    if text.isascii():
        return text
    return "".join(char for char in text if unicodedata.category(char) != "Cf")


def has_content(text: str) -> bool:
    """Return whether a text contains a letter or a digit."""
    return _CONTENT.search(text) is not None
