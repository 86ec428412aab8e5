"""What a curriculum reads of rows: labels in their forms, weights by tag and source."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from assay.config import CurriculumConfig
from assay.data.problems import load_problems
from assay.data.row_facts import FactReader
from assay.data.rows import read_problem
from assay.data.source import UNREAD, Source
from assay.errors import ConfigError, DataError
from assay.types import Problem

ROWS: list[dict[str, Any]] = [
    {"prompt": "a", "answer": "1", "difficulty": {"passed": 8, "judged": 8}, "tags": ["sums"]},
    {"prompt": "b", "answer": "1", "difficulty": {"passed": 0, "judged": 8, "solved": 0}},
    {"prompt": "c", "answer": "1", "difficulty": 7, "rate": 0.25, "tags": ["sums", "long"]},
    {"problem": "d", "answer": "1", "level": "Level 5", "difficulty": 1.5, "rate": 1},
]


def problems(*rows: int) -> list[Problem]:
    return [read_problem(ROWS[n], f"file.jsonl:{n + 1}", f"{n}") for n in rows]


def test_counts_are_a_label_and_the_first_observations() -> None:
    settings = CurriculumConfig(order="easy_to_hard", label="difficulty")
    facts = FactReader(settings).read(problems(0, 1))
    assert facts.hardness is not None and facts.counts is not None and facts.weights is None
    assert facts.hardness.tolist() == pytest.approx([0.1, 0.9])
    assert facts.counts.tolist() == [[8.0, 0.0], [8.0, 8.0]]


def test_numbers_are_a_label_either_way() -> None:
    settings = CurriculumConfig(order="easy_to_hard", label="difficulty")
    facts = FactReader(settings).read(problems(2, 3))
    assert facts.hardness is not None and facts.hardness.tolist() == [7.0, 1.5]
    settings = CurriculumConfig(order="easy_to_hard", label="rate", easy_is="high")
    facts = FactReader(settings).read(problems(2, 3))
    assert facts.hardness is not None and facts.hardness.tolist() == [-0.25, -1.0]


def test_the_level_of_math_is_a_label() -> None:
    settings = CurriculumConfig(order="easy_to_hard", label="level")
    facts = FactReader(settings).read(problems(3))
    assert facts.hardness is not None and facts.hardness.tolist() == [5.0]


def test_weights_are_by_tag_and_by_source() -> None:
    weights = {"sums": 2.0, "long": 0.5, "other.jsonl": 3.0}
    settings = CurriculumConfig(weights=weights)
    given = [*problems(0, 1, 2), replace(problems(1)[0], source="other.jsonl:7")]
    facts = FactReader(settings).read(given)
    assert facts.weights is not None and facts.weights.tolist() == [2.0, 1.0, 1.0, 3.0]


def test_rows_are_not_read_for_nothing() -> None:
    facts = FactReader(CurriculumConfig(order="prioritized")).read([])
    assert facts.hardness is facts.counts is facts.weights is None


@pytest.mark.parametrize(
    ("row", "order", "label", "expected"),
    [
        (0, "easy_to_hard", "level", "file.jsonl:1 level: found none beside answer, difficulty"),
        (2, "band", "difficulty", "file.jsonl:3 difficulty: found 7; accepted: counts as {"),
        (2, "easy_to_hard", "tags", "file.jsonl:3 tags: found none"),
        (2, "easy_to_hard", "answer", "file.jsonl:3 answer: found '1'; accepted: a number, or"),
    ],
)
def test_a_row_without_its_label_is_named(row: int, order: Any, label: str, expected: str) -> None:
    reader = FactReader(CurriculumConfig(order=order, label=label))
    with pytest.raises(DataError) as caught:
        reader.check(problems(row)[0])
    assert str(caught.value).startswith(expected) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "value",
    [
        {"passed": 9, "judged": 8},
        {"passed": -1, "judged": 8},
        {"passed": True, "judged": 8},
        {"passed": 1},
        {"passed": float("nan"), "judged": 8},
        True,
        float("inf"),
        [1, 2],
    ],
)
def test_labels_that_say_nothing_are_refused(value: Any) -> None:
    problem = replace(problems(0)[0], spec={"difficulty": value})
    reader = FactReader(CurriculumConfig(order="easy_to_hard", label="difficulty"))
    with pytest.raises(DataError, match=r"^file\.jsonl:1 difficulty: found "):
        reader.check(problem)


def test_a_weight_for_an_unknown_tag_is_refused() -> None:
    reader = FactReader(CurriculumConfig(weights={"sums": 2.0, "geometry": 2.0}))
    expected = r'weights: found "geometry"; accepted: a tag .*: sums, file\.jsonl, long'
    with pytest.raises(ConfigError, match=expected):
        reader.read(problems(0, 1, 2))


class MadeWhenAsked(Source):
    """Rows of which loading reads the first, as a gym's."""

    def scan(self) -> Iterator[tuple[int, int, Any]]:
        for index, row in enumerate(self._rows):
            yield index, index, UNREAD if index else row


def test_names_of_rows_that_loading_does_not_read_are_known_late() -> None:
    source = MadeWhenAsked("lazy", [{**ROWS[0], "id": f"{n}"} for n in range(4)])
    unknown = FactReader(CurriculumConfig(weights={"geometry": 2.0}))
    rows = load_problems([source], check=unknown.check)
    unknown.check_names(len(rows))
    with pytest.raises(ConfigError, match=r"a source of data\.train: sums, lazy"):
        unknown.read(rows)
    facts = FactReader(CurriculumConfig(weights={"lazy": 2.0})).read(rows)
    assert facts.weights is not None and np.all(facts.weights == 2.0)
