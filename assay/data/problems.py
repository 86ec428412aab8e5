"""Problems from any mixture of sources, as one sequence that does not hold them in memory."""

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

    check: raises VerifierError for a problem that its verifier cannot use; such a row is a bad one.

    Sources are opened ones, or named as `assay.data.sources` describes; rows are those of
    `assay.data.rows`. A row without an id is named after its file and line. Raises DataError, in
    one line that names the place: for the first bad row (a repeated id is one) unless
    ``on_bad_row`` is ``skip``, and always for a source without a good row; MissingExtra for
    ``hf:`` without `datasets`.
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
    """Run a check; its VerifierError becomes a DataError that names the problem's place.

    That no row's verifier is at fault stays a VerifierError: it is the configuration's, which is
    the one of rows that name none.
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
