"""``assay run watch``: follow a run in a terminal, with the display of the command that trains it.

Only files of the run directory are read, so that a watched run is not disturbed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import ConsoleRenderable
from rich.text import Text

from assay.errors import RunError, message
from assay.host.terminal import escaped, one_line
from assay.report.loaded import READABLE
from assay.report.selection import Selection
from assay.report.viewer.opened import OpenedRun, Records
from assay.run.evaluations import accuracy_of, of_deciding_kind
from assay.run.progress import Progress, sparkline

Row = Mapping[str, Any]
POLL_SECONDS = 2.0
"""Seconds between two looks at the files of a run."""
_CURVES = (
    ("reward/mean", "reward"),
    ("verdict/passed", "passed"),
    ("entropy/mean", "entropy"),
    ("length/mean", "length"),
    ("loss/nll", "nll"),
)
_WIDTH = 48
"""Number of characters of a curve."""
_TEXT_LINES = 4
"""Number of lines that are shown of a completion: its last lines, which hold the answer."""
_NOTED = ("guard_note", "guard_pause", "guard_stop", "resumed", "rolled_back", "approved")


def watch(
    folder: Path | str,
    show: Callable[[str, Any], None] | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> str:
    """Follow a run until it ends, and return its last state, such as ``finished``.

    show: receives the rows of the run as a `Listener`, in place of the terminal. Raises RunError if
    the folder is not a run directory.
    """
    folder = Path(folder)
    if not (folder / "config.toml").is_file():
        found = "no run directory (it has no config.toml)"
        raise RunError(message(str(folder), found, "a run directory", "assay run list shows runs"))
    run = OpenedRun.of(str(folder))
    followed = _Followed()
    progress: Progress | None = None
    try:
        while True:
            records = run.records()
            if show is None and (progress is None or followed.is_behind(records)):
                # A rollback removes steps, so the display of these steps starts again.
                followed = _Followed()
                if progress is not None:
                    progress.close()
                progress = _progress(folder, records)
            if progress is not None:
                progress.below = [*_curves(records), *_completions(run)]
            for kind, row in followed.news(records):
                (show or progress or _ignore)(kind, row)
            state = records.listed.state
            if state != "running":
                break
            sleep(POLL_SECONDS)
    finally:
        if progress is not None:
            progress.close()
    why = records.listed.why
    # The reason of a finished run is its state again.
    return state if why in ("", state) else f"{state}: {why}"


def _ignore(kind: str, row: Row) -> None:
    """Show nothing."""


def _progress(folder: Path, records: Records) -> Progress:
    every = None if records.config is None else records.config.evaluation.every
    return Progress(one_line(str(folder)), records.listed.of_steps, evaluate_every=every)


class _Followed:
    """Number of rows of each file that were shown."""

    def __init__(self) -> None:
        self._shown = {"metrics": 0, "evaluations": 0, "events": 0}

    def is_behind(self, records: Records) -> bool:
        """Whether the run has fewer rows than were shown, because of a rollback."""
        return any(len(getattr(records, name)) < count for name, count in self._shown.items())

    def news(self, records: Records) -> Iterator[tuple[str, Row]]:
        """Yield the new rows of a run by step: its metrics, evaluations, and noted events."""
        found: list[tuple[int, int, str, Row]] = []
        for order, (name, count) in enumerate(self._shown.items()):
            rows: Sequence[Row] = getattr(records, name)
            for row in rows[count:]:
                if name != "events":
                    found.append((row["step"], order, name, row))
                elif row["kind"] in _NOTED:
                    words = str(row["kind"]).replace("_", " ")
                    reason = f": {row['reason']}" if row.get("reason") else ""
                    text = f"step {row.get('step') or 0}: {words}{reason}"
                    found.append((row.get("step") or 0, order, "notes", {"text": text}))
            self._shown[name] = len(rows)
        # The number of the file decides between rows of one step: a dictionary has no order.
        for _, _, name, row in sorted(found, key=lambda one: one[:2]):
            yield name, row


def _curves(records: Records) -> Iterator[ConsoleRenderable]:
    """Yield the curves of the whole run, one line each, with the first and the last value."""
    accuracies = [accuracy_of(row) for row in of_deciding_kind(records.evaluations)]
    named = [("held-out", [one for one in accuracies if one is not None])]
    for key, name in _CURVES:
        named.append((name, [row[key] for row in records.metrics if row.get(key) is not None]))
    for name, found in named:
        values = [value for value in found if math.isfinite(value)]
        if len(values) > 1:
            line = Text(f"{name:>8} ", "dim").append(sparkline(thinned(values, _WIDTH)), "green")
            yield line.append(f" {values[0]:.4g} to {values[-1]:.4g}", "dim")


def thinned(values: Sequence[float], count: int) -> list[float]:
    """Return at most ``count`` means of consecutive values."""
    if len(values) <= count:
        return list(values)
    return [float(np.mean(part)) for part in np.array_split(np.asarray(values, float), count)]


def _completions(run: OpenedRun) -> Iterator[ConsoleRenderable]:
    """Yield the last lines of the completions with the highest and the lowest reward of the newest
    step.
    """
    run.index.refresh(POLL_SECONDS / 2)
    if not run.index.table.num_rows:
        return
    step = int(run.index.table["step"][-1].as_py())
    for order in ("best", "worst"):
        places = Selection(order, step=step).places(run.index)
        for row in run.index.rows(places[:1].tolist(), READABLE):
            if row is None:
                continue
            facts = f"{order} of step {step}: {row['problem_id']}, reward {row['reward']:.4g}"
            yield Text(one_line(facts), "bold")
            lines = (row["text"] or "").strip().splitlines()
            yield Text(escaped("\n".join(lines[-_TEXT_LINES:])), overflow="ellipsis")
