"""The rollout log, the primary record of a run: one Parquet file per step, one row per completion.

A shard is the file of one step in the rollout log. The shard of a step is written before the
optimizer update of the step. After the update, a background thread rewrites the shard with the
learner's log-probabilities, values and advantages. Floats and tokens are restored from the log bit
for bit. `SampledLog` stores the completions of a step before the shard of the step is written.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from assay.host.files import disk_full_as, write_atomic
from assay.host.records import as_object, check_regular, checked
from assay.host.removal import remove_file
from assay.run.rollout_schema import (
    ADDED_IN,
    DERIVED,
    SCHEMA,
    SCHEMA_VERSION,
    learned_columns,
    recorded_columns,
    restore,
)
from assay.run.sampled_log import SampledLog
from assay.types import Group, Problem, Verdict

_VERSION = b"assay.version"
_PUT_BACK = b"assay.put_back"
_DAMAGE = (OSError, pa.ArrowException, ValueError, TypeError, LookupError)
"""Exceptions that reading a damaged shard may raise."""
_REPEATING = [field.name for field in SCHEMA if field.type in (pa.string(), pa.int32(), pa.int64())]


class Recorded(NamedTuple):
    """Contents of a shard: the groups, and the verdicts of each group's completions."""

    groups: list[Group]
    verdicts: list[tuple[Verdict, ...]]


class PutBack(NamedTuple):
    """Problems whose groups a step canceled, so that a later step samples them again.

    groups: ids of the canceled groups. tokens: number of tokens in the canceled groups.
    """

    groups: Sequence[str]
    tokens: int

    def metrics(self) -> dict[str, float]:
        """Return the counts as metrics."""
        return {
            "oversample/groups": float(len(self.groups)),
            "oversample/tokens": float(self.tokens),
        }


class RolloutLog:
    """The shards of a run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sampled = SampledLog(folder, self._write_sampled, _read_sampled)
        self._open: tuple[int, pa.Table] | None = None
        # The second write of a shard runs in the background while the next step is sampled.
        # A single thread writes all shards, which keeps the writes in order.
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="rollout-log")
        self._pending: Future[None] | None = None
        self._pending_step = 0

    def path(self, step: int) -> Path:
        """Return the path of the shard of a step. The shard may not exist."""
        return self.folder / f"step-{step:06d}.parquet"

    def steps(self) -> list[int]:
        """Return the steps that have a shard, in ascending order."""
        numbers = (path.stem.removeprefix("step-") for path in self.folder.glob("step-*.parquet"))
        return sorted(int(number) for number in numbers if number.isdecimal())

    def record(
        self,
        step: int,
        groups: Sequence[Group],
        verdicts: Sequence[Sequence[Verdict]],
        sampling: Mapping[str, Any],
        verifier_hashes: Mapping[str, str],
        put_back: PutBack | None = None,
    ) -> None:
        """Write the shard of a step to disk. put_back: canceled problems of the step, which are
        stored in the metadata of the shard."""
        self.flush()
        columns = recorded_columns(step, groups, verdicts, sampling, verifier_hashes)
        about = {_VERSION: str(SCHEMA_VERSION).encode()}
        if put_back is not None:
            about[_PUT_BACK] = json.dumps(put_back._asdict()).encode()
        table = pa.table(columns, schema=SCHEMA.with_metadata(about))
        self._write(self.path(step), table)
        self.sampled.recorded(step, [group.id for group in groups])
        self._open = (step, table)

    def complete(self, step: int, batch: Any, advantages_T: Any) -> None:
        """Add the columns that the learner computes to the shard of a step, in the background.

        batch: object with the tensors or arrays ``length_R``, ``row_T`` (row of each token,
        ascending), ``old_logprobs_T``, ``ref_logprobs_T`` and ``values_T``. The last two of these
        tensors may be None. The tokens of the batch are in the order of the recorded groups. In
        rows after those of the batch, the learner's columns stay null.
        """
        assert self._open is not None and self._open[0] == step, f"step {step} was not recorded"
        table = self._open[1]
        self._open = None
        learned = learned_columns(batch, advantages_T, table.column("tokens"))
        self._pending = self._writer.submit(self._write_completed, step, table, learned)
        self._pending_step = step

    def read(
        self, step: int, problem_of: Callable[[str], Problem] | None = None
    ) -> Recorded | None:
        """Read the groups and verdicts of a step; None if the step's shard is missing or damaged.

        problem_of: function from a problem id to the problem. Without this function, problems have
        only the logged fields: id, prompt text, tags and draw.
        """
        table = self.table(step)
        if table is None:
            return None
        try:
            groups, verdicts = restore(table)
        except _DAMAGE:
            return None
        if problem_of is not None:
            groups = [_with_problem(group, problem_of(group.problem.id)) for group in groups]
        return Recorded(groups, verdicts)

    def table(self, step: int) -> pa.Table | None:
        """Return all columns of a step's shard; None if the shard is missing or damaged."""
        if step == self._pending_step:
            self.flush()
        try:
            return _read_table(self.path(step))
        except _DAMAGE:
            return None

    def put_back(self, step: int) -> PutBack | None:
        """Return the problems whose groups a step canceled; None if the shard does not record
        them."""
        table = self.table(step)
        said = None if table is None else (table.schema.metadata or {}).get(_PUT_BACK)
        found = None if said is None else as_object(said)
        return None if found is None else checked(found, PutBack, str(self.path(step)))

    def discard_after(self, step: int) -> list[int]:
        """Remove the shards of all steps after ``step``; return these steps."""
        newer = [one for one in self.steps() if one > step]
        # The newest shard is removed first, so that a kill in between leaves no gap in the log.
        for one in reversed(newer):
            remove_file(self.path(one))
        self.sampled.discard_after(step)
        return newer

    def flush(self) -> None:
        """Wait for the background write. Raises the exception of an earlier write that failed in
        the background.
        """
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        """Wait for the background write of a shard, then end the writing thread."""
        try:
            self.flush()
        finally:
            self._writer.shutdown()

    def _write_completed(self, step: int, table: pa.Table, learned: Mapping[str, pa.Array]) -> None:
        for name, column in learned.items():
            table = table.set_column(SCHEMA.get_field_index(name), SCHEMA.field(name), column)
        self._write(self.path(step), table)

    def _write_sampled(
        self, path: Path, groups: Sequence[Group], verdicts: Sequence[Sequence[Verdict]]
    ) -> None:
        columns = recorded_columns(0, groups, verdicts, {}, {})
        about = {_VERSION: str(SCHEMA_VERSION).encode()}
        self._write(path, pa.table(columns, schema=SCHEMA.with_metadata(about)))

    def _write(self, path: Path, table: pa.Table) -> None:
        buffer = pa.BufferOutputStream()
        pq.write_table(
            table,
            buffer,
            compression="zstd",
            # Most bytes of a shard are log-probabilities, so higher compression levels save little.
            compression_level=1,
            use_dictionary=_REPEATING,  # pyright: ignore[reportArgumentType]
            # Column statistics would repeat two whole completions, the smallest and largest text.
            write_statistics=False,
            # Without checksums, a flipped bit often decodes to a different valid number.
            write_page_checksum=True,
        )
        with disk_full_as(lambda: f"{path}: the disk is full; the last checkpoint is usable"):
            self.folder.mkdir(exist_ok=True)
            write_atomic(path, memoryview(buffer.getvalue()))


def _read_sampled(path: Path) -> list[Group] | None:
    try:
        return restore(_read_table(path))[0]
    except _DAMAGE:
        return None


def _with_problem(group: Group, problem: Problem) -> Group:
    return replace(group, problem=replace(problem, draw=group.problem.draw))


def read_columns(path: Path, columns: Sequence[str]) -> list[dict[str, Any]] | None:
    """Read columns of a shard as dictionaries, one per completion; None for a damaged shard.

    columns: names of columns in `SCHEMA` or `DERIVED`.
    """
    stored = dict.fromkeys(DERIVED[name][0] if name in DERIVED else name for name in columns)
    try:
        table = _read_table(path, list(stored))
        found = [
            DERIVED[name][1](table.column(DERIVED[name][0]))
            if name in DERIVED
            else table.column(name).to_pylist()
            for name in columns
        ]
    except _DAMAGE:
        return None
    return [dict(zip(columns, row, strict=True)) for row in zip(*found, strict=True)]


def read_shard(path: Path, columns: Sequence[str]) -> pa.Table | None:
    """Read columns of a shard as a table; None if the shard is missing or damaged.

    A column that was added to the log after the version of the shard is null.
    """
    try:
        return _read_table(path, list(columns))
    except _DAMAGE:
        return None


def _read_table(path: Path, columns: list[str] | None = None) -> pa.Table:
    """Read columns of a shard.

    A column that a newer version of the log added is null in an older shard.
    """
    fields = SCHEMA if columns is None else pa.schema([SCHEMA.field(name) for name in columns])
    # A named pipe with the name of the shard would block the reader forever.
    check_regular(path)
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        written = file.schema_arrow
        about = written.metadata or {}
        version = int(about.get(_VERSION, b"1"))
        # After reading, columns that the version of the shard lacks are added as nulls.
        there = [name for name in fields.names if ADDED_IN.get(name, 0) <= version]
        table = file.read(columns=there, use_threads=False)
    if version > SCHEMA_VERSION or not table.schema.equals(pa.schema(map(fields.field, there))):
        raise ValueError(f"{path}: columns of another version")
    for name in set(fields.names) - set(there):
        field = fields.field(name)
        table = table.append_column(field, pa.nulls(table.num_rows, field.type))
    return table.select(fields.names)
