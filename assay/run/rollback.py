"""Rollback of a run to an earlier checkpoint, and approvals after a severe guard stop.

A rollback moves all data after the checkpoint to the folder ``rolled_back/`` of the run. It removes
nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from assay.config import CheckpointConfig, load
from assay.errors import RunError, message
from assay.host.files import DirectoryLock, Journal, config_of, make_folder, write_atomic
from assay.host.records import read_events, read_step_rows
from assay.host.removal import move
from assay.run.checkpoints import Checkpoints, find_damage
from assay.run.evaluation_log import FOLDER


@dataclass(frozen=True, slots=True)
class RolledBack:
    """Result of a rollback.

    to: step of the checkpoint. before: number of the newest step before the rollback. kept: folder
    to which the data of later steps was moved.
    """

    run: str
    to: int
    before: int
    kept: str

    def as_dict(self) -> dict[str, Any]:
        """Return the fields of the rollback as a dictionary for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"{self.run}: back at step {self.to}, from step {self.before}; later data is kept"
            f" in {self.kept}\ncontinue with: assay train --resume {self.run}"
        )


def roll_back(run: Path | str, to: int, *, who: str, why: str) -> RolledBack:
    """Make the checkpoint of step ``to`` the newest state of a run.

    The event of the rollback records who requested the rollback, and why.

    Raises RunError if the checkpoint is missing or damaged, or is already the newest state of the
    run.
    """
    folder = Path(run)
    config_of(folder)
    checkpoints = Checkpoints(folder / "checkpoints", CheckpointConfig())
    steps = checkpoints.steps()
    where = f"assay run rollback {folder} --to"
    if to not in steps:
        known = ", ".join(map(str, steps)) or "it has none"
        raise RunError(message(where, to, f"the step of a checkpoint: {known}"))
    if (wrong := find_damage(checkpoints.path(to))) is not None:
        raise RunError(message(where, f"{to}, which is damaged ({wrong})", "a whole checkpoint"))
    lock = DirectoryLock(folder)
    try:
        names = ("metrics", "evaluations")
        rows = {name: read_step_rows(folder / f"{name}.jsonl") for name in names}
        # The rollback ends by appending an entry to events.jsonl.
        # A damaged events.jsonl must therefore raise an error before any file is moved.
        read_events(folder / "events.jsonl")
        before = max([*steps, *(int(row["step"]) for row in rows["metrics"])])
        if before == to:
            raise RunError(message(where, to, "a step before the newest, which it is"))
        # Data after the checkpoint is kept as evidence of the reason for the rollback.
        aside = make_folder(folder / "rolled_back", f"step-{before:06d}-to-{to:06d}")
        for name in names:
            _set_aside(folder / f"{name}.jsonl", aside, rows[name], to)
        for path in _later_files(folder, to):
            target = aside / path.relative_to(folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            move(path, target)
        facts = {"before": before, "who": who, "why": why, "kept": str(aside)}
        _write_event(folder, to, "rolled_back", facts)
    finally:
        lock.release()
    return RolledBack(str(folder), to, before, str(aside))


def _set_aside(journal: Path, aside: Path, rows: list[dict[str, Any]], to: int) -> None:
    # Later rows are copied before they leave the journal, so that a kill in between loses none.
    later = [row for row in rows if int(row["step"]) > to]
    if later:
        text = "".join(json.dumps(row) + "\n" for row in later)
        write_atomic(aside / journal.name, text.encode())
        Journal(journal).keep(lambda row: int(row["step"]) <= to)


def _later_files(folder: Path, to: int) -> list[Path]:
    """Return the checkpoints, rollouts, evaluation logs and gate results of steps after ``to``."""
    found = [*folder.glob("checkpoints/step-*"), *folder.glob("rollouts/step-*.parquet")]
    found += [*folder.glob(f"{FOLDER}/*/step-*.parquet"), *folder.glob("gates/step-*.json")]
    found += folder.glob("rollouts/sampled-*.parquet")
    numbers = ((path, path.stem.rpartition("-")[2]) for path in found)
    return [path for path, number in numbers if number.isdecimal() and int(number) > to]


def newest_stop(run: Path) -> Mapping[str, Any] | None:
    """Return the event of the newest guard stop; None if a rollback or an approval followed."""
    stop: Mapping[str, Any] | None = None
    for event in read_events(run / "events.jsonl"):
        if event.get("kind") == "guard_stop":
            stop = event
        # After a guard stop, a rollback removes the faulty steps, and an approval names a person.
        elif event.get("kind") in ("rolled_back", "approved"):
            stop = None
    return stop


def check_approved(run: Path, approved_by: str | None) -> None:
    """Raise RunError if a run needs an approval and none is given; otherwise record the given
    approval.

    Only after a severe guard stop, a run needs an approval.
    """
    stop = newest_stop(run)
    if stop is None or not stop.get("severe"):
        return
    step = int(stop.get("step") or 0)
    if approved_by is None:
        found = f"a run that the guard stopped at step {step} ({stop.get('rule')})"
        back = f"--to {stop['well']}" if stop.get("well") is not None else "--to STEP"
        accepted = f"--approved-by NAME, or first: assay run rollback {run} {back}"
        remedy = f"read {stop.get('evidence')}"
        raise RunError(message(f"assay train --resume {run}", found, accepted, remedy))
    plan = load(config_of(run)).decision
    if plan is not None and plan.approvers and approved_by not in plan.approvers:
        accepted = f"one of decision.approvers: {', '.join(plan.approvers)}"
        raise RunError(message(f"--approved-by {approved_by}", "another name", accepted))
    facts = {"who": approved_by, "rule": stop.get("rule"), "stopped_at": step}
    _write_event(run, step, "approved", facts)


def _write_event(run: Path, step: int, kind: str, facts: Mapping[str, Any]) -> None:
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    journal = Journal(run / "events.jsonl")
    journal.append({"time": now, "step": step, "kind": kind, **facts})
    journal.close()
