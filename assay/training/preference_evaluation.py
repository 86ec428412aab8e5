"""How a policy ranks held-out pairs: accuracy, margin and loss, as a row of evaluations."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from assay.learn.preference_update import PreferenceBatch, PreferenceLearner
from assay.run.directory import Run
from assay.run.metrics import kind_of
from assay.training.preference_given import pack_examples
from assay.training.preference_pairs import Example
from assay.training.preference_reference import ReferenceTable


def heldout_evaluation(
    heldout: Sequence[Example], table: ReferenceTable, learner: PreferenceLearner, run: Run
) -> Callable[[], None]:
    """Return what writes down how the policy does on held-out pairs now, unless that is there already.

    They are always measured against the policy at the start, and with the row's own beta, so that what
    was found at different steps can be compared.
    """
    pairs = pack_examples(heldout, table, learner)
    kind = "pairs" if learner.row.paired else "completions"

    def evaluate_now() -> None:
        if kind not in map(kind_of, run.evaluations(run.step)):
            run.record_evaluation(evaluate_pairs(learner, pairs, kind))

    return evaluate_now


def evaluate_pairs(learner: PreferenceLearner, pairs: PreferenceBatch, kind: str) -> dict[str, Any]:
    """Return the row: ``eval/pass_at_1`` is the share of pairs that the policy ranks right.

    Its standard error is that of a share; of completions that come alone, where the accuracy is the
    chance that a desirable one is ranked above an undesirable one, that of Hanley and McNeil (1982).
    """
    started = time.perf_counter()
    metrics = learner.look(pairs)
    accuracy = metrics.pop("preference/accuracy", None)
    num_chosen = int(pairs.chosen_R.sum())
    num_rejected = pairs.batch.num_rows - num_chosen
    paired = learner.row.paired
    error = None
    if accuracy is not None:
        counts = (num_chosen, 0) if paired else (num_chosen, num_rejected)
        error = accuracy_error(accuracy, *counts) if sum(counts) > 1 else None
    row: dict[str, Any] = {
        "eval/kind": kind,
        "eval/pass_at_1": accuracy,
        "eval/stderr": error,
        "eval/num_problems": num_chosen if paired else pairs.batch.num_rows,
        "eval/loss": metrics.pop("loss/total"),
    }
    kept = {key for key in metrics if key.startswith("preference/")} - {"preference/beta"}
    row |= {f"eval/{key.removeprefix('preference/')}": metrics[key] for key in sorted(kept)}
    return {**row, "eval/seconds": time.perf_counter() - started}


def accuracy_error(accuracy: float, num_chosen: int, num_rejected: int = 0) -> float:
    """Return the standard error of a share of pairs, or of the area under a curve where both counts are given."""
    variance = accuracy * (1 - accuracy)
    if num_rejected:
        above, below = accuracy / (2 - accuracy), 2 * accuracy**2 / (1 + accuracy)
        variance += (num_chosen - 1) * (above - accuracy**2)
        variance += (num_rejected - 1) * (below - accuracy**2)
        return math.sqrt(max(0.0, variance) / (num_chosen * num_rejected))
    return math.sqrt(variance / num_chosen)
