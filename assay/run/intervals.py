"""95 % confidence intervals of shares (pass rates), which are also valid for few problems.

The problem is the unit of sampling, because completions of one problem are not independent (Miller
2024, arXiv 2411.00640, section 4). Intervals of paired differences are in `assay.run.paired`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, TypeGuard

import numpy as np

CONFIDENCE = 0.95
FEW = 10
"""Results on fewer problems show an interval instead of a standard error."""

NORMAL_QUANTILE = 1.959963984540054
"""Two-sided quantile of the normal distribution at `CONFIDENCE`."""
# Beyond 1,000 degrees of freedom, Student's 95 % quantile is within 0.2 % of the normal one.
_MOST_DEGREES = 1000

Interval = tuple[float, float]


def stderr_of(values: Sequence[float]) -> float | None:
    """Return the standard error of a mean of independent values; None for fewer than two values."""
    if len(values) < 2:
        return None
    return float(np.std(values, ddof=1)) / len(values) ** 0.5


def clustered_stderr(values: Sequence[float] | np.ndarray, sizes: Sequence[int]) -> float | None:
    """Return the clustered standard error of a mean; None for fewer than two clusters.

    The formula is sqrt(C / (C - 1) sum_c (sum_{i in c} (x_i - mean))^2) / N. values: [N],
    ordered by cluster. sizes: number of values in each of the C independent clusters. Miller
    2024 (arXiv 2411.00640), section 2.2, with the correction C / (C - 1) for few clusters.
    """
    if len(sizes) < 2:
        return None
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    sums = np.add.reduceat(np.asarray(values) - np.mean(values), starts)
    return float(np.sqrt((sums**2).sum() * len(sizes) / (len(sizes) - 1)) / len(values))


def share_interval(
    share: float, count: int, stderr: float | None = None, errors: float = NORMAL_QUANTILE
) -> Interval:
    """Return the score interval (Wilson 1927) of a mean share over ``count`` problems.

    With share p, count n and z = ``errors`` (1.96 for 95 %):

        (p + z^2/2n ± z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n)

    A given ``stderr`` may increase n to the effective sample size p(1-p) / stderr^2 (z/t)^2, with
    Student's t (Korn and Graubard 1998).
    """
    # With several completions per problem, a problem's pass rate varies less than a single verdict.
    # Wilson's interval for n problems assumes one verdict per problem, so it would be too wide.
    z, n = errors, float(count)
    if stderr and count > 1:
        n = max(n, share * (1 - share) / stderr**2 * (z / t_quantile(count - 1)) ** 2)
    middle = share + z**2 / (2 * n)
    half = z * math.sqrt(max(0.0, share * (1 - share)) / n + z**2 / (4 * n**2))
    scale = 1 + z**2 / n
    return max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)


@cache
def t_quantile(degrees: int, chance: float = 1 - CONFIDENCE) -> float:
    """Return the two-sided quantile of Student's t distribution: the t with P(|T| > t) =
    ``chance``.

    Bisection inverts P(|T| <= t), which is a finite sum for integer degrees of freedom (Abramowitz
    and Stegun 1964, 26.7.3 and 26.7.4). For a chance below 1e-12, rounding errors would dominate
    the result.
    """
    # scipy would be a core dependency for this function alone, so the quantile is computed here.
    degrees = min(degrees, _MOST_DEGREES)
    low, high = 0.0, 1e3
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, degrees) < 1 - chance else (low, middle)
    return (low + high) / 2


def t_p_value(t: float, degrees: int) -> float:
    """Return the two-sided p value of Student's t: P(|T| > |t|). Rounded to 0 below 1e-15."""
    return max(0.0, 1.0 - _within(abs(t), min(degrees, _MOST_DEGREES)))


def _within(t: float, degrees: int) -> float:
    """Return the probability P(|T| <= t) for Student's t distribution."""
    angle = math.atan(t / math.sqrt(degrees))
    odd = degrees % 2
    term = total = math.cos(angle) if odd else 1.0
    for n in range(2 + odd, degrees - 1, 2):
        term *= (n - 1) / n * math.cos(angle) ** 2
        total += term
    if not odd:
        return math.sin(angle) * total
    return 2 / math.pi * (angle + (math.sin(angle) * total if degrees > 1 else 0.0))


def spread_words(
    stderr: float | None, interval: Interval | None, count: int | None, style: str = ".1%"
) -> str:
    """Format an uncertainty as `` ± 1.2%``; if the standard error is unreliable, as an interval.

    interval: None if unknown. count: number of problems. style: number format.
    """
    if _tells(stderr, interval, count):
        return f" ± {stderr:{style.lstrip('+')}}"
    if interval is None:
        return " (no standard error)"
    return f" (95% interval {interval[0]:{style}} to {interval[1]:{style}})"


def _tells(stderr: float | None, interval: Interval | None, count: int | None) -> TypeGuard[float]:
    """Whether the standard error of an accuracy is reliable."""
    # If all problems pass or all fail, the standard error is 0 and has no meaning.
    return bool(stderr) and (interval is None or count is None or count >= FEW)


def share_words(row: Mapping[str, Any], style: str = ".1%") -> str:
    """Format the uncertainty of the accuracy in an evaluation."""
    return spread_words(row.get("eval/stderr"), *_share_interval(row), style)


def shown_range(row: Mapping[str, Any]) -> Interval | None:
    """Return the interval that `share_words` prints, as the ends of an error bar; None if
    unknown."""
    share, stderr = row.get("eval/pass_at_1"), row.get("eval/stderr")
    interval, count = _share_interval(row)
    if share is not None and _tells(stderr, interval, count):
        return max(0.0, share - stderr), min(1.0, share + stderr)
    return interval


def _share_interval(row: Mapping[str, Any]) -> tuple[Interval | None, int | None]:
    share, count = row.get("eval/pass_at_1"), row.get("eval/num_problems")
    if share is None or not count:
        return None, count
    return share_interval(share, count, row.get("eval/stderr")), count
