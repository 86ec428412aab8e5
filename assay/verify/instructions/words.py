"""Words as the public scorer of instructions counts them, and what of a text is visible."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

_WORD = re.compile(r"\w+")
_BEYOND_ASCII = re.compile(r"[^\x00-\x7f]")
_JOINERS = "\u200c\u200d"  # they shape the letters between which they stand
_BLANK_LETTERS = "\u115f\u1160\u3164\uffa0"  # Unicode calls these letters; nobody sees them
# Where its tokenizer, NLTK's word_tokenize, cuts a word: the cut marks hold no letters.
_CUT = re.compile(
    r"""[\s«»“”‘’„`"@#$%&;?!*\[\](){}<>\u2012-\u2015]|''|--|\.\.+|[:,](?!\d)"""
    r"""|(?<!\w)'(?!(?i:re|ve|ll|m|t|s|d|n)\b)(?=\w)"""
)
# What it splits off a word's end, and where it splits a contraction in two.
_CLITIC = re.compile(r"(.*[^'])('[sSmMdD]|'ll|'LL|'re|'RE|'ve|'VE|n't|N'T|')")
_PAIR = re.compile(
    r"(?i)\b(can)(not)\b|\b(d)('ye)\b|\b(gim)(me)\b|\b(gon)(na)\b|\b(got)(ta)\b|\b(lem)(me)\b"
    r"|\b(more)('n)\b|\b(wan)(na)\Z"
)
_CONTENT = re.compile(r"[^\W_]")


def num_words(text: str) -> int:
    """Return the number of runs of letters with their marks, decimal digits and underscores.

    That is ``\\w+`` of the ``regex`` package, which NLTK 3.10 uses, but that nothing invisible is a
    word by itself. (``\\w`` of the standard library, which NLTK used before, cuts Indic words at
    their vowel signs and takes ``½`` for a word.)
    """
    if not text.isascii():
        text = _BEYOND_ASCII.sub(lambda match: _stand_in(match[0]), text)
    return len(_WORD.findall(text))


@lru_cache(maxsize=4096)
def _stand_in(char: str) -> str:
    """Return what a character is to the counting of words: part of one, nothing, or a gap."""
    category = unicodedata.category(char)
    if category[0] == "M" or char in _JOINERS:
        return ""
    letter = category[0] == "L" and char not in _BLANK_LETTERS
    return "a" if letter or category in ("Nd", "Nl", "Pc") else " "


def num_capital_words(text: str) -> int:
    """Return the number of tokens without a small letter and with a capital one.

    ``I`` is one, ``DON'T`` are two (``DO``, ``N'T``), ``WELL-KNOWN`` is one.
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
    """Return a text as a reader sees it: without HTML comments and characters of no width."""
    if "<!--" in text:
        first, *comments = text.split("<!--")
        text = first + "".join(comment.partition("-->")[2] for comment in comments)
    if text.isascii():
        return text
    return "".join(char for char in text if unicodedata.category(char) != "Cf")


def has_content(text: str) -> bool:
    """Whether a text holds a letter or a digit."""
    return _CONTENT.search(text) is not None
