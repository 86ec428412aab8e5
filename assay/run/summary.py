"""What a run came to, read from its directory: also of one that still runs, or was killed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from assay.config import TrainConfig, load
from assay.errors import RunError
from assay.run.environment import read_environment
from assay.run.evaluations import Row
from assay.run.files import read_events, read_step_rows


@dataclass(frozen=True, slots=True)
class Summary:
    """A run's rows, and the figures that head its report."""

    folder: Path
    config: TrainConfig
    environment: Row
    metrics: Sequence[Row]
    evaluations: Sequence[Row]
    events: Sequence[Row]

    @property
    def num_steps(self) -> int:
        """Steps that are finished."""
        return int(self.metrics[-1]["step"]) if self.metrics else 0

    @property
    def seconds(self) -> float:
        """Wall time of all sessions, from the run's creation to its last finished step."""
        return float(self.metrics[-1].get("time/elapsed") or 0.0) if self.metrics else 0.0

    @property
    def num_tokens(self) -> int:
        """Tokens generated (or trained on, where nothing is generated)."""
        counts = (row.get("tokens/generated") or row.get("tokens/trained") for row in self.metrics)
        return int(sum(count or 0 for count in counts))

    @property
    def ended(self) -> str | None:
        """Why the run ended; None where it still runs, or was killed."""
        for event in reversed(self.events):
            if event.get("kind") == "ended":
                return str(event.get("reason"))
            if event.get("kind") in ("created", "resumed"):
                return None
        return None


def summarize(folder: Path | str) -> Summary:
    """Read a run's directory; raises RunError where it is none."""
    folder = Path(folder)
    if not (folder / "config.toml").is_file():
        raise RunError(f"{folder}: not a run directory (it has no config.toml)")
    return Summary(
        folder=folder,
        config=load(folder / "config.toml"),
        environment=read_environment(folder) or {},
        metrics=read_step_rows(folder / "metrics.jsonl"),
        evaluations=read_step_rows(folder / "evaluations.jsonl"),
        events=read_events(folder / "events.jsonl"),
    )
