"""Count sentences like IFEval's public scorer.

The public scorer uses Punkt (Kiss and Strunk, "Unsupervised Multilingual Sentence Boundary
Detection", Computational Linguistics 32(4), 2006) with its English model. The module `sentences`
follows section 4 of Punkt's paper. sentence_words.toml has two lists of Punkt's English model:
abbreviations, and words that often start a sentence after an abbreviation.
"""

from __future__ import annotations

import re
import string
import tomllib
from pathlib import Path

# A mark such as "." ends a sentence only before one of these signs or before white space with text.
_INSIDE_NO_WORD = r"""[)"';}\]*:@({\[!?‘’“”«»]"""
_CANDIDATE = re.compile(rf"[.?!](?=(?P<mark>{_INSIDE_NO_WORD})|\s+(?P<following>\S+))")
_LAST_PART = re.compile(rf"['‘’“”«»?!]?(?:(?!{_INSIDE_NO_WORD}|--|\.\.)\S)*\Z")
_FIRST_PART = re.compile(rf"(?:(?!{_INSIDE_NO_WORD}|--|,(?!\w))\S)+")
_INSIDE = re.compile(rf"[?!](?=\.\.)|[.?!](?=(?P<mark>{_INSIDE_NO_WORD}))")
_CLOSERS = re.compile(r"""["')\]}‘’“”«»]+?(?:\s+|(?=--)|$)""", re.MULTILINE)
_NUMBER = re.compile(r"-?[.,]?\d[\d,.-]*")
_NAME = re.compile(r"(?:[A-Z]\S* |\A|[\n(\"])[A-Z]\Z")
_NO_WORD_STARTS_WITH = "#&`,-"
_PUNCTUATION = tuple(";:,.!?")
# Only this many characters of a word are examined, because longer words are no abbreviations.
_LONGEST = 200

_WORDS = {
    name: frozenset(words.split())
    for name, words in tomllib.loads(
        Path(__file__).with_name("sentence_words.toml").read_text(encoding="utf-8")
    ).items()
}
ABBREVIATIONS, STARTERS = _WORDS["abbreviations"], _WORDS["starters"]
# The word "I" is always capitalized, so its capital does not show the start of a sentence.
COMMON = (STARTERS | _WORDS["common"]) - {"i"}


def num_sentences(text: str) -> int:
    """Return the number of sentences in a text."""
    return len(sentences(text))


def sentences(text: str) -> list[str]:
    """Return the sentences of a text in order, without the white space between sentences.

    A closing quote or bracket after a sentence belongs to that sentence.
    """
    found: list[str] = []
    start = 0
    for end, next_start in [*_ends(text), (len(text.rstrip()), len(text))]:
        if found and (closers := _CLOSERS.match(text, start, end)):
            found[-1] += closers[0].rstrip()
            start = closers.end()
        if start < end:
            found.append(text[start:end])
        start = max(start, next_start)
    return found


def _ends(text: str) -> list[tuple[int, int]]:
    """Return (end of the sentence, start of the next sentence) for each sentence except the
    last."""
    candidates = list(_CANDIDATE.finditer(text))
    found: list[tuple[int, int]] = []
    for index, match in enumerate(candidates):
        start, end = match.span()
        if index + 1 < len(candidates):
            starts_word = not start or text[start - 1] in string.whitespace
            if not starts_word and not _has_space(text, end, candidates[index + 1].start()):
                # If a word contains several punctuation marks, only the last mark can end the
                # sentence.
                continue
        if match[0] != "." or _is_end(text[max(0, start - _LONGEST) : start], match):
            found.append((end, match.start("following") if match["following"] else end))
    return found


def _has_space(text: str, start: int, end: int) -> bool:
    return any(char in string.whitespace for char in text[start:end])


def _is_end(before: str, match: re.Match[str]) -> bool:
    """Return whether a period ends a sentence, in plain text or inside a quotation."""
    following = match["mark"] or match["following"][:_LONGEST]
    chunk = before.split()[-1] if before and not before[-1].isspace() else ""
    if _ends_inside(chunk + ".") or _ends_inside(following):
        return True
    return _ends_word(before, chunk, _first_part(following), match.string[match.end()])


def _ends_inside(chunk: str) -> bool:
    return any(
        match[0] != "." or _ends_word("", chunk[: match.start()], match["mark"], "")
        for match in _INSIDE.finditer(chunk)
    )


def _ends_word(before: str, chunk: str, following: str, gap: str) -> bool:
    """Return whether a period after ``chunk``, at the end of ``before``, ends a sentence."""
    part = _LAST_PART.search(chunk)
    word = part[0].lower().lstrip(_NO_WORD_STARTS_WITH) if part else ""
    lookup = following.lower().rstrip(".")
    # After an ellipsis, a new sentence begins only at a capitalized word.
    # that often starts sentences.
    if chunk.endswith("."):
        return following[0].isupper() and lookup in STARTERS
    is_initial = len(word) == 1 and word.isalpha()
    if word in ABBREVIATIONS or word.rpartition("-")[2] in ABBREVIATIONS:
        return not is_initial and following[0].isupper() and lookup in STARTERS
    if is_initial or _NUMBER.fullmatch(word):
        if following in _PUNCTUATION or following[0].islower():
            return False
        is_name = is_initial and following[0].isupper() and _is_name(before, lookup, gap)
        return not is_name
    return True


def _is_name(before: str, lookup: str, gap: str) -> bool:
    """Return whether an initial and the next word are a person's name, as in "J. Baker"."""
    if lookup in COMMON or gap != " ":
        return False
    is_short = len(lookup) == 1 or "." in lookup or lookup in ABBREVIATIONS
    return is_short or _NAME.search(before) is not None


def _first_part(following: str) -> str:
    found = _FIRST_PART.match(following)
    return found[0] if found else following[0]
