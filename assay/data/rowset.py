"""Lazy sequence of rows over several sources: rows are validated once and parsed on access.

One pass validates every row and stores two 8-byte integers per row: the position in its source and
the row number for messages. A set of a million rows therefore takes about 16 MB.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from os.path import basename
from typing import Any, Generic, Literal, Self, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from assay.data.source import UNREAD, Source
from assay.data.sources import open_source
from assay.errors import DataError, message

Row = TypeVar("Row")
OnBadRow = Literal["stop", "skip"]
MAX_KEPT_COMPLAINTS = 1000


class RowSet(Sequence[Row], Generic[Row]):
    """Rows of several sources as one sequence, which `load_rows` creates.

    skipped: errors of skipped bad rows, at most a thousand. num_skipped: number of skipped rows.
    """

    def __init__(
        self, noun: str, read: Callable[[Any, str, str], Row], shelves: Sequence[AcceptedRows]
    ) -> None:
        self.noun = noun
        self._read = read
        self._shelves = shelves
        self._ends = list(accumulate(map(len, shelves)))
        self._chosen: NDArray[np.int64] | None = None
        self.skipped: list[str] = []
        self.num_skipped = 0

    def __len__(self) -> int:
        return (self._ends or [0])[-1] if self._chosen is None else len(self._chosen)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> Self: ...
    def __getitem__(self, index: int | slice) -> Row | Self:
        if isinstance(index, slice):
            return self.select(range(len(self))[index])
        if not -len(self) <= index < len(self):
            raise IndexError(f"index {index} of {len(self)} {self.noun}")
        row = index % len(self)
        if self._chosen is not None:
            row = int(self._chosen[row])
        number = bisect_right(self._ends, row)
        shelf = self._shelves[number]
        return shelf.row(row - (self._ends[number] - len(shelf)), self._read)

    def select(self, indices: Iterable[int]) -> Self:
        """Return a row set with the rows at ``indices``, in the order of ``indices``."""
        # A subset is an index array over the same sources, so selecting copies no row.
        chosen = np.fromiter(indices, np.int64)
        other = type(self).__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._chosen = chosen if self._chosen is None else self._chosen[chosen]
        return other

    def with_skipped(self, complaints: Collection[str]) -> Self:
        """Return a copy of this row set that records further errors of skipped rows."""
        other = self.select(range(len(self)))
        other.skipped = [*self.skipped, *complaints][:MAX_KEPT_COMPLAINTS]
        other.num_skipped = self.num_skipped + len(complaints)
        return other

    def counts(self) -> list[tuple[str, int]]:
        """Return (label, number of rows) for each source of the row set."""
        rows = range(len(self)) if self._chosen is None else self._chosen
        shelf_of_row = np.searchsorted(self._ends, rows, side="right")
        counts = np.bincount(shelf_of_row, minlength=len(self._shelves)).tolist()
        labels = (shelf.source.label for shelf in self._shelves)
        return list(zip(labels, counts, strict=True))

    def describe(self) -> str:
        """Return one line with the number of rows per source and the number of skipped rows."""
        parts = (f"{count} from {label}" for label, count in self.counts())
        text = f"{len(self)} {self.noun}: {', '.join(parts)}"
        return f"{text}; {self.num_skipped} bad rows skipped" if self.num_skipped else text


@dataclass
class AcceptedRows:
    """Positions of all valid rows in one source.

    name: prefix of the source's default row ids. positions: position in the source of each valid
    row. numbers: row number for messages of each valid row.
    """

    source: Source
    name: str
    positions: array[int] = field(default_factory=lambda: array("Q"))
    numbers: array[int] = field(default_factory=lambda: array("Q"))

    def __len__(self) -> int:
        return len(self.positions)

    def row(self, row: int, read: Callable[[Any, str, str], Row]) -> Row:
        """Read and parse the row at an index of the row set."""
        number = self.numbers[row]
        where = f"{self.source.label}:{number}"
        raw = self.source.fetch(self.positions[row])
        return read(self.source.parse(raw, where), where, f"{self.name}:{number}")


class _Loading:
    """State of the pass that validates all rows: accepted rows, hashes of row keys, and errors."""

    def __init__(
        self,
        read: Callable[[Any, str, str], Any],
        key: Callable[[Any], str] | None,
        check: Callable[[Any], object] | None,
        on_bad_row: OnBadRow,
        limit: int | None,
    ) -> None:
        self.read, self.key, self.check = read, key, check
        self.on_bad_row, self.limit = on_bad_row, limit
        self.shelves: list[AcceptedRows] = []
        self.hashes = array("q")
        self.complaints: list[str] = []
        self.num_accepted = 0
        self.num_complaints = 0

    def complain(self, error: DataError) -> None:
        if self.on_bad_row == "stop":
            raise error
        self.num_complaints += 1
        if len(self.complaints) < MAX_KEPT_COMPLAINTS:
            self.complaints.append(str(error))

    def scan(self, shelf: AcceptedRows) -> None:
        self.shelves.append(shelf)
        source, name, read, key = shelf.source, shelf.name, self.read, self.key
        for position, number, raw in source.scan():
            where, row_name = f"{source.label}:{number}", f"{name}:{number}"
            if raw is UNREAD:
                # Reading an `UNREAD` row would generate it, so only its default id is checked.
                # The default id of a row that was not read must still be unique.
                row_key = row_name
            else:
                try:
                    row = read(source.parse(raw, where), where, row_name)
                    if self.check is not None:
                        self.check(row)
                except DataError as error:
                    self.complain(error)
                    continue
                row_key = key(row) if key else ""
            shelf.positions.append(position)
            shelf.numbers.append(number)
            # A hash takes 8 bytes per row.
            # A set of the keys themselves would keep every row id in memory.
            if key:
                self.hashes.append(hash(row_key))
            self.num_accepted += 1
            if self.num_accepted == self.limit:
                break
        if not len(shelf):
            found = (
                f"{self.num_complaints} bad rows and no good one" if self.complaints else "no rows"
            )
            first = f"the first: {self.complaints[0]}" if self.complaints else ""
            raise DataError(message(source.label, found, "at least one good row", first))

    def repeated(self, rows: RowSet[Any]) -> Iterator[tuple[int, DataError]]:
        """Yield (index, error) for each row whose key equals the key of an earlier row."""
        assert self.key is not None
        hashes = np.frombuffer(self.hashes, np.int64)
        order = np.argsort(hashes, kind="stable")
        same = np.flatnonzero(hashes[order][1:] == hashes[order][:-1])
        suspects = np.unique(np.concatenate([order[same], order[same + 1]]))
        first_of: dict[str, Any] = {}
        # Different keys may have equal hashes, so the keys themselves are read and compared.
        for index in suspects.tolist():
            row = rows[index]
            row_key = self.key(row)
            first = first_of.setdefault(row_key, row)
            if first is not row:
                found = f"{row_key!r} again (first in {first.source})"
                yield index, DataError(message(f"{row.source} id", found, "ids that differ"))


def load_rows(
    noun: str,
    read: Callable[[Any, str, str], Row],
    sources: Sequence[str | Source],
    *,
    key: Callable[[Row], str] | None = None,
    check: Callable[[Row], object] | None = None,
    on_bad_row: OnBadRow = "stop",
    limit: int | None = None,
) -> RowSet[Row]:
    """Open row sources, and validate up to ``limit`` rows in one pass.

    ``read(row, where, default_id)`` parses a row, and raises DataError for a bad row. ``key``
    returns the key of a row; a row counts as bad if an earlier row has the same key. ``check``
    raises DataError for a fault of a row that ``read`` does not detect. ``check`` runs once per
    row, whereas ``read`` runs each time a row is accessed. Raises DataError for a source without a
    valid row, and, if ``on_bad_row`` is ``stop``, for the first bad row.
    """
    if isinstance(sources, str) or not sources:
        raise DataError(message("sources", repr(sources), "a list of at least one source"))
    loading = _Loading(read, key, check, on_bad_row, limit)
    for one, name in zip(sources, _short_names(list(map(str, sources))), strict=True):
        if loading.num_accepted != limit:
            loading.scan(AcceptedRows(open_source(one) if isinstance(one, str) else one, name))
    rows = RowSet(noun, read, loading.shelves)
    if key:
        repeats = dict[int, DataError]()
        for index, error in loading.repeated(rows):
            loading.complain(error)
            repeats[index] = error
        if repeats:
            rows = rows.select(index for index in range(len(rows)) if index not in repeats)
    rows.skipped, rows.num_skipped = loading.complaints, loading.num_complaints
    return rows


def _short_names(sources: Sequence[str]) -> list[str]:
    """Return the prefix of default row ids for each source: its short name if unique, or else its
    full name.
    """
    # Default row ids appear in rollouts and reports, where a full path would be too long.
    if len(set(sources)) < len(sources):
        twice = next(text for text in sources if list(sources).count(text) > 1)
        raise DataError(message(twice, "the same source twice", "each source once"))
    short = [
        text.partition("?")[0] if ":" in text else basename(text) for text in map(str, sources)
    ]
    return [
        name if short.count(name) == 1 else str(text)
        for name, text in zip(short, sources, strict=True)
    ]
