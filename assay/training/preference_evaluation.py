"""Evaluate a policy's ranking of held-out pairs: accuracy, margin and loss."""

from __future__ import annotations

import math
import time
from typing import Any

from assay.learn.preference_update import PreferenceBatch, PreferenceLearner
from assay.run.directory import Run
from assay.run.evaluations import kind_of


def record_pairs(run: Run, learner: PreferenceLearner, pairs: PreferenceBatch) -> None:
    """Record an evaluation of held-out pairs, unless this step has an evaluation already."""
    kind = "pairs" if learner.row.paired else "completions"
    if kind not in map(kind_of, run.evaluations(run.step)):
        run.record_evaluation(evaluate_pairs(learner, pairs, kind))


def evaluate_pairs(learner: PreferenceLearner, pairs: PreferenceBatch, kind: str) -> dict[str, Any]:
    """Return the evaluation row; ``eval/pass_at_1`` is the share of correctly ranked pairs.

    For unpaired completions, ``eval/pass_at_1`` is the AUROC: the probability that a desirable
    completion ranks above an undesirable one. The standard error of the AUROC is that of Hanley and
    McNeil (1982).
    """
    started = time.perf_counter()
    metrics = learner.look(pairs)
    accuracy = metrics.pop("preference/accuracy", None)
    num_chosen = int(pairs.chosen_R.sum())
    num_rejected = 0 if learner.row.paired else pairs.batch.num_rows - num_chosen
    error = None
    if accuracy is not None and num_chosen + num_rejected > 1:
        error = accuracy_error(accuracy, num_chosen, num_rejected)
    row: dict[str, Any] = {
        "eval/kind": kind,
        "eval/pass_at_1": accuracy,
        "eval/stderr": error,
        "eval/num_problems": num_chosen + num_rejected,
        "eval/loss": metrics.pop("loss/total"),
    }
    # The evaluation row omits beta, because beta is a setting and no result.
    kept = {key for key in metrics if key.startswith("preference/")} - {"preference/beta"}
    row |= {f"eval/{key.removeprefix('preference/')}": metrics[key] for key in sorted(kept)}
    return {**row, "eval/seconds": time.perf_counter() - started}


def accuracy_error(accuracy: float, num_chosen: int, num_rejected: int = 0) -> float:
    """Return the standard error of a share, or of an AUROC if ``num_rejected`` is not 0."""
    variance = accuracy * (1 - accuracy)
    if num_rejected:
        above, below = accuracy / (2 - accuracy), 2 * accuracy**2 / (1 + accuracy)
        variance += (num_chosen - 1) * (above - accuracy**2)
        variance += (num_rejected - 1) * (below - accuracy**2)
        # For a perfect ranking, rounding can make the variance slightly negative, so clamp it to 0.
        return math.sqrt(max(0.0, variance) / (num_chosen * num_rejected))
    return math.sqrt(variance / num_chosen)
