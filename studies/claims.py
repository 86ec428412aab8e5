"""Claims and how they are judged: by criteria that are written down before anything is run.

Arms share their seeds (cold start, problems), so that differences are taken seed by seed. Their
standard error is sqrt(sum (d - mean)^2 / (n - 1) / n); "2 standard errors" of three seeds is weaker
evidence than it sounds (a t of 2 with two degrees of freedom: p = 0.18 in two tails).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Outcomes = Mapping[str, Mapping[int, Mapping[str, float]]]
Verdict = Literal["reproduced", "not reproduced", "undecided"]


@dataclass(frozen=True)
class Finding:
    """How a claim fared: the verdict, and the numbers in a sentence."""

    verdict: Verdict
    numbers: str


@dataclass(frozen=True)
class Claim:
    """A sentence of the literature in this study's terms. criterion: in words, what decides it."""

    says: str
    criterion: str
    test: Callable[[Outcomes], Finding]


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and its standard error; what too few values leave open is not a number."""
    if not values:
        return math.nan, math.nan
    mean = sum(values) / len(values)
    if len(values) < 2:
        return mean, math.nan
    variance = sum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return mean, math.sqrt(variance / len(values))


@dataclass(frozen=True)
class Of:
    """A value of an arm, as one side of a comparison."""

    arm: str
    value: str


def compare(outcomes: Outcomes, first: Of, second: Of, as_ratio: bool = False) -> list[float]:
    """Return ``first - second`` of each seed that measured both; as a ratio: log(first / second)."""
    seeds = sorted(outcomes[first.arm].keys() & outcomes[second.arm].keys())
    found = [
        (outcomes[first.arm][n].get(first.value), outcomes[second.arm][n].get(second.value))
        for n in seeds
    ]
    pairs = [(a, b) for a, b in found if a is not None and b is not None]
    return [math.log(a / b) if as_ratio else a - b for a, b in pairs]


def exceeds(says: str, first: Of, second: Of, margin: float, as_ratio: bool = False) -> Claim:
    """Claim that one value exceeds another by at least ``margin``; as a ratio: is at least ``margin`` times it.

    With d the mean over seeds of the difference (of the log ratio), m the margin (its logarithm), e the
    standard error: reproduced where d >= m and d > 2 e; not reproduced where d + 2 e < m; else undecided.
    """
    bound = math.log(margin) if as_ratio else margin
    criterion = (
        f"{_sides(first, second, as_ratio)}: reproduced if its mean is at least {margin:g} and beyond"
        f" 2 standard errors of {1 if as_ratio else 0}; not reproduced if 2 standard errors above its mean"
        f" is below {margin:g}; else undecided"
    )

    def test(outcomes: Outcomes) -> Finding:
        mean, error = mean_and_error(compare(outcomes, first, second, as_ratio))
        if mean >= bound and mean > 2 * error:
            return Finding("reproduced", _numbers(mean, error, as_ratio))
        verdict: Verdict = "not reproduced" if mean + 2 * error < bound else "undecided"
        return Finding(verdict, _numbers(mean, error, as_ratio))

    return Claim(says, criterion, test)


def equals(says: str, first: Of, second: Of, margin: float, as_ratio: bool = False) -> Claim:
    """Claim that two values differ by less than ``margin``; as a ratio: by less than that factor.

    Reproduced where |d| + 2 e < m; not reproduced where |d| - 2 e > m; else undecided.
    """
    bound = math.log(margin) if as_ratio else margin
    allowed = f"1/{margin:g} and {margin:g}" if as_ratio else f"-{margin:g} and {margin:g}"
    criterion = (
        f"{_sides(first, second, as_ratio)}: reproduced if mean ± 2 standard errors lies between {allowed};"
        " not reproduced if it lies wholly outside; else undecided"
    )

    def test(outcomes: Outcomes) -> Finding:
        mean, error = mean_and_error(compare(outcomes, first, second, as_ratio))
        if abs(mean) + 2 * error < bound:
            return Finding("reproduced", _numbers(mean, error, as_ratio))
        verdict: Verdict = "not reproduced" if abs(mean) - 2 * error > bound else "undecided"
        return Finding(verdict, _numbers(mean, error, as_ratio))

    return Claim(says, criterion, test)


def not_below(says: str, first: Of, second: Of, margin: float) -> Claim:
    """Claim that one value is not below another by ``margin`` or more.

    Reproduced where d - 2 e > -m; not reproduced where d + 2 e < -m; else undecided.
    """
    criterion = (
        f"{_sides(first, second, as_ratio=False)}: reproduced if 2 standard errors below its mean is above"
        f" -{margin:g}; not reproduced if 2 standard errors above its mean is below that; else undecided"
    )

    def test(outcomes: Outcomes) -> Finding:
        mean, error = mean_and_error(compare(outcomes, first, second))
        if mean - 2 * error > -margin:
            return Finding("reproduced", _numbers(mean, error, as_ratio=False))
        verdict: Verdict = "not reproduced" if mean + 2 * error < -margin else "undecided"
        return Finding(verdict, _numbers(mean, error, as_ratio=False))

    return Claim(says, criterion, test)


def _sides(first: Of, second: Of, as_ratio: bool) -> str:
    joined = "over" if as_ratio else "less"
    if first.value == second.value:
        named = f"`{first.value}`, *{first.arm}* {joined} *{second.arm}*"
    else:
        sides = [f"`{side.value}` of *{side.arm}*" for side in (first, second)]
        named = f" {joined} ".join(sides)
    return f"{named}, seed by seed"


def _numbers(mean: float, error: float, as_ratio: bool) -> str:
    if not as_ratio:
        return f"difference {number(mean)} ± {number(error)}"
    low, high = math.exp(mean - error), math.exp(mean + error)
    return f"ratio {number(math.exp(mean))} ({number(low)} to {number(high)} at one standard error)"


def number(value: float) -> str:
    """Return three significant digits, without an exponent where one can do without."""
    if value == 0 or math.isnan(value) or math.isinf(value):
        return f"{value:g}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{digits}f}" if digits <= 6 else f"{value:.2e}"
