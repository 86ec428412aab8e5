"""The page ``decision.md`` of a run, which records why the run has its settings.

`assay.plan` writes the page before the run, and each end of the run appends the outcome.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from assay.run.evaluations import lifts_of, on_canaries, on_texts, perplexity_words

DECISION = "decision.md"


def add_outcome(
    folder: Path,
    reason: str,
    step: int,
    num_steps: int | None,
    evaluations: Sequence[Mapping[str, Any]],
) -> None:
    """Append the outcome of a run to its decision page, if the page exists and is writable."""
    line = f"- {datetime.now(UTC):%Y-%m-%d %H:%M} UTC: {reason}, after step {step}"
    line += f" of {num_steps}" if num_steps is not None else ""
    try:
        # Mode "a" would create a missing page, which would contain the outcome but no decision.
        with (folder / DECISION).open("r+", encoding="utf-8") as file:
            file.seek(0, 2)
            file.write(f"{line}; {_accuracies(evaluations)}\n")
    # The page may be missing.
    # The next write of the run reports a full disk, so this function does not.
    except OSError:
        return


def _accuracies(evaluations: Sequence[Mapping[str, Any]]) -> str:
    heldout = [row for row in evaluations if not on_canaries(row)]
    lifts, texts = lifts_of(heldout), on_texts(heldout)
    if texts:
        first, last = (f"held-out {perplexity_words(row)}" for row in (texts[0], texts[-1]))
        return f"{first}, before; {last}, at step {texts[-1]['step']}"
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
