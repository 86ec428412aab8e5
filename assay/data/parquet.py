"""Parquet files: read row group by row group, never whole."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from assay.data.source import Source
from assay.errors import DataError, cause

CACHE_BYTES = 256 * 2**20


class ParquetRows(Source):
    """The rows of a Parquet file. Recent row groups stay in memory."""

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
        """Yield (index, row number from 1, row)."""
        index = 0
        try:
            with pq.ParquetFile(self.label) as file:
                for batch in file.iter_batches(batch_size=1024):
                    for row in batch.to_pylist():
                        yield index, index + 1, row
                        index += 1
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{self.label}:{index + 1}: cannot be read ({cause(error)})") from error

    def fetch(self, position: int) -> Any:
        """Return the row at an index."""
        group = int(np.searchsorted(self._starts, position, side="right")) - 1
        offset = position - int(self._starts[group])
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
            while len(self._cache) > 1 and self._cached_bytes() > CACHE_BYTES:
                self._cache.popitem(last=False)
        self._cache.move_to_end(number)
        return self._cache[number]

    def _cached_bytes(self) -> int:
        return sum(table.nbytes for table in self._cache.values())
