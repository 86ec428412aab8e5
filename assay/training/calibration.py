"""Calibration metrics of predicted probabilities: ECE, Brier score, log loss, reliability."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
BINS = 15


@dataclass(frozen=True, slots=True)
class Bin:
    """Predictions of similar probability: their count, their mean, and the observed frequency."""

    count: int
    predicted: float
    observed: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """Calibration of predicted probabilities. reliability: bins of equal width."""

    ece: float
    adaptive_ece: float
    brier: float
    log_loss: float
    reliability: tuple[Bin, ...]

    def as_row(self) -> dict[str, Any]:
        """Return the calibration's errors and bins as plain numbers, under the keys that an
        evaluation records."""
        return {
            "eval/ece": self.ece,
            "eval/adaptive_ece": self.adaptive_ece,
            "eval/brier": self.brier,
            "eval/log_loss": self.log_loss,
            "eval/reliability": [
                [one.count, one.predicted, one.observed] for one in self.reliability
            ],
        }


def calibrate(predicted: Array, observed: Array, num_bins: int = BINS) -> Calibration:
    """Compare predicted probabilities p_i with outcomes y_i in [0, 1]; both [n], n > 0.

    ece: sum_b n_b/n |mean_b y - mean_b p| over bins b of equal width (Guo et al., 2017,
    arXiv:1706.04599, equation 3, for the probability of one label). adaptive_ece: the sum of
    ``ece`` over bins with equal counts of predictions (Nguyen and O'Connor, 2015). brier: mean of
    (p - y)^2. log_loss: mean of -y log p - (1 - y) log(1 - p), with p clipped to [1e-12, 1 -
    1e-12].
    """
    # The prediction 1.0 belongs to the last bin, not to a bin of its own.
    width_bins = np.minimum((predicted * num_bins).astype(np.int64), num_bins - 1)
    equal_width = bins_of(predicted, observed, width_bins)
    # With an equal number of predictions per bin, a nearly empty bin cannot dominate the error.
    ranks = np.empty(len(predicted), np.int64)
    ranks[np.argsort(predicted, kind="stable")] = np.arange(len(predicted))
    equal_count = bins_of(predicted, observed, ranks * num_bins // len(predicted))
    # Probabilities are clipped, because one wrong prediction of probability 1 would make the log
    # loss infinite.
    clipped = np.clip(predicted, 1e-12, 1 - 1e-12)
    log_loss = -(observed * np.log(clipped) + (1 - observed) * np.log1p(-clipped)).mean()
    return Calibration(
        ece=calibration_error(equal_width),
        adaptive_ece=calibration_error(equal_count),
        brier=float(np.mean((predicted - observed) ** 2)),
        log_loss=float(log_loss),
        reliability=equal_width,
    )


def bins_of(predicted: Array, observed: Array, bin_of: NDArray[np.int64]) -> tuple[Bin, ...]:
    """Return the non-empty bins in order of their index."""
    found: list[Bin] = []
    for number in np.unique(bin_of).tolist():
        chosen = bin_of == number
        means = float(predicted[chosen].mean()), float(observed[chosen].mean())
        found.append(Bin(int(chosen.sum()), *means))
    return tuple(found)


def calibration_error(bins: tuple[Bin, ...]) -> float:
    """Return the mean of |observed - predicted| over bins, weighted by the number of predictions
    per bin."""
    # Bins are weighted by count, so that a nearly empty bin has little influence.
    total = sum(one.count for one in bins)
    return sum(one.count * abs(one.observed - one.predicted) for one in bins) / total
