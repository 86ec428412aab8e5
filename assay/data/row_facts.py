"""Difficulty labels and sampling weights of rows, for a curriculum."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np

from assay.config import CurriculumConfig
from assay.data.rows import complaint
from assay.errors import ConfigError, DataError, message
from assay.types import Floats, Problem

COUNTS = '{"passed": 3, "judged": 8}'
_SHOWN_NAMES = 12


@dataclass(frozen=True)
class RowFacts:
    """Difficulty and sampling weight of all problems, by index; a field that no setting uses is
    None.

    hardness: sort key for the order easy_to_hard; a higher value means a harder problem. counts:
    array of shape (2, problems) with the passed and the judged completions that rows report as
    difficulty. weights: relative sampling frequency.
    """

    hardness: Floats | None = None
    counts: Floats | None = None
    weights: Floats | None = None


class FactReader:
    """Reads difficulty and weight of rows, and records which configured weights apply to any
    row."""

    def __init__(self, settings: CurriculumConfig) -> None:
        self.settings = settings
        self.reads = settings.label is not None or bool(settings.weights)
        self._num_read = 0
        self._met: set[str] = set()
        self._names: dict[str, None] = {}

    def check(self, problem: Problem) -> None:
        """Raise DataError, with the row and the key, for an invalid difficulty label."""
        self._hardness(problem)
        self._weight(problem)

    def check_names(self, num_rows: int) -> None:
        """Raise ConfigError for a configured weight that applies to none of the ``num_rows`` rows.

        The check is skipped if fewer than ``num_rows`` rows have been read.
        """
        # Rows of reasoning-gym are generated only when a run draws the rows.
        # Until all rows are read, a configured weight may still match a later row.
        if self._num_read < num_rows:
            return
        for name in self.settings.weights:
            if name not in self._met:
                some = [*self._names][:_SHOWN_NAMES]
                more = "" if len(some) == len(self._names) else ", ..."
                accepted = f"a tag or a source of data.train: {', '.join(some)}{more}"
                raise ConfigError(message("curriculum.weights", f'"{name}"', accepted))

    def read(self, problems: Sequence[Problem], check_names: bool = True) -> RowFacts:
        """Read the difficulty and the sampling weight of all problems in one pass.

        check_names: whether to call `check_names`. False is meant for a subset of the configured
        rows, which need not match every weight.
        """
        if not self.reads:
            return RowFacts()
        size = len(problems)
        hardness, weights = np.zeros(size, np.float32), np.ones(size, np.float32)
        counts = np.zeros((2, size), np.float32)
        for index in range(size):
            problem = problems[index]
            hardness[index], counts[:, index] = self._hardness(problem)
            weights[index] = self._weight(problem)
        if check_names:
            self.check_names(size)
        has_label, has_weights = self.settings.label is not None, bool(self.settings.weights)
        return RowFacts(
            hardness if has_label else None,
            counts if has_label else None,
            weights if has_weights else None,
        )

    def _weight(self, problem: Problem) -> float:
        # The weights of a row's source and tags multiply, because a row may match several weights.
        weight = 1.0
        self._num_read += 1
        for name in (*problem.tags, problem.source.rpartition(":")[0]):
            if len(self._names) <= _SHOWN_NAMES:
                self._names[name] = None
            if name in self.settings.weights:
                self._met.add(name)
                weight *= self.settings.weights[name]
        return weight

    def _hardness(self, problem: Problem) -> tuple[float, tuple[float, float]]:
        """Return a problem's hardness, and the (passed, judged) counts of its difficulty label."""
        label = self.settings.label
        if label is None:
            return 0.0, (0.0, 0.0)
        by_order = self.settings.order == "easy_to_hard"
        kinds = f"a number, or counts as {COUNTS}" if by_order else f"counts as {COUNTS}"
        value = problem.spec.get(label)
        if value is None:
            value = number_in_tags(label, problem.tags)
        if value is None:
            keys = ", ".join(map(str, problem.spec)) or "no keys"
            found = f"none beside {keys}"
            remedy = "label every row (assay data label_difficulty), or remove the key"
            raise DataError(message(f"{problem.place} {label}", found, kinds, remedy))
        if isinstance(value, Mapping):
            passed, judged = value.get("passed"), value.get("judged")
            if not (is_number(passed) and is_number(judged) and 0 <= passed <= judged):
                raise complaint(problem.place, label, value, kinds)
            # The failure rate does not distinguish 1 failure of 1 from 8 failures of 8.
            # The posterior mean under a uniform prior rates 8 failures of 8 as harder.
            return 1.0 - (passed + 1.0) / (judged + 2.0), (passed, judged)
        if not by_order or not is_number(value):
            raise complaint(problem.place, label, value, kinds)
        return (value if self.settings.easy_is == "low" else -value), (0.0, 0.0)


def is_number(value: Any) -> TypeGuard[float]:
    # isinstance would accept a boolean as an integer, so the type is compared exactly.
    return type(value) in (int, float) and math.isfinite(value)


def number_in_tags(label: str, tags: Sequence[str]) -> float | None:
    """Return the number in a tag ``LABEL-NUMBER``, or None: 5.0 for ``level`` and ``level-5``.

    `read_problem` writes such tags from the levels of MATH rows, for example ``level-5``.
    """
    for tag in tags:
        name, _, number = tag.rpartition("-")
        if name == label and number.replace(".", "", 1).isdecimal():
            return float(number)
    return None
