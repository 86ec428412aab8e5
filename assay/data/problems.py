"""Load problems from any mixture of sources as one lazy sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from assay.data.rows import read_problem
from assay.data.rowset import OnBadRow, RowSet, load_rows
from assay.data.source import Source
from assay.errors import DataError, VerifierError
from assay.types import Problem

ProblemSet = RowSet[Problem]
"""Problems in the order of their sources."""


def load_problems(
    sources: Sequence[str | Source],
    *,
    on_bad_row: OnBadRow = "stop",
    limit: int | None = None,
    check: Callable[[Problem], None] | None = None,
) -> ProblemSet:
    """Open sources of problems and validate every row, up to ``limit`` rows in all.

    check: raises VerifierError for a problem that its verifier cannot use; such a row is bad.

    Sources are `Source` objects or names (`assay.data.sources`); `assay.data.rows` defines the row
    formats. A row without an id is named after its file and line. Raises DataError, in one line
    with the location: for the first bad row (including a repeated id) unless ``on_bad_row`` is
    ``skip``, and always for a source without a valid row; MissingExtra for ``hf:`` without
    `datasets`.
    """
    return load_rows(
        "problems",
        read_problem,
        sources,
        key=lambda problem: problem.id,
        check=None if check is None else lambda problem: check_spec(problem, check),
        on_bad_row=on_bad_row,
        limit=limit,
    )


def check_spec(problem: Problem, check: Callable[[Problem], None]) -> None:
    """Run a check; its VerifierError becomes a DataError with the problem's location.

    Errors that no row causes stay VerifierErrors: they belong to the configured default verifier.
    """
    try:
        check(problem)
    except VerifierError as error:
        text, where = str(error), problem.source
        if not text.startswith(where):
            if problem.verifier is None:
                raise
            text = f"{where} {text if text.startswith('verifier') else f'verifier: {text}'}"
        raise DataError(text) from error
