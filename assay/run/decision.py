"""``decision.md`` of a run: written as it begins (by `assay.plan`), with a line more for each of its ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from assay.run.metrics import accuracy_of, gain_between, kind_of

DECISION = "decision.md"


def add_outcome(
    folder: Path,
    reason: str,
    step: int,
    num_steps: int | None,
    evaluations: Sequence[Mapping[str, Any]],
) -> None:
    """Add how a run ended to its decision, where it has one that can be written."""
    line = f"- {datetime.now(UTC):%Y-%m-%d %H:%M} UTC: {reason}, after step {step}"
    line += f" of {num_steps}" if num_steps is not None else ""
    try:
        with (folder / DECISION).open("r+", encoding="utf-8") as file:
            file.seek(0, 2)
            file.write(f"{line}{_accuracies(evaluations)}\n")
    except OSError:  # it has none, or the disk is full, which the run itself says
        return


def _accuracies(evaluations: Sequence[Mapping[str, Any]]) -> str:
    """Return the held-out accuracy of the first and the last evaluation of the first kind."""
    known = [row for row in evaluations if accuracy_of(row) is not None]
    same = [row for row in known if kind_of(row) == kind_of(known[0])]
    if not same:
        return "; nothing was held out"
    first, last = same[0], same[-1]
    before, after = accuracy_of(first), accuracy_of(last)
    if first is last:
        return f"; held-out accuracy {before:.3f} at step {first['step']} ({kind_of(first)})"
    gain = gain_between(first, last)
    gained = (
        "" if gain is None else f", gained {gain} over {gain.num_problems} problems, one by one"
    )
    return f"; held-out accuracy {before:.3f} before, {after:.3f} after ({kind_of(first)}){gained}"
