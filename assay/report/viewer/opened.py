"""Open runs of the viewer.

The records of an open run are read again when a file of the run changes.

A damaged file raises no error here, unlike in `load_run`: its valid rows are shown, and
`Records.missing` lists the faults.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any

from assay.config import TrainConfig, load
from assay.errors import AssayError, cause
from assay.host.records import check_event, check_measures, whole_rows
from assay.host.terminal import warn
from assay.report.charts import Chart, make_charts
from assay.report.listing import ListedRun, is_locked, read_listed, run_folders
from assay.report.rollout_index import RolloutIndex
from assay.report.viewer.token_text import TokenTexts

_FILES = ("config.toml", "metrics.jsonl", "evaluations.jsonl", "events.jsonl", ".lock")
_MOST_FAULTS = 5

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Records:
    """The readable records of a run.

    version: text that changes with every change of the files. missing: descriptions of damaged or
    missing records.
    """

    listed: ListedRun
    config: TrainConfig | None
    metrics: Sequence[Row]
    evaluations: Sequence[Row]
    events: Sequence[Row]
    missing: Sequence[str]
    version: str

    @cached_property
    def charts(self) -> list[Chart]:
        """The charts of the report; empty if the records have wrong types."""
        # Rows of a damaged file may pass the checks and still fail in a chart.
        try:
            return make_charts(self)
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            warn(f"{self.listed.path}: no curves: {cause(error)}")
            return []


@dataclass
class OpenedRun:
    """An open run. key: path of the run directory, which identifies the run in URLs."""

    key: str
    folder: Path
    index: RolloutIndex
    tokens: TokenTexts
    _records: Records | None = None
    _lock: Lock = field(default_factory=Lock)

    @classmethod
    def of(cls, key: str) -> OpenedRun:
        """Open a run directory without reading it."""
        folder = Path(key)
        return cls(key, folder, RolloutIndex(folder / "rollouts"), TokenTexts(folder))

    def records(self) -> Records:
        """Return the records of the run.

        The records are read again if a file of the run has changed.
        """
        # The version is taken before the records are read.
        # A change during the read therefore causes another read.
        version = self._version()
        with self._lock:
            if self._records is None or self._records.version != version:
                self._records = _read(self.folder, version)
            return self._records

    def _version(self) -> str:
        found: list[str] = []
        for name in _FILES:
            try:
                seen = os.stat(self.folder / name)
            except OSError:
                found.append("-")
            else:
                found.append(f"{seen.st_mtime_ns:x}.{seen.st_size:x}")
        # A killed run changes no file: the operating system only releases its lock.
        found.append("running" if is_locked(self.folder) else "ended")
        return "_".join(found)


def _read(folder: Path, version: str) -> Records:
    missing: list[str] = []
    config = None
    try:
        config = load(folder / "config.toml")
    except (AssayError, OSError, ValueError) as error:
        missing.append(f"config.toml cannot be read: {cause(error)}")
    checks = {"metrics": check_measures, "evaluations": check_measures, "events": check_event}
    rows: dict[str, list[dict[str, Any]]] = {}
    for name, check in checks.items():
        rows[name], faults = whole_rows(folder / f"{name}.jsonl", check)
        missing += faults[:_MOST_FAULTS]
        if len(faults) > _MOST_FAULTS:
            missing.append(f"{name}.jsonl: {len(faults) - _MOST_FAULTS} more faults")
    return Records(read_listed(folder), config, **rows, missing=missing, version=version)


@dataclass
class OpenedRuns:
    """All runs of a viewer. places: run directories, and folders that contain runs."""

    places: Sequence[Path]
    _open: dict[str, OpenedRun] = field(default_factory=dict[str, OpenedRun])

    def keys(self) -> list[str]:
        """Return the keys of all runs that currently exist below `places`."""
        found: dict[str, None] = {}
        for place in self.places:
            if (place / "config.toml").is_file():
                found[str(place)] = None
            elif place.is_dir():
                found |= dict.fromkeys(map(str, run_folders(place)))
        return [*found]

    def listed(self) -> list[ListedRun]:
        """Return all runs for the list page, newest first."""
        rows = [read_listed(Path(key)) for key in self.keys()]
        return sorted(rows, key=lambda one: one.start, reverse=True)

    def get(self, key: str) -> OpenedRun | None:
        """Return the run with a key; None if no run below `places` has this key.

        An open run without a configuration file stays open while its folder exists.
        """
        if key in self._open and (self._open[key].folder).is_dir():
            return self._open[key]
        self._open.pop(key, None)
        # A URL must not open any other folder of the machine, so only listed keys are accepted.
        return self._open.setdefault(key, OpenedRun.of(key)) if key in self.keys() else None
