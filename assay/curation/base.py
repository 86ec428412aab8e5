"""What every data stage shares: its settings, its input rows, its output and the manifest."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from textwrap import indent
from typing import Annotated, Any

from pydantic import Field

from assay.config import field_help, holds_text, read_section
from assay.config.section import Section, Text
from assay.data.rows import copy_row
from assay.data.rowset import RowSet, load_rows
from assay.data.source import UNREAD
from assay.data.sources import open_source
from assay.errors import ConfigError, DataError, DiskFull, RunError, message, nearest
from assay.run.files import check_folder, is_disk_full, plain, sync_file, write_atomic
from assay.toml_text import apply_override

STAGES = {
    "collect": "assay.curation.collect",
    "select": "assay.curation.selection",
    "rewrite": "assay.curation.rewrite",
    "label_difficulty": "assay.curation.difficulty",
    "filter": "assay.curation.problem_filter",
    "tag": "assay.curation.tag",
    "balance": "assay.curation.balance",
    "deduplicate": "assay.curation.deduplicate",
    "decontaminate": "assay.curation.decontaminate",
    "mix": "assay.curation.mix",
    "vary": "assay.curation.vary",
    "pairs": "assay.curation.pairs",
}
"""The module of each data stage, imported when it is used; its ``STAGE`` is a `DataStage`."""
ROWS, MANIFEST = "rows.jsonl", "manifest.json"
MAX_EXAMPLES = 3
SHOWN = 300  # characters of a text in an example

Row = dict[str, Any]


class StageSettings(Section):
    """What every data stage reads."""

    inputs: Annotated[tuple[Text, ...], Field(min_length=1)]
    """Sources of rows: files, ``hf:...``, ``gym:...``, or folders that a data stage has written."""


@dataclass(frozen=True)
class DataStage:
    """One kind of data stage. run: reads the inputs, writes rows and manifest into a new folder.

    The first line of the settings' docstring says what the stage does.
    """

    name: str
    settings: type[StageSettings]
    run: Callable[[Any, Path], Manifest]

    @property
    def about(self) -> str:
        return (self.settings.__doc__ or "").partition("\n")[0]


@dataclass
class Filter:
    """What one filter took: how many rows, and the first of them, each with the reason."""

    name: str
    took: int = 0
    examples: list[Row] = field(default_factory=list[Row])


@dataclass
class Manifest:
    """What a data stage did. inputs: source, rows and sha256 of each. rows: of the output.

    measured: whatever else the stage found, as pass rates.
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
        """The rows of all inputs."""
        return sum(one["rows"] for one in self.inputs)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return plain(asdict(self))

    def __str__(self) -> str:
        read = "".join(f"\n  {one['rows']} rows from {one['source']}" for one in self.inputs)
        took = "".join(
            f"\n  {each.name} took {each.took}{_first_reason(each)}" for each in self.filters
        )
        found = "".join(f"\n  {name}: {_words(value)}" for name, value in self.measured.items())
        return f"{self.stage}: {self.rows} rows in {self.out}{read}{took}{found}"


def read_manifest(path: Path) -> Manifest:
    """Read a manifest that a stage has written; raises RunError where it is none."""
    try:
        found = json.loads(path.read_bytes())
        return Manifest(**{**found, "filters": [Filter(**each) for each in found["filters"]]})
    except (OSError, ValueError, TypeError, KeyError) as error:
        accepted = f"the {MANIFEST} of a data stage"
        raise RunError(message(str(path), "no manifest that can be read", accepted)) from error


def find_stage(name: str) -> DataStage:
    """Return the data stage of a name; raises ConfigError where there is none."""
    if name not in STAGES:
        near = nearest(name, STAGES)
        remedy = f'did you mean "{near[0]}"?' if near else ""
        raise ConfigError(message("data stage", f'"{name}"', ", ".join(STAGES), remedy))
    return import_module(STAGES[name]).STAGE


def read_settings(
    name: str,
    tree: Mapping[str, Any],
    where: str = "",
    lines: Mapping[str, int] | None = None,
    overridden: Collection[str] = (),
) -> Any:
    """Return a stage's validated settings; raises ConfigError, one line a complaint.

    where, lines, overridden: as `assay.config.parse` has them.
    """
    return read_section(find_stage(name).settings, tree, where or name, lines, overridden)


def run_stage(name: str, tree: Mapping[str, Any] | StageSettings, folder: Path | str) -> Manifest:
    """Run a data stage into a new folder; return its manifest.

    tree: its settings, validated or not. Raises UserError where the input is wrong; then no folder
    is left behind. What a stage that was killed has written is in ``rows.jsonl.part``.
    """
    stage, folder = find_stage(name), Path(folder)
    settings = read_settings(name, tree) if isinstance(tree, Mapping) else tree
    check_new(folder)
    folder.mkdir(parents=True)
    try:
        return stage.run(settings, folder)
    finally:
        with suppress(OSError):
            folder.rmdir()  # where nothing was written


def check_new(folder: Path) -> None:
    """Raise RunError where a stage's folder is there already, or cannot be made."""
    check_folder(folder.parent, "--out")
    if not os.path.lexists(folder):
        return
    found = "a folder that exists" if folder.is_dir() else "a file"
    if (folder / f"{ROWS}.part").exists():
        found = f"the folder of a stage that did not end; its rows are in {ROWS}.part"
    remedy = "remove it, or choose another"
    raise RunError(message(f"--out {folder}", found, "a new folder", remedy))


def read_row(row: Any, where: str, default_id: str) -> Row:
    """Return a row as it stands, less its null keys; a row without an id gets one."""
    copy = copy_row(row, where)
    copy.setdefault("id", default_id)
    return copy


class Output:
    """The rows of a stage on their way to disk, one by one, and the count of those taken.

        with Output("select", settings, folder) as out:
            for row in out.open(settings.inputs):
                if is_good(row):
                    out.write(row)
                else:
                    out.take("goodness", row, "it is not good")
        return out.manifest

    At the end of the block the rows get their name and the manifest is written. An error leaves
    the rows that were written in ``rows.jsonl.part``, if there are any.
    """

    def __init__(self, stage: str, settings: Section, folder: Path) -> None:
        self.manifest = Manifest(stage, settings.model_dump(mode="json"), out=str(folder))
        self.folder = folder
        self.path = folder / ROWS
        self._part = folder / f"{ROWS}.part"
        self._filters: dict[str, Filter] = {}
        self._started = time.monotonic()

    def __enter__(self) -> Output:
        self._file = self._part.open("wb")
        return self

    def open(
        self,
        sources: Sequence[str],
        read: Callable[[Any, str, str], Any] = read_row,
        role: str = "",
        **how: Any,
    ) -> RowSet[Any]:
        """Open inputs, validate all their rows, and note how many they are, and their hash.

        Rows are read again whenever they are asked for. read, how: as `load_rows` has them. role:
        of rows that others are held against, as ``against``; they are no inputs.
        """
        rows = load_rows("rows", read, [rows_of(one) for one in sources], **how)
        for name, count in rows.counts():
            entry = {"source": name, "rows": count, "sha256": content_hash(name)}
            if role:
                found = f"{count} rows, sha256 {entry['sha256']}"
                self.manifest.measured[f"{role} {name}"] = found
            else:
                self.manifest.inputs.append(entry)
        return rows

    def write(self, row: Mapping[str, Any]) -> None:
        """Write a row."""
        self._file.write(_line(row))
        self.manifest.rows += 1

    def flush(self) -> None:
        """Hand what was written to the system, so that it outlives this process."""
        self._file.flush()

    def add_filters(self, *names: str) -> None:
        """Name filters in the order in which the manifest lists them, also if they take nothing."""
        for name in names:
            self._filters.setdefault(name, Filter(name))

    def take(self, name: str, row: Mapping[str, Any], reason: str) -> None:
        """Count a row that a filter took, and keep the first few as examples."""
        self.add_filters(name)
        found = self._filters[name]
        found.took += 1
        if len(found.examples) < MAX_EXAMPLES:
            shown = {key: _shown(value) for key, value in row.items()}
            found.examples.append({"reason": reason, "row": shown})

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: object) -> None:
        try:
            self._file.close()
            if kind is None:
                self._finish()
        except OSError as late:
            error = late
            raise
        finally:
            if not self.manifest.rows:
                self._part.unlink(missing_ok=True)
            if error is not None and is_disk_full(error):
                kept = f"{self.manifest.rows} rows are in {self._part}"
                raise DiskFull(f"{self._part}: the disk is full; {kept}") from error

    def _finish(self) -> None:
        manifest = self.manifest
        manifest.filters = list(self._filters.values())
        if not manifest.rows:
            took = [
                f"{each.name} took {each.took}{_first_reason(each)}"
                for each in manifest.filters
                if each.took
            ]
            where, found = f"{manifest.stage} {self.folder}", f"no row left of {manifest.rows_read}"
            raise DataError(message(where, found, "at least one row", "; ".join(took)))
        manifest.seconds = round(time.monotonic() - self._started, 3)
        sync_file(self._part)
        os.replace(self._part, self.path)
        text = json.dumps(manifest.as_dict(), ensure_ascii=False, indent=1)
        write_atomic(self.folder / MANIFEST, f"{text}\n".encode(errors="replace"))


def rows_of(source: str) -> str:
    """Return the file of rows of a data stage's folder; other names as they are."""
    folder = Path(source)
    if not folder.is_dir():
        return source
    if (folder / ROWS).is_file():
        return str(folder / ROWS)
    part = folder / f"{ROWS}.part"
    if part.is_file():
        found = "the folder of a data stage that did not end"
        raise DataError(message(source, found, "a finished one", f"or name {part}"))
    return source


def content_hash(name: str) -> str:
    """Return the sha256 of a file's bytes, or of the rows of any other source."""
    if Path(name).is_file():
        with open(name, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    source, digest = open_source(name), hashlib.sha256()
    for position, _, raw in source.scan():
        digest.update(_line({"row": source.fetch(position) if raw is UNREAD else raw}))
    return digest.hexdigest()


def settings_of(name: str, inputs: Sequence[str], overrides: Sequence[str]) -> Any:
    """Return a stage's settings from the words of a command; raises ConfigError."""
    model = find_stage(name).settings
    tree: dict[str, Any] = {"inputs": list(inputs)} if inputs else {}
    has_text = partial(holds_text, model=model)
    overridden = [apply_override(tree, override, has_text) for override in overrides]
    return read_settings(name, tree, f"assay data {name}", overridden=overridden)


def describe_stages() -> str:
    """Return one line a data stage: its name and what it does."""
    return "\n".join(f"{name:<18}{find_stage(name).about}" for name in STAGES)


def describe_settings(name: str) -> str:
    """Return what a data stage does, and each of its settings in a paragraph."""
    stage = find_stage(name)
    parts = [inspect.cleandoc(stage.settings.__doc__ or "")]
    for key, kind, default, text in field_help(stage.settings):
        parts.append(f"{key}: {kind}; default: {default}\n{indent(text, '    ')}")
    return "\n\n".join(parts)


def _line(row: Mapping[str, Any]) -> bytes:
    try:
        text = json.dumps(row, ensure_ascii=False, allow_nan=False, default=plain)
    except ValueError:  # not a number
        text = json.dumps(plain(row), ensure_ascii=False, allow_nan=False)
    try:
        return f"{text}\n".encode()
    except UnicodeEncodeError:  # half a surrogate pair
        return f"{json.dumps(plain(row), allow_nan=False)}\n".encode()


def _shown(value: Any) -> Any:
    text = value if isinstance(value, str) else json.dumps(plain(value), ensure_ascii=False)
    return value if len(text) <= SHOWN else f"{text[:SHOWN]}... ({len(text)} characters)"


def _first_reason(found: Filter) -> str:
    return f" (the first: {found.examples[0]['reason']})" if found.examples else ""


def _words(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
