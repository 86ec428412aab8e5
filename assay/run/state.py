"""Progress and outcome of a run, read from the files in the run directory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from assay.errors import AssayError
from assay.host.files import config_of
from assay.host.records import read_events, read_step_rows


def why_ended(events: Sequence[Mapping[str, Any]]) -> str | None:
    """Return why a run ended; None if the run is still in progress or was killed."""
    # A resumed run has ends of earlier starts in its events, so the newest start or end decides.
    for event in reversed(events):
        if event.get("kind") == "ended":
            return str(event.get("reason"))
        if event.get("kind") == "rolled_back":
            return f"rolled back to step {event.get('step')} by {event.get('who')}"
        if event.get("kind") in ("created", "resumed"):
            return None
    return None


def how_far(num_steps: int, ended: str | None) -> str:
    """Describe the progress and outcome of a run, such as ``ended after 20 steps: finished``."""
    # A running and a killed process leave equal journals, so the text mentions both.
    after = f"after {num_steps} steps"
    return f"runs, or was killed, {after}" if ended is None else f"ended {after}: {ended}"


def state_of(folder: Path) -> str:
    """Describe the run in a folder as a noun phrase; the folder may also contain no run."""
    try:
        config_of(folder)
        rows = read_step_rows(folder / "metrics.jsonl")
        events = read_events(folder / "events.jsonl")
    except AssayError:
        return "a folder that is not a readable run"
    return f"a run that {how_far(int(rows[-1]['step']) if rows else 0, why_ended(events))}"
