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
from assay.report.charts import MARKED
from assay.report.loaded import READABLE
from assay.report.rollout_index import RolloutIndex
from assay.report.selection import Selection
from assay.report.viewer.opened import OpenedRun, Records
from assay.run.evaluations import accuracy_of, of_deciding_kind
from assay.run.progress import Progress, sparkline
from assay.run.rollout_log import RolloutLog

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
_TEXT_LINES, _TEXT_SIZE = 4, 400
"""Maximum numbers of lines and characters that are shown of a completion."""
_NOTED = (*MARKED, "approved")


def watch(
    folder: Path | str,
    show: Callable[[str, Any], None] | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> str:
    """Follow a run until it ends, and return its last state, such as ``finished``.

    show: receives the rows of the run as a `Listener`, in place of the terminal. Raises RunError if
    the folder is not a readable run directory.
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
            started = time.monotonic()
            records = run.records()
            if show is None and (progress is None or followed.is_behind(records)):
                # A rollback removes steps, so the display of these steps starts again.
                followed = _Followed()
                if progress is not None:
                    progress.close()
                progress = _progress(folder, records)
            for kind, row in followed.news(records):
                (show or progress or _ignore)(kind, row)
            listed = records.listed
            if progress is not None:
                below = [*_curves(records), *_completions(run, followed)]
                progress.show_below(below)
                if listed.state != "running" and not progress.console.is_terminal:
                    progress.console.print(*below, sep="\n")
            if listed.state == "unreadable":
                raise RunError(message(str(folder), listed.why, "a readable run"))
            if listed.state != "running":
                break
            # All rows are read again after each step. A long run is looked at less often, so that
            # reading takes at most a tenth of a core.
            sleep(max(POLL_SECONDS, 9 * (time.monotonic() - started)))
    finally:
        if progress is not None:
            progress.close()
    # The reason of a finished run is its state again.
    return listed.state if listed.why in ("", listed.state) else f"{listed.state}: {listed.why}"


def _ignore(kind: str, row: Row) -> None:
    """Show nothing."""


def _progress(folder: Path, records: Records) -> Progress:
    every = None if records.config is None else records.config.evaluation.every
    num_steps = records.listed.of_steps
    return Progress(one_line(str(folder)), num_steps, evaluate_every=every, transient=False)


class _Followed:
    """The rows of each file that were shown, and the faults that were reported."""

    def __init__(self) -> None:
        self._shown = {"metrics": 0, "evaluations": 0, "events": 0}
        self._last: dict[str, Row] = {}
        self._faults: set[str] = set()

    def is_behind(self, records: Records) -> bool:
        """Whether rows that were shown are no longer in the run, because of a rollback."""
        for name, count in self._shown.items():
            rows: Sequence[Row] = getattr(records, name)
            if len(rows) < count or (count and rows[count - 1] != self._last[name]):
                return True
        return False

    def news(self, records: Records) -> Iterator[tuple[str, Row]]:
        """Yield the new rows of a run by step: its metrics, evaluations, and noted events."""
        for fault in records.missing:
            yield from self.fault(fault)
        found: list[tuple[int, int, str, Row]] = []
        for order, (name, count) in enumerate(self._shown.items()):
            rows: Sequence[Row] = getattr(records, name)
            for row in rows[count:]:
                self._last[name] = row
                if name != "events":
                    found.append((row["step"], order, name, row))
                elif row["kind"] in _NOTED:
                    words = str(row["kind"]).replace("_", " ")
                    reason = f": {row['reason']}" if row.get("reason") else ""
                    text = f"step {row.get('step') or 0}: {words}{reason}"
                    found.append((row.get("step") or 0, order, "notes", {"text": text}))
            self._shown[name] = len(rows)
        # Rows of one step keep the order of the files: a dictionary cannot be compared.
        for _, _, name, row in sorted(found, key=lambda one: one[:2]):
            yield name, row

    def fault(self, text: str) -> Iterator[tuple[str, Row]]:
        """Yield a note on damaged or missing records, unless it was reported before."""
        if text not in self._faults:
            self._faults.add(text)
            yield "notes", {"text": f"warning: {text}"}


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


def _completions(run: OpenedRun, followed: _Followed) -> Iterator[ConsoleRenderable]:
    """Yield the end of the completions with the highest and the lowest reward of the newest step
    with readable rollouts.
    """
    steps = RolloutLog(run.folder / "rollouts").steps()
    # The last shard may be damaged, or written at this moment.
    for step in reversed(steps[-2:]):
        index = RolloutIndex(run.folder / "rollouts", [step])
        index.refresh()
        for path in index.damaged:
            yield from (Text(row["text"]) for _, row in followed.fault(f"{path}: a damaged file"))
        if not index.table.num_rows:
            continue
        for order in ("best", "worst"):
            places = Selection(order).places(index)
            for row in index.rows(places[:1].tolist(), READABLE):
                if row is not None:
                    facts = f"{order} of step {step}: {row['problem_id']}"
                    yield Text(one_line(f"{facts}, reward {row['reward']:.4g}"), "bold")
                    yield Text(escaped(_end((row["text"] or "").strip())))
        return


def _end(text: str) -> str:
    """Return the last lines of a text, which hold the answer."""
    shown = "\n".join(text.splitlines()[-_TEXT_LINES:])
    return shown if len(shown) <= _TEXT_SIZE else f"...{shown[-_TEXT_SIZE:]}"
