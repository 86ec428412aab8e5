"""What a changed configuration does to a run that goes on."""

from __future__ import annotations

from assay.config import TrainConfig

LENGTHS = (
    "steps",
    "epochs",
    "num_minibatches",
    "tokens_per_step",
    "pairs_per_step",
    "rows_per_step",
)
"""Keys of a stage that say how many optimizer steps it takes."""


def stretched_schedule(before: TrainConfig, now: TrainConfig, rate: float | None) -> str | None:
    """Return a line where the learning rate's schedule no longer spans what it did; None otherwise.

    rate: of the last step that was taken. Schedules that are given as points stay where they are.
    """
    kind, stage = now.optimizer.schedule, now.stage
    old, new = getattr(before, stage), getattr(now, stage)
    if kind == "constant" or kind != before.optimizer.schedule or old is None:
        return None
    keys = [key for key in LENGTHS if getattr(old, key, None) != getattr(new, key, None)]
    if not keys:
        return None
    changes = ", ".join(
        f"{stage}.{key}: {getattr(old, key)} before, {getattr(new, key)} now" for key in keys
    )
    last = "" if rate is None else f", not at the last step's {rate:.3g}"
    return (
        f"{changes}: the {kind} learning rate goes on where a run of the new length would be{last}"
    )
