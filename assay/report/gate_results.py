"""Recorded results of `assay gate`, and text in Markdown tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from assay.host.records import read_record


class RecordedCheck(BaseModel):
    """One check of a recorded gate."""

    name: str
    found: str
    limit: str | None
    outcome: str


class RecordedGate(BaseModel):
    """Fields of a gate's result that pages show."""

    passed: bool
    model: str = ""
    against: str
    adapter: str | None = None
    checks: list[RecordedCheck]

    @property
    def failed(self) -> list[str]:
        """Names of the failed checks."""
        return [one.name for one in self.checks if one.outcome == "failed"]

    def table(self) -> Iterator[str]:
        """Yield the lines of a table of the checks."""
        yield from ("| check | found | required | |", "|---|---|---|---|")
        for check in self.checks:
            cells = (check.name, check.found, check.limit or "", check.outcome)
            yield f"| {' | '.join(map(cell, cells))} |"


def read_gate(run: Path, step: int) -> RecordedGate | None:
    """Return the newest result of the gate of a run's checkpoint; None without a gate."""
    return read_record(run / "gates" / f"step-{step:06d}.json", RecordedGate)


def read_gates(folder: Path) -> Iterator[tuple[str, RecordedGate]]:
    """Yield (name of the checkpoint, result) of each gate in a folder of results."""
    for path in sorted(folder.glob("step-*.json")):
        if (found := read_record(path, RecordedGate)) is not None:
            yield path.stem, found


def cell(value: Any) -> str:
    """Return a value as text for a cell of a table."""
    # A pipe or a line break in a value would break the Markdown table.
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return " ".join(text.replace("|", "\\|").split())


def code(text: str) -> str:
    """Return a text as code for a cell of a table."""
    return f"`{cell(text).replace('`', chr(39))}`"
