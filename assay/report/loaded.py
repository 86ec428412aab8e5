"""Load the records of a run from its directory. The run may be in progress or killed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from assay.config import TrainConfig, load
from assay.errors import RunError, did_you_mean, message
from assay.host.files import config_of
from assay.host.records import read_events, read_step_rows
from assay.report.table import Table
from assay.run.environment import read_environment
from assay.run.evaluations import Row, best_step
from assay.run.rollout_log import RolloutLog, read_columns
from assay.run.rollout_schema import DERIVED, SCHEMA
from assay.run.state import how_far, why_ended
from assay.types import Status

READABLE = (
    *("step", "problem_id", "prompt", "text", "status", "reward", "score", "components"),
    *(
        "extracted",
        "detail",
        "reason",
        "advantage",
        "num_tokens",
        "num_think_tokens",
        "num_injected",
    ),
    *("finish_reason", "policy_version", "verifier", "judge_seconds", "tags"),
    *("second_status", "second_verifier", "second_detail"),
    *("draw", "group_id", "completion_id"),
)
"""Default columns of rollouts. Token-level columns must be requested by name."""


@dataclass(frozen=True, slots=True)
class LoadedRun:
    """Records of a run, as returned by `load_run`.

    metrics: one row per step. evaluations: one row per evaluation and temperature. events: one row
    per start, stop, guard finding or other event. environment: package versions, hardware and
    verifiers.
    """

    folder: Path
    config: TrainConfig
    environment: Row
    metrics: Table
    evaluations: Table
    events: Table

    def rollouts(
        self,
        *,
        step: int | Literal["last"] | None = None,
        problem: str | None = None,
        status: Status | None = None,
        worst: int | None = None,
        best: int | None = None,
        columns: Sequence[str] = READABLE,
    ) -> Table:
        """Return recorded completions with their verdicts, one row per completion.

        step: a step, or ``"last"``; None: all steps. problem: id of a problem. status: ``passed``,
        ``failed`` or ``not_judged``. worst, best: number of judged completions to return, those
        with the lowest or highest rewards; for equal rewards the newest. columns: columns of the
        rollout log (docs/rollouts.md), and ``num_tokens``, ``num_injected`` (number of injected
        tokens) and ``advantage`` (mean over the completion's tokens).

            run.rollouts(step="last", worst=5)
            run.rollouts(status="not_judged")["detail"]
            run.rollouts(problem="rows.jsonl:3").to_pandas()

        Raises RunError for a step without rollouts and for a damaged rollout file.
        """
        if worst is not None and best is not None:
            raise RunError("rollouts: found worst and best; accepted: one of them")
        known = (*SCHEMA.names, *DERIVED)
        if unknown := [name for name in columns if name not in known]:
            meant = did_you_mean(unknown[0], known)
            raise RunError(message("rollouts columns", repr(unknown[0]), ", ".join(known), meant))
        # Parquet stores columns separately. Token columns take most of a file, so they are read
        # only if the caller requests these columns.
        needed = dict.fromkeys([*columns, "problem_id", "status", "reward", "step"])
        log = RolloutLog(self.folder / "rollouts")
        shards = map(log.path, self.steps(step))
        rows = [row for path in shards for row in _read_shard(path, list(needed))]
        if problem is not None:
            rows = [row for row in rows if row["problem_id"] == problem]
        if status is not None:
            rows = [row for row in rows if row["status"] == status]
        if (count := best if worst is None else worst) is not None:
            sign = 1 if best is None else -1
            judged = [row for row in rows if row["reward"] is not None]
            rows = sorted(judged, key=lambda row: (sign * row["reward"], -row["step"]))[:count]
        return Table([{name: row[name] for name in columns} for row in rows])

    def steps(self, step: int | Literal["last"] | None = None) -> list[int]:
        """Return the steps with recorded rollouts, or only ``step`` if a step is given.

        Raises RunError.
        """
        steps = RolloutLog(self.folder / "rollouts").steps()
        if step is None or (step == "last" and steps):
            return steps if step is None else steps[-1:]
        if step not in steps:
            some = f"a step from {steps[0]} to {steps[-1]}" if steps else ""
            accepted = some or f"no step, since it recorded none; it {self.state}"
            raise RunError(message(f"{self.folder} rollouts of step", step, accepted))
        return [int(step)]

    @property
    def num_steps(self) -> int:
        """Number of finished steps."""
        return int(self.metrics[-1]["step"]) if self.metrics else 0

    @property
    def seconds(self) -> float:
        """Wall time of all starts of the run, up to the last finished step."""
        return float(self.metrics[-1].get("time/elapsed") or 0.0) if self.metrics else 0.0

    @property
    def num_tokens(self) -> int:
        """Number of generated tokens, or of trained tokens if the run does not generate."""
        counts = (row.get("tokens/generated") or row.get("tokens/trained") for row in self.metrics)
        return int(sum(count or 0 for count in counts))

    @property
    def ended(self) -> str | None:
        """Reason of the run's end; None if the run is in progress or was killed."""
        return why_ended(self.events)

    @property
    def state(self) -> str:
        """Progress and outcome as text, such as ``ended after 20 steps: finished``."""
        return how_far(self.num_steps, self.ended)

    def __repr__(self) -> str:
        return f"LoadedRun({str(self.folder)!r}: {self.state})"


def load_run(path: Path | str) -> LoadedRun:
    """Load a run from its directory: configuration, metrics, evaluations, events and rollouts.

        run = assay.load_run("runs/first")
        run.metrics.to_pandas()
        run.rollouts(step=20, worst=5)

    The run may be in progress. Raises RunError if the folder is not a run directory.
    """
    folder = Path(path).expanduser()
    return LoadedRun(
        folder=folder,
        config=load(config_of(folder)),
        environment=read_environment(folder) or {},
        metrics=Table(read_step_rows(folder / "metrics.jsonl")),
        evaluations=Table(read_step_rows(folder / "evaluations.jsonl")),
        events=Table(read_events(folder / "events.jsonl")),
    )


def load_run_at(name: str) -> LoadedRun:
    """Load the records of a run up to a step, such as ``RUN@120`` or ``RUN@best``.

    Without a step, all records are loaded. Raises RunError if the step was not evaluated.
    """
    place, _, which = name.rpartition("@")
    # The name of a folder may contain "@", as in runs/lr@2.
    if not (which.isdecimal() or which in ("best", "last")) or Path(name).exists():
        return load_run(name)
    run = load_run(place)
    if which == "last":
        return run
    looked = sorted({row["step"] for row in run.evaluations})
    last = best_step(list(run.evaluations)) if which == "best" else int(which)
    if last is None or last not in looked:
        found = "no best step" if last is None else f"no evaluation after step {last}"
        accepted = f"an evaluated step: {', '.join(map(str, looked)) or 'there is none'}"
        raise RunError(message(name, found, accepted))
    tables = {
        key: Table([row for row in getattr(run, key) if row["step"] <= last])
        for key in ("metrics", "evaluations")
    }
    return replace(run, **tables)


def _read_shard(path: Path, columns: list[str]) -> list[dict[str, Any]]:
    rows = read_columns(path, columns)
    if rows is None:
        raise RunError(message(str(path), "a damaged file", "a whole one", "move it away"))
    for row in rows:
        if row.get("components") is not None:
            row["components"] = dict(row["components"])
    return rows
