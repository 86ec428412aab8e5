"""Parquet files: read one row group at a time and written in batches, to limit memory."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from assay.data.source import Source
from assay.errors import DataError, cause, message

CACHE_BYTES = 256 * 2**20
# Number of rows per batch in reading and writing.
BATCH = 1024


class ParquetRows(Source):
    """Rows of a Parquet file, with a cache of recent row groups."""

    def __init__(self, label: str) -> None:
        super().__init__(label)
        try:
            with pq.ParquetFile(label) as file:
                sizes = [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)]
        except (pa.ArrowException, OSError) as error:
            raise DataError(
                f"{label}: not a Parquet file that can be read ({cause(error)})"
            ) from error
        self._starts = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]).astype(np.int64)
        self._cache: OrderedDict[int, pa.Table] = OrderedDict()
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return ParquetRows, (self.label,)

    def scan(self) -> Iterator[tuple[int, int, Any]]:
        """Yield (index, row number starting at 1, row) for each row of the file."""
        index = 0
        try:
            with pq.ParquetFile(self.label) as file:
                for batch in file.iter_batches(batch_size=BATCH):
                    for row in batch.to_pylist():
                        yield index, index + 1, row
                        index += 1
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{self.label}:{index + 1}: cannot be read ({cause(error)})") from error

    def parse(self, raw: Any, where: str) -> Any:
        """Return a Parquet row without its null keys."""
        # Parquet stores a null for each key that a row lacks, in nested objects too.
        return _present(raw) or {}

    def fetch(self, position: int) -> Any:
        """Return the row at an index of the file."""
        group = int(np.searchsorted(self._starts, position, side="right")) - 1
        offset = position - int(self._starts[group])
        # The local variable keeps the row group, which another thread could evict from the cache.
        with self._lock:
            table = self._group(group)
        return table.slice(offset, 1).to_pylist()[0]

    def _group(self, number: int) -> pa.Table:
        if number not in self._cache:
            try:
                with pq.ParquetFile(self.label) as file:
                    self._cache[number] = file.read_row_group(number)
            except (pa.ArrowException, OSError) as error:
                raise DataError(f"{self.label}: cannot be read ({cause(error)})") from error
            # A row group larger than the limit must stay in the cache until its row is read.
            while len(self._cache) > 1 and self._cached_bytes() > CACHE_BYTES:
                self._cache.popitem(last=False)
        self._cache.move_to_end(number)
        return self._cache[number]

    def _cached_bytes(self) -> int:
        return sum(table.nbytes for table in self._cache.values())


def write_parquet(rows: Callable[[], Iterable[dict[str, Any]]], path: Path) -> None:
    """Write rows to a Parquet file in two passes: the first pass infers the schema, the second pass
    writes the rows.

    rows: function that returns a new iterator over the rows at each call. Empty objects are left
    out. Raises DataError if values of one key have incompatible types.
    """
    # A later batch may add keys, so the schema must be known before the first batch is written.
    kinds: dict[str, pa.DataType] = {}
    for batch in _batches(rows()):
        for key in dict.fromkeys(key for row in batch for key in row):
            try:
                found = pa.array([row.get(key) for row in batch]).type
                fields = [pa.schema([(key, kind)]) for kind in (kinds.get(key, found), found)]
                kinds[key] = pa.unify_schemas(fields, promote_options="permissive").field(key).type
            except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
                accepted = "values of one kind under a key"
                raise DataError(message(f"key {key}", cause(error), accepted)) from error
    schema = pa.schema(list(kinds.items()))
    with pq.ParquetWriter(path, schema) as writer:
        for batch in _batches(rows()):
            writer.write_table(pa.Table.from_pylist(batch, schema))


def _batches(rows: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Yield rows in batches, without empty objects: Parquet does not support a struct without
    fields.
    """
    kept = ({key: _present(value) for key, value in row.items()} for row in rows)
    while batch := list(islice(kept, BATCH)):
        yield batch


def _present(value: Any) -> Any:
    """Remove null keys from nested objects; the result for an empty object is None."""
    if isinstance(value, dict):
        found = ((key, _present(one)) for key, one in value.items())
        return {key: one for key, one in found if one is not None} or None
    return list(map(_present, value)) if isinstance(value, list) else value
