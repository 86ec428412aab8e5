"""Is B better than A? Paired comparison of A and B on the same problems.

Every comparison uses this module: of models, runs, evaluations of a run, a gate's candidate and its
reference, or a search and plain sampling. Pairing removes the difficulty of the problems from the
error. Problems are the sample, because completions of one problem are not independent (Miller 2024,
arXiv 2411.00640, section 4).
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

# Size limit of the grid that counts sums of differences.
_MOST_POINTS = 2**18


@dataclass(frozen=True, slots=True)
class Gain:
    """Gain of B over A in accuracy, over problems judged for both.

    stderr: standard error of the mean difference per problem, paired because both use
    the same random numbers; None for one problem. interval: 95 %, see `paired_interval`.
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
        """The gain in percentage points."""
        low, high = (100 * one for one in self.interval)
        error = None if self.stderr is None else 100 * self.stderr
        spread = spread_words(error, (low, high), self.num_problems, "+.1f")
        return f"{100 * self.value:+.1f} points{spread}"


@dataclass(frozen=True, slots=True)
class Paired:
    """Pass rates of A and of B on the problems judged for both, in the order of ``ids``."""

    ids: tuple[str, ...] = ()
    a: tuple[float, ...] = ()
    b: tuple[float, ...] = ()

    @classmethod
    def of(
        cls, a: Mapping[str, float], b: Mapping[str, float], ids: Iterable[str] | None = None
    ) -> Paired:
        """Pair pass rates by problem id. ids: problems to use; None: all of A, in its order."""
        both = tuple(id for id in (a if ids is None else ids) if id in a and id in b)
        return cls(both, tuple(a[id] for id in both), tuple(b[id] for id in both))

    @classmethod
    def joined(cls, parts: Sequence[Paired]) -> Paired:
        """Join results on different problems."""
        sides = ("ids", "a", "b")
        return cls(*(tuple(one for each in parts for one in getattr(each, side)) for side in sides))

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def differences(self) -> list[float]:
        """B minus A, for each problem."""
        return [after - before for before, after in zip(self.a, self.b, strict=True)]

    @property
    def better(self) -> tuple[str, ...]:
        """Ids of the problems on which B is better."""
        return tuple(id for id, one in zip(self.ids, self.differences, strict=True) if one > 0)

    @property
    def worse(self) -> tuple[str, ...]:
        """Ids of the problems on which B is worse."""
        return tuple(id for id, one in zip(self.ids, self.differences, strict=True) if one < 0)

    @property
    def gain(self) -> Gain | None:
        """Gain of B over A; None without problems."""
        return gain_of(self.differences) if self.ids else None

    @property
    def p_value(self) -> float | None:
        """P value of the exact paired test (`sign_flip_p`); None without problems."""
        return sign_flip_p(self.differences) if self.ids else None


def gain_of(differences: Sequence[float]) -> Gain:
    """Return the gain from the differences of at least one problem."""
    interval = paired_interval(differences)
    return Gain(float(np.mean(differences)), stderr_of(differences), len(differences), interval)


def paired_rows(first: Mapping[str, Any], last: Mapping[str, Any]) -> Paired:
    """Pair two evaluation rows; empty if one lacks results per problem."""
    before, after = (row.get("eval/by_problem") or {} for row in (first, last))
    return Paired.of(before, after)


def gain_between(first: Mapping[str, Any], last: Mapping[str, Any]) -> Gain | None:
    """Return the paired gain of two rows; None if they lack results per problem."""
    return None if first is last else paired_rows(first, last).gain


def paired_interval(differences: Sequence[float]) -> Interval:
    """Return a 95 % interval of the mean of paired differences, each in [-1, 1].

    Student's interval, mean ± t e. If all differences are -1, 0 or 1 (one completion per problem),
    or all are equal: the adjusted Wald interval, which adds one gained and one lost problem (Bonett
    and Price 2012). Its width stays positive even if all differences are 0.
    """
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
