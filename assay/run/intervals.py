"""Confidence intervals for shares, valid for few problems. Paired differences: `assay.run.paired`.

Intervals are at 95 %. Problems are the sample, because completions of one problem are not
independent (Miller 2024, arXiv 2411.00640, section 4).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, TypeGuard

import numpy as np

CONFIDENCE = 0.95
FEW = 10
"""Below this number of problems, results show intervals instead of standard errors."""

NORMAL_QUANTILE = 1.959963984540054
"""Two-sided quantile of the normal distribution at `CONFIDENCE`."""
# With more degrees of freedom, Student's quantile equals the normal one to a thousandth.
_MOST_DEGREES = 1000

Interval = tuple[float, float]


def stderr_of(values: Sequence[float]) -> float | None:
    """Return the standard error of the mean of independent values; None for fewer than two."""
    if len(values) < 2:
        return None
    return float(np.std(values, ddof=1)) / len(values) ** 0.5


def clustered_stderr(values: Sequence[float] | np.ndarray, sizes: Sequence[int]) -> float | None:
    """Return the clustered standard error of a mean; None for fewer than two clusters.

        sqrt(C / (C - 1) sum_c (sum_{i in c} (x_i - mean))^2) / N

    values: [N], ordered by cluster. sizes: number of values in each of the C clusters, which are
        independent of each other. Miller 2024 (arXiv 2411.00640), section 2.2, with the correction
        for few clusters.
    """
    if len(sizes) < 2:
        return None
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    sums = np.add.reduceat(np.asarray(values) - np.mean(values), starts)
    return float(np.sqrt((sums**2).sum() * len(sizes) / (len(sizes) - 1)) / len(values))


def share_interval(share: float, count: int, stderr: float | None = None) -> Interval:
    """Return the score interval of the mean share of ``count`` problems (Wilson 1927).

    With share p, count n and z = 1.96: (p + z^2/2n ± z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n).
    Averages over several completions vary less than single verdicts. ``stderr`` then increases n to
    the effective sample size p(1-p) / stderr^2 (z/t)^2, with Student's t (Korn and Graubard 1998).
    """
    z, n = NORMAL_QUANTILE, float(count)
    if stderr and count > 1:
        n = max(n, share * (1 - share) / stderr**2 * (z / t_quantile(count - 1)) ** 2)
    middle = share + z**2 / (2 * n)
    half = z * math.sqrt(max(0.0, share * (1 - share)) / n + z**2 / (4 * n**2))
    scale = 1 + z**2 / n
    return max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)


@cache
def t_quantile(degrees: int, chance: float = 1 - CONFIDENCE) -> float:
    """Return the two-sided quantile of Student's t: the t with P(|T| > t) = ``chance``.

    Bisection of P(|T| <= t), which is a finite sum for a whole number of degrees of freedom
    (Abramowitz and Stegun 1964, 26.7.3 and 26.7.4). Rounding dominates below a chance of 1e-12.
    """
    degrees = min(degrees, _MOST_DEGREES)
    low, high = 0.0, 1e3
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, degrees) < 1 - chance else (low, middle)
    return (low + high) / 2


def _within(t: float, degrees: int) -> float:
    """Return P(|T| <= t) for Student's t."""
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
    """Format an error as ` ± 1.2%`, or the interval if the standard error is unreliable.

    interval: None if unknown. style: number format.
    """
    if _tells(stderr, interval, count):
        return f" ± {stderr:{style.lstrip('+')}}"
    if interval is None:
        return " (no standard error)"
    return f" (95% interval {interval[0]:{style}} to {interval[1]:{style}})"


def _tells(stderr: float | None, interval: Interval | None, count: int | None) -> TypeGuard[float]:
    """Whether the standard error is reliable."""
    return bool(stderr) and (interval is None or count is None or count >= FEW)


def share_words(row: Mapping[str, Any], style: str = ".1%") -> str:
    """Format the uncertainty of an evaluation row's accuracy."""
    return spread_words(row.get("eval/stderr"), *_share_interval(row), style)


def shown_range(row: Mapping[str, Any]) -> Interval | None:
    """Return the range shown by `share_words`, for a figure; None if unknown."""
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
