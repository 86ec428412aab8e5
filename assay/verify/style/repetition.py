"""Verifier ``repetition``: the share of a completion that repeats recent text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate, groupby
from operator import and_
from typing import Any

from assay.host.fields import Field, whole
from assay.types import Completion, Problem
from assay.verify.base import Part, Verifier

# Units per n-gram: words, or characters (`NGRAM_CJK`) if most units are single characters.
NGRAM = 4
NGRAM_CJK = 8
# Allowed share of repeated n-grams.
# The largest share of repetition measured in honest text is 0.38.
ALLOWED = 0.4
# Additional allowance if all numbers count as equal, for worked examples that differ in numbers.
ALLOWED_FOLDED = 0.3
ALLOWED_SENTENCES = 0.25
# An n-gram that occurs again after more units than this does not count as repeated.
WINDOW = 2048
# Units per block.
# Each block has its own allowance, so that a long honest text before a loop cannot hide the loop.
BLOCK = 256
# A text with fewer units has too few n-grams to measure their repetition.
LEAST = 24
# In a text with fewer units, even repeated sentences are no evidence of a loop.
LEAST_SENTENCES = 12
# A run of one number that is at least this long counts, although n-grams of numbers do not.
LONG_RUN = 32

_CJK = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\uac00-\ud7af"
# Long words and rows of symbols are split, so that "aaaa..." and "----..." are loops too.
_UNIT = re.compile(rf"[{_CJK}]|[^\W\d_{_CJK}]{{1,16}}|\d{{1,16}}|[^\w\s]{{6,16}}")
_SENTENCE_END = re.compile(r"[.!?]+(?=\s)|[。！？]|\n+")
_INVISIBLE = dict.fromkeys([0xAD, 0x200B, 0x200C, 0x200D, 0x2060, 0xFEFF])


def _is_share(value: Any) -> bool:
    return type(value) in (int, float) and 0.0 <= value < 1.0


FIELDS = (
    Field("allowed", "a share of repeated n-grams", default=ALLOWED, check=_is_share),
    Field(
        "ngram",
        f"a whole number from 2 to 64; null: {NGRAM} words, or {NGRAM_CJK} characters of a text "
        "without spaces",
        check=whole(2, 64),
    ),
    Field("tolerance", "a share: below it the text passes", default=0.1, check=_is_share),
)


def judge_repetition(problem: Problem, completion: Completion) -> Part:
    """Return minus the share of repetition beyond that of honest text, in [-1, 0].

    Reads ``ngram``, ``allowed`` and ``tolerance`` from the spec. The result uses the largest of
    three shares:

    - n-grams that occur again within `WINDOW` words;
    - the same n-grams if all numbers are equal, which finds loops that count;
    - words in sentences that occur at least three times.

    Case, punctuation, white space and invisible characters are ignored. Each share is 0 up to its
    allowance and then rises linearly to 1. Shares of repeated n-grams are computed in blocks of
    `BLOCK` words. A text of fewer than `LEAST` words is judged only by the share of repeated
    sentences. A text of fewer than `LEAST_SENTENCES` words passes.
    """
    allowed, size, tolerance = (field.read(problem) for field in FIELDS)
    text = completion.text.translate(_INVISIBLE).casefold()
    units = _UNIT.findall(text)
    if len(units) < LEAST_SENTENCES:
        return Part(0.0, score=1.0, passed=True, detail=f"{len(units)} words: too short to tell")
    if size is None:
        num_single = sum(1 for unit in units if len(unit) == 1 and unit > "\u3000")
        size = NGRAM_CJK if 2 * num_single > len(units) else NGRAM
    folded = ["0" if unit[0].isdigit() else unit for unit in units]
    counted = _counted(units, folded, size)
    more = min(0.95, allowed + ALLOWED_FOLDED)
    shares = {"ngrams": 0.0, "ngrams_without_numbers": 0.0, "sentences": _sentence_excess(text)}
    if len(units) >= LEAST:
        shares["ngrams"] = _ngram_excess(units, counted, size, allowed)
        shares["ngrams_without_numbers"] = _ngram_excess(folded, counted, size, more)
    worst = max(shares, key=lambda name: shares[name])
    value = -shares[worst] + 0.0
    return Part(
        value,
        score=1.0 + value,
        passed=-value <= tolerance,
        detail=f"{worst.replace('_', ' ')}: {-value:.2f} beyond what is allowed" if value else "",
        components=shares,
    )


def _counted(units: Sequence[str], folded: Sequence[str], size: int) -> list[bool]:
    """Return, for each n-gram, whether the n-gram counts as possible repetition.

    An n-gram of mostly numbers does not count, unless it is in a long run of one number. Tables
    would fail otherwise.
    """
    before = [0, *accumulate(unit == "0" for unit in folded)]
    counted = [
        2 * (last - first) <= size for first, last in zip(before, before[size:], strict=False)
    ]
    start = 0
    for unit, same in groupby(units):
        end = start + sum(1 for _ in same)
        if end - start >= LONG_RUN and unit[0].isdigit():
            counted[start : end - size + 1] = [True] * (end - size + 1 - start)
        start = end
    return counted


def _ngram_excess(
    units: Sequence[str], counted: Sequence[bool], size: int, allowed: float
) -> float:
    """Return the share of repeated n-grams above the allowance, averaged over all blocks."""
    last_seen: dict[tuple[str, ...], int] = {}
    repeated: list[bool] = []
    for index, ngram in enumerate(zip(*(units[start:] for start in range(size)), strict=False)):
        repeated.append(index - last_seen.get(ngram, -WINDOW - 1) <= WINDOW)
        last_seen[ngram] = index
    num_blocks = max(1, round(len(repeated) / BLOCK))
    excess = total = 0.0
    for block in range(num_blocks):
        start = len(repeated) * block // num_blocks
        end = len(repeated) * (block + 1) // num_blocks
        num = sum(counted[start:end])
        if num:
            share = sum(map(and_, repeated[start:end], counted[start:end])) / num
            excess += num * max(0.0, (share - allowed) / (1.0 - allowed))
            total += num
    return excess / total if total else 0.0


def _sentence_excess(text: str) -> float:
    """Return the share of words in third and later occurrences of sentences, above the allowance.

    A second occurrence of a sentence is normal, because the reasoning often contains the answer's
    sentences.
    """
    seen: Counter[tuple[str, ...]] = Counter()
    repeated = total = 0
    for sentence in _SENTENCE_END.split(text):
        units = tuple(_UNIT.findall(sentence))
        total += len(units)
        num_words = sum(1 for unit in units if unit[0].isalpha())
        if num_words < 3 or 2 * num_words < len(units):
            continue
        seen[units] += 1
        repeated += len(units) if seen[units] > 2 else 0
    share = repeated / total if total else 0.0
    return max(0.0, (share - ALLOWED_SENTENCES) / (1.0 - ALLOWED_SENTENCES))


REPETITION = Verifier(
    name="repetition",
    version=1,
    judge=judge_repetition,
    domain="loops and repeated sentences in any text, code and tables included",
    fields=FIELDS,
    accepts="any text; case, punctuation, white space and invisible characters do not count",
    partial_credit="the share of repetition, from 0 to -1",
    weight=0.1,
    bounds=(-1.0, 0.0),
    text_only=True,
    cached=True,
)
