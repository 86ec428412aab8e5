"""What a run came to, read from its directory: also of one that still runs, or was killed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.config import TrainConfig, load
from assay.errors import RunError
from assay.run.environment import read_environment
from assay.run.files import read_events, read_step_rows
from assay.run.metrics import Gain, accuracy_of, gain_between, kind_of

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Lift:
    """Held-out accuracy of one kind of evaluation: before the first step, and at the last look.

    gain: the difference problem by problem; None where that is not known.
    """

    kind: str
    before: float
    before_stderr: float | None
    after: float
    after_stderr: float | None
    step: int
    num_problems: int
    gain: Gain | None = None

    @property
    def points(self) -> float:
        """Percentage points gained."""
        return 100.0 * (self.after - self.before)


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

    def lifts(self) -> list[Lift]:
        """Return before and after of each kind of evaluation, in the order of their first rows."""
        kinds: dict[str, list[Row]] = {}
        for row in self.evaluations:
            if accuracy_of(row) is not None:
                kinds.setdefault(kind_of(row), []).append(row)
        return [_lift(kind, rows[0], rows[-1]) for kind, rows in kinds.items()]


def _lift(kind: str, first: Row, last: Row) -> Lift:
    return Lift(
        kind=kind,
        before=accuracy_of(first) or 0.0,
        before_stderr=first.get("eval/stderr"),
        after=accuracy_of(last) or 0.0,
        after_stderr=last.get("eval/stderr"),
        step=int(last["step"]),
        num_problems=int(last.get("eval/num_problems") or 0),
        gain=gain_between(first, last),
    )


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
