"""Evaluate a reward model on held-out rows: accuracy, calibration and first-error detection."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from assay.learn.reward_losses import RIGHT
from assay.learn.reward_update import RewardLearner
from assay.model.score_batch import ScoredGroup
from assay.run.intervals import clustered_stderr
from assay.training.calibration import Array, Calibration, calibrate
from assay.types import Floats

UNITS = {"preference": "pairs", "outcome": "completions", "process": "steps"}


@dataclass(frozen=True, slots=True)
class RewardEvaluation:
    """Metrics of a reward model on held-out rows.

    kind: ``preference``, ``outcome`` or ``process``. accuracy: share of correctly ranked pairs (a
    tie counts half), or of completions or steps that are classified correctly at probability 0.5.
    stderr: standard error of the accuracy, with the steps of one solution as one cluster; None for
    a single cluster. facts: further metrics, which depend on the kind of reward model.
    """

    kind: str
    num_units: int
    accuracy: float
    stderr: float | None
    calibration: Calibration
    facts: dict[str, float]
    seconds: float

    def as_row(self) -> dict[str, Any]:
        """Return the metrics as a row of the run's evaluations."""
        return {
            "eval/kind": UNITS[self.kind],
            "eval/pass_at_1": self.accuracy,
            "eval/stderr": self.stderr,
            "eval/num_problems": self.num_units,
            **{f"eval/{name}": value for name, value in self.facts.items()},
            **self.calibration.as_row(),
            "eval/seconds": self.seconds,
        }


def evaluate_reward_model(
    learner: RewardLearner, groups: Sequence[ScoredGroup]
) -> RewardEvaluation:
    """Score held-out rows and compare the scores with the labels.

    For pairs the prediction is sigmoid(r_1 - r_2), the probability that the first completion is
    better.
    """
    started = time.perf_counter()
    scores = learner.scores(groups)
    kind = learner.objective.kind
    facts: dict[str, float] = {}
    # Sizes of the clusters of dependent results, for the standard error;
    # None: all results are independent.
    sizes: list[int] | None = None
    if kind == "preference":
        chosen, rejected = np.array([float(score[-1]) for score in scores]).reshape(-1, 2).T
        hits = np.where(chosen == rejected, 0.5, (chosen > rejected).astype(np.float64))
        difference = chosen - rejected
        # Each pair counts in both orders, so that calibration does not depend on the order in the
        # file.
        predicted = _sigmoid(np.concatenate([difference, -difference]))
        observed = np.repeat([1.0, 0.0], len(difference))
        both = np.concatenate([chosen, rejected])
        facts |= {"margin": difference.mean(), "score_mean": both.mean(), "score_std": both.std()}
        facts |= length_facts(both, hits, groups)
    else:
        labels = [text.labels for group in groups for text in group.texts]
        if kind == "outcome":
            # Only the score of the last token is evaluated,
            # because an outcome model as a verifier reads only this score.
            labels = [each[-1:] for each in labels]
            scores = [each[-1:] for each in scores]
        else:
            facts |= first_error_facts(scores, labels)
            sizes = [len(each) for each in labels]
        predicted = _sigmoid(np.concatenate(scores).astype(np.float64))
        observed = np.concatenate(labels).astype(np.float64)
        right = observed >= RIGHT
        hits = ((predicted >= RIGHT) == right).astype(np.float64)
        facts |= {"right_share": right.mean(), "auroc": auroc(predicted, right)}
    accuracy = float(hits.mean())
    return RewardEvaluation(
        kind=kind,
        num_units=len(hits),
        accuracy=accuracy,
        stderr=clustered_stderr(hits, sizes or [1] * len(hits)),
        calibration=calibrate(predicted, observed),
        # NaN is no JSON value, so a metric without data is left out.
        facts={name: float(value) for name, value in facts.items() if value == value},
        seconds=time.perf_counter() - started,
    )


def length_facts(scores: Array, hits: Array, pairs: Sequence[ScoredGroup]) -> dict[str, float]:
    """Measure the length bias of a pairwise reward model.

    ``length_correlation``: correlation of score and token count over all texts. ``chosen_longer``,
    ``chosen_shorter``: accuracy on pairs in which the better text is longer or shorter,
    respectively. A model that rewards length has a high ``chosen_longer`` and a low
    ``chosen_shorter``. A metric without data is NaN. scores: scores of the better texts, then
    scores of the worse texts.
    """
    chosen, rejected = np.array([[len(text.tokens) for text in pair.texts] for pair in pairs]).T
    lengths = np.concatenate([chosen, rejected]).astype(np.float64)
    facts = {"length_correlation": math.nan}
    if scores.std() > 0 and lengths.std() > 0:
        facts["length_correlation"] = float(np.corrcoef(scores, lengths)[0, 1])
    for name, some in (("chosen_longer", chosen > rejected), ("chosen_shorter", chosen < rejected)):
        facts[name] = float(hits[some].mean()) if some.any() else math.nan
    return facts


def first_error_facts(scores: Sequence[Floats], labels: Sequence[Floats]) -> dict[str, float]:
    """Return shares of completions in which the first wrong step was located exactly.

    ``first_error``: share of all completions that were judged exactly: the first wrong step was
    found, or there is none and no step was predicted wrong. ``first_error_wrong``: share of the
    completions with a wrong step whose first wrong step was found. ``first_error_right``: share of
    the completions without a wrong step in which no step was predicted wrong. ``first_error_f1``:
    harmonic mean of ``first_error_wrong`` and ``first_error_right`` (Zheng et al., 2024,
    arXiv:2412.06559, section 4).
    """
    found = np.array(
        [
            _first(score < 0.0) == _first(label < RIGHT)
            for score, label in zip(scores, labels, strict=True)
        ]
    )
    wrong = np.array([bool((label < RIGHT).any()) for label in labels])
    facts = {"first_error": float(found.mean())}
    # The harmonic mean needs at least one completion with a wrong step and one without.
    if wrong.any() and not wrong.all():
        of_wrong, of_right = float(found[wrong].mean()), float(found[~wrong].mean())
        both = of_wrong + of_right
        facts |= {
            "first_error_wrong": of_wrong,
            "first_error_right": of_right,
            "first_error_f1": 2 * of_wrong * of_right / both if both else 0.0,
        }
    return facts


def auroc(predicted: Array, right: np.ndarray) -> float:
    """Return the area under the ROC curve, where ties count half.

    The area is NaN if all labels are equal.
    """
    num_right, num_wrong = int(right.sum()), int((~right).sum())
    if not num_right or not num_wrong:
        return math.nan
    _, places, counts = np.unique(predicted, return_inverse=True, return_counts=True)
    # The area is computed from mean ranks (Mann-Whitney): O(n log n) instead of O(n^2) for pairs.
    mean_rank = np.cumsum(counts) - (counts - 1) / 2
    total = mean_rank[places][right].sum()
    return float((total - num_right * (num_right + 1) / 2) / (num_right * num_wrong))


def _first(marks: np.ndarray) -> int | None:
    return int(np.argmax(marks)) if marks.any() else None


def _sigmoid(values: Array) -> Array:
    # logaddexp is used, because 1 / (1 + exp(-x)) would overflow for a large negative x.
    return np.exp(-np.logaddexp(0.0, -values))
