"""Problems from any mixture of sources, as one sequence that does not hold them in memory."""

from __future__ import annotations

from collections.abc import Sequence

from assay.data.rows import read_problem
from assay.data.rowset import OnBadRow, RowSet, load_rows
from assay.types import Problem


class ProblemSet(RowSet[Problem]):
    """Problems in the order of their sources. `load_problems` makes one."""

    noun = "problems"


def load_problems(
    sources: Sequence[str],
    *,
    on_bad_row: OnBadRow = "stop",
    limit: int | None = None,
) -> ProblemSet:
    """Open sources of problems and validate every row, up to ``limit`` rows in all.

    Sources are described in `assay.data.sources`, rows in `assay.data.rows`. A row without an id
    is named after its file and line. Raises DataError, in one line that names the place: for the
    first bad row (a repeated id is one) unless ``on_bad_row`` is ``skip``, and always for a source
    without a good row; MissingExtra for ``hf:`` without `datasets`.
    """
    return load_rows(
        ProblemSet,
        read_problem,
        sources,
        key=lambda problem: problem.id,
        on_bad_row=on_bad_row,
        limit=limit,
    )
