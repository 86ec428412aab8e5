"""Checks and warnings for resuming a run, possibly with a changed configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from assay.config import TrainConfig
from assay.errors import RunError, message
from assay.run.evaluations import Row

LENGTHS = [
    "steps",
    "epochs",
    "num_minibatches",
    "tokens_per_step",
    "pairs_per_step",
    "rows_per_step",
]
"""Configuration keys that set the number of optimizer steps of a stage."""


def check_beginning(
    folder: Path, rows: Sequence[Row], events: Sequence[Row], every: int, damaged: Sequence[str]
) -> None:
    """Raise RunError if a run has no valid checkpoint, although it has saved one before.

    A run may start over if it was killed before its first checkpoint. rows, events: rows of the
    run's metrics and of its events. every: steps between checkpoints. damaged: faults of existing
    checkpoints.
    """
    done = max((int(row.get("step") or 0) for row in rows), default=0)
    had_one = done > every or any(event.get("checkpoint") for event in events)
    if not damaged and not had_one:
        return
    found = "; ".join(damaged) or "its checkpoints are missing"
    # A restart from step 0 would train all steps again, and overwrite existing weights.
    raise RunError(
        f"{folder}: {done} steps are done, and no checkpoint is whole ({found}); nothing was "
        f"changed; restore the files from a copy, or start a new run: "
        f"assay train {folder / 'config.toml'}"
    )


def check_has_use(
    folder: Path, step: int, num_steps: int | None, changes: Sequence[str], early: bool = False
) -> None:
    """Raise RunError if a finished run is resumed with changed settings that no further step would
    use.

    changes: changed settings that affect a training step. early: whether the run ended by
    ``evaluation.patience``.
    """
    done = early or (num_steps is not None and step >= num_steps)
    if not changes or not step or not done:
        return
    # A resume would save settings that are not used, and config.toml would then be wrong.
    how = f"it finished early, after step {step}" if early else f"all {step} steps are done"
    found = f"{how}, so no step would use {'; '.join(changes)}"
    accepted = "also a larger number of steps or epochs"
    if early:
        accepted = "also --set evaluation.patience= (no early end), or a larger one"
    raise RunError(message(str(folder), found, accepted, "or start a new run"))


def notes_on_resume(facts: Mapping[str, Any], checkpoints: Path) -> list[str]:
    """Return lines of text about a resumed run, for display. facts: its event ``resumed``."""
    # The torch version, the instruction set and the thread count set the order of summation.
    bits = "the result may differ in the last bits"
    notes = [f"warning: {one}; going on from an older one" for one in facts["damaged"]]
    notes += [
        f"the damaged checkpoint is kept as {checkpoints / one}" for one in facts["set_aside"]
    ]
    notes += [f"warning: {difference}; {bits}" for difference in facts["differences"]]
    if missing := facts["missing"]:
        named = f"{missing[0]} and {len(missing) - 1} more" if missing[1:] else missing[0]
        notes.append(
            f"warning: config.toml lacks {named}: defaults are used; the file may be truncated"
        )
    if facts["schedule"]:
        notes.append(f"warning: {facts['schedule']}")
    return notes


def stretched_schedule(before: TrainConfig, now: TrainConfig, rate: float | None) -> str | None:
    """Return a warning if a new length of the run changes its learning-rate schedule.

    rate: learning rate at the last step, which the warning states. The result is None if no setting
        that affects a training step has changed.
    """
    # A constant learning rate does not depend on the length of the run.
    kind, stage = now.optimizer.schedule, now.stage
    old, new = getattr(before, stage), getattr(now, stage)
    if kind == "constant" or kind != before.optimizer.schedule or old is None:
        return None
    changes = ", ".join(
        f"{stage}.{key}: {getattr(old, key)} before, {getattr(new, key)} now"
        for key in LENGTHS
        if getattr(old, key, None) != getattr(new, key, None)
    )
    if not changes:
        return None
    last = "" if rate is None else f", not at the last step's {rate:.3g}"
    return f"{changes}: the {kind} learning rate continues as in a run of the new length{last}"


def without_limit(config: TrainConfig) -> TrainConfig:
    """Return a configuration without ``run.max_minutes``, which limits only one start of a run."""
    return config.model_copy(update={"run": config.run.model_copy(update={"max_minutes": None})})
