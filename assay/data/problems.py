"""Load problems from several sources as one lazy sequence."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from assay.data.rows import read_problem
from assay.data.rowset import OnBadRow, RowSet, load_rows
from assay.data.source import UNREAD, Source
from assay.data.sources import open_source
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
    tags: Mapping[str, str] | None = None,
) -> ProblemSet:
    """Open sources of problems and validate every row, up to ``limit`` rows over all sources.

    check: function that raises VerifierError if the problem's verifier cannot use the problem,
    which makes the row bad. tags: tag for each source name; the tag becomes the first tag of all
    rows of the source.

    Sources are `Source` objects, or names that `assay.data.sources` resolves. `assay.data.rows`
    defines the row formats. The default id of a row is its file and line. A row counts as bad if an
    earlier row has the same id. Raises DataError, with file and line, for the first bad row unless
    ``on_bad_row`` is ``skip``. Raises DataError for a source without a valid row, and MissingExtra
    for ``hf:`` if `datasets` is not installed.
    """
    opened = [
        _TaggedSource(one, tags[one]) if isinstance(one, str) and tags and one in tags else one
        for one in sources
    ]
    return load_rows(
        "problems",
        _read_tagged,
        sources if isinstance(sources, str) else opened,
        key=lambda problem: problem.id,
        check=None if check is None else lambda problem: check_spec(problem, check),
        on_bad_row=on_bad_row,
        limit=limit,
    )


@dataclasses.dataclass(frozen=True)
class _TaggedRow:
    row: Any
    tag: str


class _TaggedSource(Source):
    """Row source that adds one tag to the start of each row's tags."""

    def __init__(self, name: str, tag: str) -> None:
        self._source = open_source(name)
        super().__init__(self._source.label)
        self._name, self._tag = name, tag

    def __str__(self) -> str:
        return self._name

    def scan(self) -> Iterator[tuple[int, int, Any]]:
        return self._source.scan()

    def fetch(self, position: int) -> Any:
        return self._source.fetch(position)

    def parse(self, raw: Any, where: str) -> Any:
        return raw if raw is UNREAD else _TaggedRow(self._source.parse(raw, where), self._tag)


def _read_tagged(row: Any, where: str, default_id: str) -> Problem:
    if not isinstance(row, _TaggedRow):
        return read_problem(row, where, default_id)
    problem = read_problem(row.row, where, default_id)
    # The first matching tag of a row decides on its mixture part, so the source's tag is first.
    own = (tag for tag in problem.tags if tag != row.tag)
    return dataclasses.replace(problem, tags=(row.tag, *own))


def check_spec(problem: Problem, check: Callable[[Problem], None]) -> None:
    """Run a check, and convert its VerifierError to a DataError with the problem's location.

    If the error of the default verifier does not name a row, its cause is the configuration, and
    the error stays a VerifierError.
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
