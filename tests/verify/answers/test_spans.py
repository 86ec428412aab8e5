"""DROP's exact match and F1: normalization, numbers, several spans, accepted answers."""

from __future__ import annotations

from itertools import permutations
from random import Random

import pytest

from assay.errors import VerifierError
from assay.types import Completion, Problem
from assay.verify.answers.spans import DROP, best_sum, compare, judge_spans, normalized


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The Eagles", "eagles"),
        ("U.S. Army", "us army"),
        ("45-yard", "45.0 yard"),
        ("3", "3.0"),
        ("$1,000.", "1000.0"),
        ("12.5", "12.5"),
        ("a  big   An", "big"),
        ("Anna", "anna"),
    ],
)
def test_spans_are_normalized(text: str, expected: str) -> None:
    assert normalized(text) == expected


@pytest.mark.parametrize(
    ("predicted", "expected", "exact", "f1"),
    [
        (["Bill Jones"], ["Jones"], False, 0.67),
        (["5 yards"], ["4 yards"], False, 0.0),  # the numbers differ: nothing counts
        (["5 yards"], ["5"], False, 0.67),
        (["yards"], ["5 yards"], False, 0.0),
        (["Smith", "Jones"], ["Jones", "Smith"], True, 1.0),
        (["Smith"], ["Jones", "Smith"], False, 0.5),
        (["Smith", "Jones", "Lee"], ["Jones"], False, 0.33),
        (["Jones", "Jones"], ["Jones", "Smith"], False, 0.5),
        (["Jones Smith"], ["Jones", "Smith"], False, 0.33),
        (["Smith Jones"], ["Jones Smith"], False, 1.0),  # the same words in another order
        (["the"], ["a"], True, 1.0),
        (["the"], ["Jones"], False, 0.0),
    ],
)
def test_answers_are_compared(
    predicted: list[str], expected: list[str], exact: bool, f1: float
) -> None:
    assert compare(predicted, expected) == (exact, f1)


def test_spans_are_aligned_as_well_as_they_can_be() -> None:
    random = Random(0)
    for _ in range(300):
        rows, columns = random.randint(1, 5), random.randint(1, 5)
        size = max(rows, columns)
        table = [[random.choice((0.0, 0.5, random.random())) for _ in range(columns)] for _ in range(rows)]  # fmt: skip
        square = [[*row, *[0.0] * (size - columns)] for row in table] + [[0.0] * size] * (size - rows)  # fmt: skip
        slow = max(sum(map(list.__getitem__, square, order)) for order in permutations(range(size)))
        assert best_sum(table, size) == pytest.approx(slow)


def test_the_best_accepted_answer_counts() -> None:
    problem = Problem("p", "q", {"answers": [["Jones", "Smith"], "Bill Jones", 7]})
    for text, f1, passed in (("Bill Jones", 1.0, True), ("7", 1.0, True), ("Bill", 0.67, False)):
        part = judge_spans(problem, Completion.from_text(text))
        assert (part.value, part.passed, part.components["f1"]) == (f1, passed, f1)
    assert judge_spans(problem, Completion.from_text("|".join("abcdefg" * 8))).value == 0.0


@pytest.mark.parametrize("answers", [[], "x", [[]], [None], [["a", {}]]])
def test_malformed_lists_of_answers_are_refused(answers: object) -> None:
    with pytest.raises(VerifierError, match="accepted: a list of accepted answers"):
        DROP.fields[0].of({"answers": answers}, "row")
