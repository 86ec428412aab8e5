"""Confidence intervals and tests for shares and paired differences, valid for few problems.

Intervals are at 95 %. Pairs are formed by problem. Problems are the sample, because completions of
one problem are not independent (Miller 2024, arXiv 2411.00640, section 4).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import cache
from typing import Any, TypeGuard

import numpy as np

CONFIDENCE = 0.95
FEW = 10
"""Below this number of problems, results show intervals instead of standard errors."""

_NORMAL_QUANTILE = 1.959963984540054
# With more degrees of freedom, Student's quantile equals the normal one to a thousandth.
_MOST_DEGREES = 1000
# Size limit of the grid that counts sums of differences.
_MOST_POINTS = 2**18

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
    z, n = _NORMAL_QUANTILE, float(count)
    if stderr and count > 1:
        n = max(n, share * (1 - share) / stderr**2 * (z / t_quantile(count - 1)) ** 2)
    middle = share + z**2 / (2 * n)
    half = z * math.sqrt(max(0.0, share * (1 - share)) / n + z**2 / (4 * n**2))
    scale = 1 + z**2 / n
    return max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)


def paired_interval(differences: Sequence[float]) -> Interval:
    """Return the interval of the mean of paired differences, each in [-1, 1].

    Student's interval, mean ± t e. If all differences are -1, 0 or 1 (one completion per problem),
    or all are equal: the adjusted Wald interval, which adds one gained and one lost problem (Bonett
    and Price 2012). Its width stays positive even if all differences are 0.
    """
    count, error = len(differences), stderr_of(differences)
    if error and not all(one in (-1, 0, 1) for one in differences):
        mean, half = float(np.mean(differences)), t_quantile(count - 1) * error
    else:
        gained, lost = (
            (sum(max(0.0, way * one) for one in differences) + 1) / (count + 2) for way in (1, -1)
        )
        mean, variance = gained - lost, gained + lost - (gained - lost) ** 2
        half = _NORMAL_QUANTILE * math.sqrt(variance / (count + 2))
    return max(-1.0, mean - half), min(1.0, mean + half)


def sign_flip_p(differences: Sequence[float]) -> float:
    """Return the two-sided p value of the exact sign-flip permutation test of pairs.

    The p value is the probability of a sum at least as far from 0 under random signs (Fisher 1935,
    section 21). For differences -1, 0 and 1 it equals McNemar's exact test. The product of the
    characteristic functions cos(d w) on a grid counts all sign patterns at once (Pagano and
    Tritchler 1983). Differences without a small common denominator are rounded to 1/260,000 of the
    sum of their absolute values.
    """
    sizes = _whole_numbers(differences)
    total, observed = sum(abs(one) for one in sizes), abs(sum(sizes))
    if not observed:
        return 1.0
    num_points = 2 ** (2 * total + 1).bit_length()
    # The characteristic function is even, so half of the grid suffices.
    angles = 2 * np.pi * np.arange(num_points // 2 + 1) / num_points
    product = np.ones(len(angles))
    for size, count in Counter(abs(one) for one in sizes if one).items():
        product *= np.cos(size * angles) ** count
    # The probability of a sum k is at index k modulo num_points.
    chances = np.fft.irfft(product, num_points)
    both = float(chances[observed : num_points - observed + 1].sum())
    num_nonzero = sum(one != 0 for one in sizes)
    # At least the observed signs and their mirror image count, whatever the rounding of the FFT.
    return min(1.0, max(both, 2.0 ** (1 - num_nonzero)))


def _whole_numbers(differences: Sequence[float]) -> list[int]:
    """Return the differences as integer multiples of a common unit, rounded if it is tiny."""
    exact = [Fraction(one).limit_denominator(_MOST_POINTS) for one in differences]
    unit = math.lcm(*(one.denominator for one in exact))
    extent = float(sum(abs(one) for one in exact))
    unit = min(unit, max(1, int(_MOST_POINTS / (2 * extent)))) if extent else 1
    return [round(one * unit) for one in exact]


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p values for multiple tests (Holm 1979), in the input order."""
    order = sorted(range(len(p_values)), key=lambda n: p_values[n])
    adjusted, least = [0.0] * len(p_values), 0.0
    for rank, n in enumerate(order):
        least = max(least, min(1.0, (len(p_values) - rank) * p_values[n]))
        adjusted[n] = least
    return adjusted


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
