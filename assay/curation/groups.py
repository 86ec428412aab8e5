"""Collected completions, problem by problem, wherever they stand."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from assay.curation.base import Row
from assay.curation.judged import problem_key
from assay.data.rowset import RowSet

Candidate = tuple[int, Row]
"""A row, and where it stands among the input's rows."""


def status_of(row: Row) -> str | None:
    """Return the status that a row's completion was given; None where it was not judged."""
    verdict = row.get("verdict", row)
    return verdict.get("status") if isinstance(verdict, dict) else None


def by_problem(rows: RowSet[Row], candidates: Iterable[Candidate]) -> Iterator[list[Row]]:
    """Yield the candidates of each problem, problems in the order in which they first stand.

    Two numbers of a candidate are kept; its row is read again with those of its problem.
    """
    indices, keys = array("q"), array("q")
    for index, row in candidates:
        indices.append(index)
        keys.append(hash(problem_key(row)))
    for group in _grouped(np.frombuffer(indices, np.int64), np.frombuffer(keys, np.int64)):
        of_problem: dict[str, list[Row]] = {}
        for index in group.tolist():  # equal hashes only suggest equal problems
            row = rows[index]
            of_problem.setdefault(problem_key(row), []).append(row)
        yield from of_problem.values()


def _grouped(indices: NDArray[np.int64], keys: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Yield the indices of each key, rising; keys in the order of their first index."""
    if not len(indices):
        return
    rising = np.argsort(indices)
    _, first, number = np.unique(keys[rising], return_index=True, return_inverse=True)
    order = np.argsort(first[number], kind="stable")
    starts = np.flatnonzero(np.diff(first[number][order])) + 1
    yield from np.split(indices[rising][order], starts)
