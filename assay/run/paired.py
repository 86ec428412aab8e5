"""Paired comparison of two policies A and B on the same problems: is B better than A?

All comparisons use this module: of models, of runs, of two evaluations, of a gate's candidate, and
of searches with plain sampling. Pairing by problem removes the differences in difficulty from the
standard error. The problem is the unit of sampling, because completions of one problem are not
independent (Miller 2024, arXiv 2411.00640, section 4).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from assay.run.intervals import NORMAL_QUANTILE, Interval, spread_words, stderr_of, t_quantile

_MOST_POINTS = 2**18
"""Limit of the denominators in `sign_flip_p`, and so of its grid size and memory."""


@dataclass(frozen=True, slots=True)
class Gain:
    """Gain in accuracy of policy B over policy A, on the problems that were judged for both.

    value: mean difference per problem. stderr: paired standard error of the mean difference; None
    for a single problem. interval: 95 % interval, computed by `paired_interval`.
    """

    value: float
    stderr: float | None
    num_problems: int
    interval: Interval

    def __str__(self) -> str:
        spread = spread_words(self.stderr, self.interval, self.num_problems, "+.1%")
        return f"{self.value:+.1%}{spread}"

    @property
    def points(self) -> str:
        """Text of the gain in percentage points, with its uncertainty."""
        low, high = (100 * one for one in self.interval)
        error = None if self.stderr is None else 100 * self.stderr
        spread = spread_words(error, (low, high), self.num_problems, "+.1f")
        return f"{100 * self.value:+.1f} points{spread}"


@dataclass(frozen=True, slots=True)
class Paired:
    """Pass rates of policies A and B on the problems that were judged for both. ids: ids of the
    compared problems.
    """

    ids: tuple[str, ...] = ()
    a: tuple[float, ...] = ()
    b: tuple[float, ...] = ()

    @classmethod
    def of(
        cls, a: Mapping[str, float], b: Mapping[str, float], ids: Iterable[str] | None = None
    ) -> Paired:
        """Pair the pass rates of two policies by problem id. ids: ids of the problems to include;
        None means all problems of A.
        """
        both = tuple(id for id in (a if ids is None else ids) if id in a and id in b)
        return cls(both, tuple(a[id] for id in both), tuple(b[id] for id in both))

    @classmethod
    def joined(cls, parts: Sequence[Paired]) -> Paired:
        """Concatenate results on different problems."""
        sides = ("ids", "a", "b")
        return cls(*(tuple(one for each in parts for one in getattr(each, side)) for side in sides))

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def differences(self) -> list[float]:
        """Difference in pass rate, B minus A, for each problem."""
        return [after - before for before, after in zip(self.a, self.b, strict=True)]

    @property
    def better(self) -> tuple[str, ...]:
        """Ids of the problems on which B has a higher pass rate than A."""
        return tuple(id for id, one in zip(self.ids, self.differences, strict=True) if one > 0)

    @property
    def worse(self) -> tuple[str, ...]:
        """Ids of the problems on which B has a lower pass rate than A."""
        return tuple(id for id, one in zip(self.ids, self.differences, strict=True) if one < 0)

    @property
    def gain(self) -> Gain | None:
        """Gain in accuracy of policy B over policy A; None without common problems."""
        return gain_of(self.differences) if self.ids else None

    @property
    def p_value(self) -> float | None:
        """Two-sided p value of the exact paired test (`sign_flip_p`); None without common
        problems."""
        return sign_flip_p(self.differences) if self.ids else None


def gain_of(differences: Sequence[float]) -> Gain:
    """Return the gain, computed from the differences B minus A of at least one problem."""
    interval = paired_interval(differences)
    return Gain(float(np.mean(differences)), stderr_of(differences), len(differences), interval)


def paired_rows(first: Mapping[str, Any], last: Mapping[str, Any]) -> Paired:
    """Pair two evaluations by problem; without results per problem, the result is empty."""
    before, after = (row.get("eval/by_problem") or {} for row in (first, last))
    return Paired.of(before, after)


def gain_between(first: Mapping[str, Any], last: Mapping[str, Any]) -> Gain | None:
    """Return the gain between two evaluations, paired by problem; None without results per
    problem."""
    return None if first is last else paired_rows(first, last).gain


def paired_interval(differences: Sequence[float]) -> Interval:
    """Return a 95 % interval of the mean of paired differences, each in [-1, 1].

    It is Student's interval, mean ± t e, with the standard error e. If all differences are -1, 0 or
    1 (one completion per problem), or all are equal, the interval is the adjusted Wald interval of
    Bonett and Price (2012), which adds one gained and one lost problem.
    """
    # If all differences are equal, Student's interval would have the width 0.
    # The Wald interval always has.
    count, error = len(differences), stderr_of(differences)
    if error and not all(one in (-1, 0, 1) for one in differences):
        mean, half = float(np.mean(differences)), t_quantile(count - 1) * error
    else:
        gained, lost = (
            (sum(max(0.0, sign * one) for one in differences) + 1) / (count + 2) for sign in (1, -1)
        )
        mean, variance = gained - lost, gained + lost - (gained - lost) ** 2
        half = NORMAL_QUANTILE * math.sqrt(variance / (count + 2))
    return max(-1.0, mean - half), min(1.0, mean + half)


def sign_flip_p(differences: Sequence[float]) -> float:
    """Return the two-sided p value of the exact sign-flip permutation test for paired differences.

    The p value is the probability that random signs give a sum at least as far from 0 as the
    observed sum (Fisher 1935, section 21). For differences -1, 0 and 1 the test equals McNemar's
    exact test. Differences without a small common denominator are rounded to multiples of 1/131,072
    of the sum of their absolute values.
    """
    # There are 2^n patterns of signs, too many to enumerate.
    # The characteristic functions cos(d w), multiplied on a grid, count all sign patterns at once.
    # See Pagano and Tritchler (1983).
    sizes = _whole_numbers(differences)
    total, observed = sum(abs(one) for one in sizes), abs(sum(sizes))
    if not observed:
        return 1.0
    num_points = 2 ** (2 * total + 1).bit_length()
    # The characteristic function is even, so half of the grid is sufficient.
    angles = 2 * np.pi * np.arange(num_points // 2 + 1) / num_points
    product = np.ones(len(angles))
    for size, count in Counter(abs(one) for one in sizes if one).items():
        product *= np.cos(size * angles) ** count
    # The probability of a sum k of signed differences is at the index k modulo num_points.
    chances = np.fft.irfft(product, num_points)
    both = float(chances[observed : num_points - observed + 1].sum())
    num_nonzero = sum(one != 0 for one in sizes)
    # The p value has a lower limit, because FFT rounding errors could make a tiny p value 0.
    # The observed signs and their mirror image always count, so the p value is at least 2 / 2^n.
    return min(1.0, max(both, 2.0 ** (1 - num_nonzero)))


def _whole_numbers(differences: Sequence[float]) -> list[int]:
    """Return the differences as integer multiples of a common unit; a too small unit is rounded."""
    exact = [Fraction(one).limit_denominator(_MOST_POINTS) for one in differences]
    unit = math.lcm(*(one.denominator for one in exact))
    extent = float(sum(abs(one) for one in exact))
    unit = min(unit, max(1, int(_MOST_POINTS / (2 * extent)))) if extent else 1
    return [round(one * unit) for one in exact]


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p values for multiple testing by Holm's method (1979).

    The corrected p values are in the order of the input.
    """
    order = sorted(range(len(p_values)), key=lambda n: p_values[n])
    adjusted, least = [0.0] * len(p_values), 0.0
    for rank, n in enumerate(order):
        least = max(least, min(1.0, (len(p_values) - rank) * p_values[n]))
        adjusted[n] = least
    return adjusted
