"""Whether held-out accuracy has settled, so that a run may end before its last step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from assay.config import EvaluationConfig
from assay.run.metrics import accuracy_of, of_deciding_kind

FINISHED_EARLY = "finished early"
"""How a run of which that is true has ended."""


def why_settled(evaluations: Sequence[Mapping[str, Any]], settings: EvaluationConfig) -> str | None:
    """Return why no further step is worth its time, as ``evaluation.patience`` says; None where it is.

    An evaluation is an improvement where its accuracy lies above that of the last improvement by more
    than the standard error of that one; the first evaluation is one. Only evaluations that are due by
    ``evaluation.every`` count: what a time limit adds at another step would make a resumed run end
    elsewhere than one that was never stopped.
    """
    every, patience = settings.every, settings.patience
    if every is None or patience is None:
        return None
    best, best_step, bar, since = -1.0, 0, -1.0, 0
    for row in of_deciding_kind(evaluations):
        if row["step"] % every:
            continue
        accuracy, since = accuracy_of(row) or 0.0, since + 1
        if accuracy > bar:
            best, best_step, since = accuracy, row["step"], 0
            bar = best + (row.get("eval/stderr") or 0.0)
    if since < patience:
        return None
    return (
        f"held-out accuracy has settled: {since} evaluations in a row were not above {best:.3f} of step"
        f" {best_step} by more than its standard error (evaluation.patience = {patience})"
    )
