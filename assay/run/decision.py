"""The page ``decision.md`` of a run, which records why the run has its settings.

`assay.plan` writes the page before the run. Each end of the run appends the outcome, and a resume
with changed verifiers appends the changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from assay.run.evaluations import is_of_loss, lifts_of, of_loss, on_canaries, perplexity_words

DECISION = "decision.md"


def add_outcome(
    folder: Path,
    reason: str,
    step: int,
    num_steps: int | None,
    evaluations: Sequence[Mapping[str, Any]],
) -> None:
    """Append the outcome of a run to its decision page, if the page exists and is writable."""
    of = f" of {num_steps}" if num_steps is not None else ""
    _append(folder, f"{reason}, after step {step}{of}; {_accuracies(evaluations)}")


def add_change(folder: Path, step: int, changes: Sequence[str]) -> None:
    """Append the changes of verifiers with which a run continues to its decision page.

    Results before and after a change are not comparable.
    """
    _append(folder, f"continued after step {step} with a changed reward: {'; '.join(changes)}")


def _append(folder: Path, text: str) -> None:
    try:
        # Mode "a" would create a missing page, which would contain the outcome but no decision.
        with (folder / DECISION).open("r+", encoding="utf-8") as file:
            file.seek(0, 2)
            file.write(f"- {datetime.now(UTC):%Y-%m-%d %H:%M} UTC: {text}\n")
    # The page may be missing.
    # The next write of the run reports a full disk, so this function does not.
    except OSError:
        return


def _accuracies(evaluations: Sequence[Mapping[str, Any]]) -> str:
    heldout = [row for row in evaluations if not on_canaries(row)]
    lifts, losses = lifts_of(heldout), of_loss(heldout)
    if losses:
        first, last = (f"held-out {perplexity_words(row)}" for row in (losses[0], losses[-1]))
        perplexity = f"{first}, before; {last}, at step {losses[-1]['step']}"
        rest = [row for row in heldout if not is_of_loss(row)]
        return f"{perplexity}; {_accuracies(rest)}" if lifts else perplexity
    if not lifts:
        return "no held-out problems"
    lift, accuracy = lifts[0], "held-out accuracy"
    if lift.first is lift.last:
        return f"{accuracy} {lift.before:.3f} at step {lift.first['step']} ({lift.kind})"
    summary = f"{accuracy} {lift.before:.3f} before, {lift.after:.3f} after ({lift.kind})"
    gain = lift.gain
    if gain is None:
        return summary
    return f"{summary}, gained {gain} over {gain.num_problems} problems, one by one"
