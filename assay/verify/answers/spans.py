"""Verifier ``drop``: F1 between the answer's spans, numbers or dates and the expected ones."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from string import punctuation
from typing import Any

from assay.host.fields import Field, is_answer, list_of, listed
from assay.types import Completion, Problem
from assay.verify.answers.short_answers import place
from assay.verify.base import Part, Verifier

BETWEEN = "|"
# Maximum number of accepted answers per row.
MAX_ACCEPTED = 1000
# Maximum number of spans per answer. Answers in the data set DROP have at most about ten spans.
MAX_SPANS = 50
# DROP's scorer splits at spaces and hyphens.
_TOKENS = re.compile("[ -]")
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", punctuation)

Bag = frozenset[str]


def judge_spans(problem: Problem, completion: Completion) -> Part:
    """Score a completion by the F1 of its answer's words. Only an exact match passes.

    Reads ``answers`` from the spec. If several answers are accepted, the best F1 counts. The answer
    is read from a box, an answer tag or the words after "the answer is", else it is the whole text.
    Source: Dua et al. 2019, "DROP", arXiv:1903.00161.
    """
    found = place(completion, "auto")
    if found is None:
        return Part(0.0, detail="no answer")
    spans = [part.strip() for part in found.split(BETWEEN) if part.strip()]
    if len(spans) > MAX_SPANS:
        return Part(0.0, detail=f"more than {MAX_SPANS} parts")
    scores = [compare(spans, listed(gold)) for gold in ANSWERS.read(problem)]
    exact = max(exact for exact, _ in scores)
    f1 = max(f1 for _, f1 in scores)
    components = {"exact_match": float(exact), "f1": f1}
    return Part(f1, score=f1, passed=exact, extracted=found, components=components)


def compare(predicted: Sequence[str], expected: Sequence[Any]) -> tuple[bool, float]:
    """Return (whether the spans match exactly, their F1 rounded to two digits as in DROP).

    Each expected span is paired with at most one predicted span so that the sum of the pairs' F1 is
    maximal. The matched sum is divided by the larger number of spans, so an additional span lowers
    the F1 as much as a missing span.
    """
    first, second = ([normalized(str(span)) for span in spans] for spans in (predicted, expected))
    rows, columns = ([frozenset(text.split()) for text in texts] for texts in (second, first))
    table = [[bag_f1(column, row) for column in columns] for row in rows]
    most = max(len(rows), len(columns))
    exact = len(first) == len(second) and set(first) == set(second)
    return exact, round(best_sum(table, most) / most, 2)


@lru_cache(maxsize=4096)
def normalized(text: str) -> str:
    """Normalize a span as DROP's scorer does: lower case, no articles or punctuation, and 3 as
    3.0."""
    return " ".join(" ".join(map(_normalized_token, _TOKENS.split(text.lower()))).split())


def _normalized_token(token: str) -> str:
    plain = token if is_number(token) else token.translate(_NO_PUNCTUATION)
    return str(float(plain)) if is_number(plain) else _ARTICLES.sub(" ", plain)


def is_number(text: str) -> bool:
    """Return whether Python's ``float`` can convert a word.

    Because Python's ``float`` accepts "inf", the word "inf" is a number too.
    """
    try:
        float(text)
    except ValueError:
        return False
    return True


def bag_f1(predicted: Bag, expected: Bag) -> float:
    """Return the F1 score between two sets of words.

    The F1 is 0 if the expected set has numbers and the predicted set has none of these numbers.
    """
    numbers = {word for word in expected if is_number(word)}
    common = len(predicted & expected)
    if (numbers and not numbers & predicted) or (not common and predicted | expected):
        return 0.0
    return 2 * common / (len(predicted) + len(expected)) if predicted | expected else 1.0


def best_sum(table: Sequence[Sequence[float]], size: int) -> float:
    """Return the largest sum of table entries in which no two entries share a row or a column.

    size: number of rows or columns of the table, whichever is larger.

    The function uses the Hungarian method (Kuhn 1955) on a square table padded with zeros. For each
    row, the Hungarian method finds the cheapest path to a free column. The Hungarian method keeps a
    price per row and column, such that every cost minus its prices is at least 0.
    """
    cost = [[0.0] * size for _ in range(size)]
    for row, values in enumerate(table):
        cost[row][: len(values)] = [-value for value in values]
    row_price, price = [0.0] * size, [0.0] * size
    row_of = [-1] * size
    for start in range(size):
        distance, before = [float("inf")] * size, [-1] * size
        done: list[int] = []
        row, column = start, -1
        while row >= 0:
            base = distance[column] if column >= 0 else 0.0
            for other in range(size):
                far = base + cost[row][other] - row_price[row] - price[other]
                if other not in done and far < distance[other]:
                    distance[other], before[other] = far, column
            open_columns = (other for other in range(size) if other not in done)
            column = min(open_columns, key=distance.__getitem__)
            done.append(column)
            row = row_of[column]
        length = distance[column]
        for other in done[:-1]:
            price[other] += distance[other] - length
            row_price[row_of[other]] += length - distance[other]
        row_price[start] += length
        while column >= 0:
            last, column = column, before[column]
            row_of[last] = start if column < 0 else row_of[column]
    # The expression 0.0 - x avoids the result -0.0.
    return 0.0 - sum(cost[row][column] for column, row in enumerate(row_of))


ANSWERS = Field(
    "answers",
    "a list of accepted answers: each a text, a number, or a list of spans",
    needed=True,
    check=list_of(is_answer, MAX_ACCEPTED, least=1),
)
DROP = Verifier(
    name="drop",
    version=1,
    judge=judge_spans,
    domain="questions about a passage: spans of it, numbers, dates",
    fields=(ANSWERS,),
    accepts="the words and numbers of an accepted answer in the same order, without case, articles "
    f"and punctuation; `{BETWEEN}` separates several spans, which may be in any order",
    partial_credit="the F1 of the sets of words, with spans aligned as in DROP's scorer; the F1 of "
    "a failed answer can be 1",
    text_only=True,
    cached=True,
)
