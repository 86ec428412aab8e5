"""Output of a data transform: its rows, and a manifest that counts removed rows by filter."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, Field

from assay.config.section import Section, Text
from assay.data.completions import Record
from assay.data.rowset import RowSet, load_rows
from assay.data.source import UNREAD
from assay.data.sources import ROWS_FILES, JsonLines, open_source, rows_of
from assay.errors import DataError, DiskFull, RunError, message
from assay.host.files import is_disk_full, plain, sync_file, write_atomic
from assay.host.records import checked, read_record
from assay.host.removal import put_in_place, remove_file
from assay.host.terminal import lined

ROWS, MANIFEST = ROWS_FILES[0], "manifest.json"
MAX_EXAMPLES = 3
# Maximum number of characters of a text in a manifest's example.
SHOWN = 300

Row = dict[str, Any]


@dataclass
class Filter:
    """Rows that one filter removed. took: number of rows. examples: first rows, with reasons."""

    name: str
    took: int = 0
    examples: list[Row] = field(default_factory=list[Row])

    def __str__(self) -> str:
        first = f" (the first: {self.examples[0]['reason']})" if self.examples else ""
        return f"{self.name} took {self.took}{first}"


class _Input(BaseModel):
    source: str
    rows: int


@dataclass
class Manifest:
    """Record of one execution of a data transform.

    inputs: source, number of rows and sha256 of each input.
    rows: number of written rows.
    filters: number of removed rows of each filter, with examples.
    measured: statistics that the transform computes, such as pass rates.
    """

    stage: str
    settings: dict[str, Any]
    inputs: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    rows: int = 0
    filters: list[Filter] = field(default_factory=list[Filter])
    measured: dict[str, Any] = field(default_factory=dict[str, Any])
    seconds: float = 0.0
    out: str = ""

    @property
    def rows_read(self) -> int:
        """Number of rows in all inputs."""
        return sum(one["rows"] for one in self.inputs)

    def as_dict(self) -> dict[str, Any]:
        """Return the manifest as a dict of JSON values."""
        return plain(asdict(self))

    def __str__(self) -> str:
        lines = [f"{self.stage}: {self.rows} rows in {self.out}"]
        lines += [f"  {one['rows']} rows from {one['source']}" for one in self.inputs]
        lines += [f"  {each}" for each in self.filters]
        lines += [f"  {name}: {_words(value)}" for name, value in self.measured.items()]
        return lined(lines)


def read_manifest(path: Path) -> Manifest:
    """Read the manifest of a data transform. Raises RunError if the file is not a manifest."""
    found = read_record(path, Manifest)
    if found is None:
        accepted = f"the {MANIFEST} of a data transform"
        raise RunError(message(str(path), "no file", accepted))
    checked(found.inputs, list[_Input], f"{path} inputs")
    return found


class StageSettings(Section):
    """Common settings of all data transforms."""

    inputs: Annotated[tuple[Text, ...], Field(min_length=1)]
    """Sources of rows: files, ``hf:...``, ``gym:...``, or output folders of data transforms."""

    output: Literal["jsonl", "parquet"] = "jsonl"
    """Format of the output file: ``rows.jsonl`` or ``rows.parquet``. Parquet requires that all
    values of a key have the same type."""

    takes_runs: ClassVar[bool] = False
    """Whether an input may be a run directory, whose recorded rollouts are then read."""

    def most_written(self, num_read: int | None) -> int | None:
        """Return an upper bound on the number of written rows, or None if unknown."""
        return num_read


class Output(ExitStack):
    """Writes the rows of a data transform to disk and counts the removed rows.

        with Output("select", settings, folder) as out:
            for _, row in out.sift(out.open(settings.inputs), {"goodness": fault_of}):
                out.write(row.keys)
        return out.manifest

    At the end of the block, resources that were passed to ``enter_context`` are closed, the rows
    file gets its final name, and the manifest is written. After an error, the rows that were
    already written stay in ``rows.jsonl.part``.
    """

    def __init__(self, stage: str, settings: StageSettings, folder: Path) -> None:
        super().__init__()
        self.manifest = Manifest(stage, settings.model_dump(mode="json"), out=str(folder))
        self.folder, self.output = folder, settings.output
        self._part = folder / f"{ROWS}.part"
        self._filters: dict[str, Filter] = {}
        self._started = time.monotonic()

    def __enter__(self) -> Output:
        # Rows are written to a .part file, so that rows.jsonl marks a finished transform.
        self._file = self._part.open("wb")
        return self

    def open(
        self,
        sources: Sequence[str],
        check: Callable[[Record], object] | None = None,
        role: str = "",
        **how: Any,
    ) -> RowSet[Record]:
        """Open sources, validate all rows, and record each source's number of rows and hash.

        check, how: as in `load_rows`.
        role: "" for inputs; for reference rows, the name of the setting, such as ``against``.

        Every access to a row reads the row from its source again.
        """
        rows = load_rows("rows", Record.read, [rows_of(one) for one in sources], check=check, **how)
        for name, count in rows.counts():
            # The hash in a model's lineage shows whether an input file was changed later.
            entry = {"source": name, "rows": count, "sha256": content_hash(name)}
            if role:
                found = f"{count} rows, sha256 {entry['sha256']}"
                self.manifest.measured[f"{role} {name}"] = found
            else:
                self.manifest.inputs.append(entry)
        return rows

    def write(self, row: Mapping[str, Any]) -> None:
        """Append a row to the output file."""
        self._file.write(_line(row))
        self.manifest.rows += 1

    def flush(self) -> None:
        """Flush the written rows to the operating system, so that a kill loses none of them."""
        self._file.flush()

    def add_filters(self, *names: str) -> None:
        """Declare filters in the manifest's order, so that filters without removed rows appear."""
        for name in names:
            self._filters.setdefault(name, Filter(name))

    def take(self, name: str, row: Mapping[str, Any], reason: str) -> None:
        """Count a removed row of the filter ``name``; the first few rows are kept as examples."""
        self.add_filters(name)
        found = self._filters[name]
        found.took += 1
        if len(found.examples) < MAX_EXAMPLES:
            shown = {key: _shown(value) for key, value in row.items()}
            found.examples.append({"reason": reason, "row": shown})

    def sift(
        self, rows: Iterable[Record], filters: Mapping[str, Callable[[Record], str]]
    ) -> Iterator[tuple[int, Record]]:
        """Yield (index, row) for the rows that all filters keep.

        filters: function by name that returns the reason for removal, or "" to keep the row. A
        removed row is counted under the first filter that removes it.
        """
        self.add_filters(*filters)
        for index, row in enumerate(rows):
            for name, fault_of in filters.items():
                if fault := fault_of(row):
                    self.take(name, row.keys, fault)
                    break
            else:
                yield index, row

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: Any) -> None:
        super().__exit__(kind, error, trace)
        try:
            self._file.close()
            if kind is None:
                self._finish()
        except OSError as late:
            error = late
            raise
        finally:
            is_full = error is not None and is_disk_full(error)
            # On a full disk, the last line is usually incomplete.
            # The rows before the last line may have cost hours of sampling, so they are kept.
            kept = _keep_whole_lines(self._part) if is_full else self.manifest.rows
            if not kept:
                remove_file(self._part)
            if is_full:
                kept_words = f"{kept} rows are in {self._part}" if kept else "no row was written"
                raise DiskFull(f"{self._part}: the disk is full; {kept_words}") from error

    def _finish(self) -> None:
        manifest = self.manifest
        manifest.filters = list(self._filters.values())
        if not manifest.rows:
            took = "; ".join(str(each) for each in manifest.filters if each.took)
            where, found = f"{manifest.stage} {self.folder}", f"no row left of {manifest.rows_read}"
            raise DataError(message(where, found, "at least one row", took))
        manifest.seconds = round(time.monotonic() - self._started, 3)
        if self.output == "parquet":
            self._to_parquet()
        # The file is synced before the rename.
        # Without the sync, a power failure could leave incomplete content under the final name.
        sync_file(self._part)
        put_in_place(self._part, self.folder / rows_name(self.output))
        # The manifest is written last, so a folder with a manifest contains all rows.
        text = json.dumps(manifest.as_dict(), ensure_ascii=False, indent=1)
        write_atomic(self.folder / MANIFEST, f"{text}\n".encode(errors="replace"))

    def _to_parquet(self) -> None:
        """Convert the rows to Parquet. If the conversion fails, the JSON Lines file is kept."""
        from assay.data.parquet import write_parquet

        # Parquet needs a schema before the first row, so rows are collected as JSON Lines first.
        lines, file = JsonLines(str(self._part)), self.folder / f"{rows_name('parquet')}.part"
        try:
            write_parquet(lambda: (lines.parse(raw, "") for _, _, raw in lines.scan()), file)
        except BaseException as error:
            remove_file(file)
            if isinstance(error, DataError):
                where = f"{self.manifest.stage} {self.folder}"
                kept = f'remove output = "parquet"; the rows are in {self._part}'
                raise DataError(f"{where} {error}; {kept}") from error
            raise
        remove_file(self._part)
        self._part = file


def rows_name(output: str) -> str:
    """Return the file name of a transform's rows for an ``output`` format."""
    return f"rows.{output}"


def is_run(source: str) -> bool:
    """Whether a source is a run directory."""
    return (Path(source) / "config.toml").is_file()


def content_hash(name: str) -> str:
    """Return the sha256 of a file's bytes, or of the rows of any other source."""
    if Path(name).is_file():
        with open(name, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    source, digest = open_source(name), hashlib.sha256()
    for position, _, raw in source.scan():
        digest.update(_line({"row": source.fetch(position) if raw is UNREAD else raw}))
    return digest.hexdigest()


def _keep_whole_lines(path: Path) -> int:
    """Truncate a file after its last complete line, and return the number of lines."""
    count = end = 0
    with path.open("rb+") as file:
        for line in file:
            if line.endswith(b"\n"):
                count, end = count + 1, end + len(line)
        file.truncate(end)
    return count


def _line(row: Mapping[str, Any]) -> bytes:
    try:
        text = json.dumps(row, ensure_ascii=False, allow_nan=False, default=plain)
    except ValueError:
        # The row contains NaN or infinity, which JSON cannot represent; `plain` replaces both.
        text = json.dumps(plain(row), ensure_ascii=False, allow_nan=False)
    try:
        return f"{text}\n".encode()
    except UnicodeEncodeError:
        # A text contains an unpaired surrogate, which UTF-8 cannot encode; \u escapes can.
        return f"{json.dumps(plain(row), allow_nan=False)}\n".encode()


def _shown(value: Any) -> Any:
    text = value if isinstance(value, str) else json.dumps(plain(value), ensure_ascii=False)
    return value if len(text) <= SHOWN else f"{text[:SHOWN]}... ({len(text)} characters)"


def _words(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
