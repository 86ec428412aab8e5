"""Paired comparison of training runs: is one setting better than another, over seeds?

Two settings (arms) are trained with the same seeds, so each seed gives one difference. The seed is
the unit of sampling: runs differ far more from seed to seed than one evaluation differs by its
choice of problems. `assay.run.paired` compares two policies on the same problems.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from assay.run.intervals import t_p_value, t_quantile

MIN_SEEDS = 8
"""Number of seeds below which a difference decides nothing."""


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Return a mean and its standard error. With too few values, the mean or the standard error is
    NaN.
    """
    if not values:
        return math.nan, math.nan
    mean = sum(values) / len(values)
    if len(values) < 2:
        return mean, math.nan
    variance = sum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return mean, math.sqrt(variance / len(values))


@dataclass(frozen=True, slots=True)
class SeedDifference:
    """Mean of paired differences over seeds, with its 95 % interval and p value.

    The interval is Student's, mean ± t e, with standard error e and the t of n - 1 degrees of
    freedom (2.36 for eight seeds). p_value: two-sided p value for a mean difference of 0. With a
    single seed, the ends of the interval are infinite and p_value is None. If every seed has the
    same difference, the interval has the width 0; p_value is then 1 for the difference 0, and None
    otherwise.
    """

    mean: float
    low: float
    high: float
    p_value: float | None
    num_seeds: int

    @classmethod
    def of(cls, differences: Sequence[float]) -> SeedDifference:
        """Two arms are compared by the difference of their values at each seed."""
        count = len(differences)
        mean, error = mean_and_error(differences)
        if count < 2:
            return cls(mean, -math.inf, math.inf, None, count)
        # Equal differences may differ by rounding errors, which would make t huge.
        error = error if error > 1e-12 * max(map(abs, differences)) else 0.0
        half = t_quantile(count - 1) * error
        # If the differences do not vary, t is 0/0 or infinite, so Student's test is not possible.
        p_value = t_p_value(mean / error, count - 1) if error else None if mean else 1.0
        return cls(mean, mean - half, mean + half, p_value, count)

    @property
    def is_enough(self) -> bool:
        """Whether there are enough seeds for a claim that the arms differ."""
        return self.num_seeds >= MIN_SEEDS

    @property
    def excludes_zero(self) -> bool:
        """Whether the 95 % interval excludes 0."""
        return self.low > 0 or self.high < 0


def three_digits(value: float) -> str:
    """Format a number with three significant digits, without an exponent where possible.

    A difference that consists only of rounding errors becomes 0.
    """
    if abs(value) < 1e-12:
        return "0"
    if math.isnan(value) or math.isinf(value):
        return f"{value:g}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{digits}f}" if digits <= 6 else f"{value:.2e}"
