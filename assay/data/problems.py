"""Load problems from any mixture of sources as one lazy sequence."""

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
    """Open sources of problems and validate every row, up to ``limit`` rows in all.

    check: raises VerifierError for a problem that its verifier cannot use; such a row is bad. tags:
    maps a source's name to a tag that is put first on all its rows.

    Sources are `Source` objects or names (`assay.data.sources`); `assay.data.rows` defines the row
    formats. A row without an id is named after its file and line. Raises DataError, in one line
    with the location: for the first bad row (including a repeated id) unless ``on_bad_row`` is
    ``skip``, and always for a source without a valid row; MissingExtra for ``hf:`` without
    `datasets`.
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
    """A source that puts one tag before the tags of each of its rows."""

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
    own = (tag for tag in problem.tags if tag != row.tag)
    return dataclasses.replace(problem, tags=(row.tag, *own))


def check_spec(problem: Problem, check: Callable[[Problem], None]) -> None:
    """Run a check; its VerifierError becomes a DataError with the problem's location.

    Errors of the default verifier itself, which no row causes, stay VerifierErrors.
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
