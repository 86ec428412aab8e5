"""Group collected completions by problem, in whatever order the rows are stored."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from assay.data.completions import Record
from assay.data.rowset import RowSet
from assay.errors import DataError, message


def check_judged(row: Record, remedy: str = "") -> None:
    """Raise DataError for a row without a completion or a verdict."""
    _ = row.prompt, row.completion
    if row.verdict is None:
        accepted = 'a "verdict", as assay data collect writes it'
        raise DataError(message(f"{row.source} verdict", "none", accepted, remedy))


def by_problem(rows: RowSet[Record]) -> Iterator[list[Record]]:
    """Yield the rows of each problem, in order of the problems' first rows.

    Only two numbers per row are kept in memory. Rows are read again when their problem is yielded.
    """
    keys = np.fromiter((hash(_key(row)) for row in rows), np.int64, len(rows))
    for group in _grouped(keys):
        of_problem: dict[str, list[Record]] = {}
        # Hashes may collide, so the full keys are compared too.
        for index in group.tolist():
            row = rows[index]
            of_problem.setdefault(_key(row), []).append(row)
        yield from of_problem.values()


def _key(row: Record) -> str:
    """Return the grouping key of a row: its ``problem_id``, else the prompt."""
    if "problem_id" in row.keys:
        return str(row.keys["problem_id"])
    prompt = row.prompt
    return prompt if isinstance(prompt, str) else repr([dict(turn) for turn in prompt])


def _grouped(keys: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Yield the ascending indices of each key, in order of the keys' first index."""
    if len(keys):
        _, first, number = np.unique(keys, return_index=True, return_inverse=True)
        # Groups in the order of their first rows, so that the output does not depend on hash
        # values.
        order = np.argsort(first[number], kind="stable")
        starts = np.flatnonzero(np.diff(first[number][order])) + 1
        yield from np.split(order, starts)
