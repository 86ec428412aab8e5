"""Group completion rows by problem. Rows of one problem need not be adjacent."""

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
    """Yield the rows of each problem, in the order of the problems' first rows.

    Grouping stores only two numbers per row in memory. The rows of a problem are read again when
    the problem is yielded.
    """
    keys = np.fromiter((hash(_key(row)) for row in rows), np.int64, len(rows))
    for group in _grouped(keys):
        of_problem: dict[str, list[Record]] = {}
        # Two keys may have the same hash, so the full keys are compared too.
        for index in group.tolist():
            row = rows[index]
            of_problem.setdefault(_key(row), []).append(row)
        yield from of_problem.values()


def _key(row: Record) -> str:
    """Return the grouping key of a row: its ``problem_id``, else its prompt."""
    # Rows of other tools have no problem_id; equal prompts then mean the same problem.
    if "problem_id" in row.keys:
        return str(row.keys["problem_id"])
    prompt = row.prompt
    return prompt if isinstance(prompt, str) else repr([dict(turn) for turn in prompt])


def _grouped(keys: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Yield the ascending indices of each key, in the order of the keys' first occurrences."""
    if len(keys):
        _, first, number = np.unique(keys, return_index=True, return_inverse=True)
        # np.unique sorts groups by hash, which differs between processes.
        # Sorting groups by their first row makes the output reproducible.
        order = np.argsort(first[number], kind="stable")
        starts = np.flatnonzero(np.diff(first[number][order])) + 1
        yield from np.split(order, starts)
