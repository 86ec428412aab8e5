"""Paired comparison of training runs: is one setting better than another, over seeds?

Two arms use the same seeds, so each seed gives one difference. The seed is the unit of sampling:
runs differ far more from seed to seed than one evaluation differs by its choice of problems.
`assay.run.paired` compares two policies on the same problems.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from assay.run.intervals import t_p_value, t_quantile

MIN_SEEDS = 8
"""Number of seeds below which a difference decides nothing."""


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Return a mean and its standard error. With too few values, a result is NaN."""
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

    Student 1908: the interval is mean ± t e, with the standard error e and t for n - 1 degrees of
    freedom (2.36 for eight seeds). p_value: two-sided, of a mean difference of 0. With a single
    seed, the ends of the interval are infinite and p_value is None. If every seed has the same
    difference, the interval has no width; p_value is then 1 for a difference of 0, and else None.
    """

    mean: float
    low: float
    high: float
    p_value: float | None
    num_seeds: int

    @classmethod
    def of(cls, differences: Sequence[float]) -> SeedDifference:
        """Two arms are compared by the differences of their values for each seed."""
        count = len(differences)
        mean, error = mean_and_error(differences)
        if count < 2:
            return cls(mean, -math.inf, math.inf, None, count)
        # Equal differences differ by rounding, from which t would be huge.
        error = error if error > 1e-12 * max(map(abs, differences)) else 0.0
        half = t_quantile(count - 1) * error
        # Without spread, t is 0/0 or infinite, so Student's test says nothing.
        p_value = t_p_value(mean / error, count - 1) if error else None if mean else 1.0
        return cls(mean, mean - half, mean + half, p_value, count)

    @property
    def is_enough(self) -> bool:
        """Whether there are enough seeds for a claim."""
        return self.num_seeds >= MIN_SEEDS

    @property
    def excludes_zero(self) -> bool:
        """Whether the 95 % interval lies above or below 0."""
        return self.low > 0 or self.high < 0


def three_digits(value: float) -> str:
    """Format a number with three significant digits, without an exponent where possible.

    A difference that consists of rounding errors only becomes 0.
    """
    if abs(value) < 1e-12:
        return "0"
    if math.isnan(value) or math.isinf(value):
        return f"{value:g}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{digits}f}" if digits <= 6 else f"{value:.2e}"
