"""Claims and how they are judged: by criteria that are written down before anything is run.

Arms share their seeds (cold start, problems), so that differences are taken seed by seed. What
decides is the 95 % interval of their mean, by Student's t (Student 1908): mean ± t e, where e is
sqrt(sum (d - mean)^2 / (n - 1) / n) and t is that of n - 1 degrees of freedom (2.36 of eight
seeds). Fewer than eight seeds decide nothing. Each interval is for its claim alone: of forty, two
miss. A verdict stands where a second run on other seeds agrees. The second run of older pages has
the same seeds on kernels that round differently; it repeats much of the first run's noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from assay.run.intervals import t_quantile

Outcomes = Mapping[str, Mapping[int, Mapping[str, float]]]
Verdict = Literal["reproduced", "not reproduced", "inconclusive"]
MIN_SEEDS = 8


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
class Interval:
    """The mean of paired differences and the 95 % interval around it; wide open of too few
    seeds."""

    mean: float
    low: float
    high: float
    num_seeds: int

    @classmethod
    def of(cls, differences: Sequence[float]) -> Interval:
        """Return the interval of the differences' mean."""
        count = len(differences)
        mean, error = mean_and_error(differences)
        if count < MIN_SEEDS:
            return cls(mean, -math.inf, math.inf, count)
        half = t_quantile(count - 1) * error
        return cls(mean, mean - half, mean + half, count)

    def told(self, as_ratio: bool) -> str:
        """Return it in words; as_ratio: its numbers are logarithms."""
        what = "ratio" if as_ratio else "difference"
        values = (self.mean, self.low, self.high)
        mean, low, high = (number(math.exp(x) if as_ratio else x) for x in values)
        if self.num_seeds < MIN_SEEDS:
            return f"{what} {mean} ({self.num_seeds} seeds: too few to decide)"
        return f"{what} {mean} ({low} to {high}, {self.num_seeds} seeds)"


@dataclass(frozen=True)
class Of:
    """A value of an arm, as one side of a comparison."""

    arm: str
    value: str


def compare(outcomes: Outcomes, first: Of, second: Of, as_ratio: bool = False) -> list[float]:
    """Return ``first - second`` of each seed that measured both; as a ratio: log(first /
    second)."""
    seeds = sorted(outcomes[first.arm].keys() & outcomes[second.arm].keys())
    found = [
        (outcomes[first.arm][n].get(first.value), outcomes[second.arm][n].get(second.value))
        for n in seeds
    ]
    pairs = [(a, b) for a, b in found if a is not None and b is not None]
    return [math.log(a / b) if as_ratio else a - b for a, b in pairs]


def exceeds(says: str, first: Of, second: Of, margin: float, as_ratio: bool = False) -> Claim:
    """Claim that one value exceeds another by at least ``margin``; as a ratio: is at least
    ``margin`` times it.

    With d the mean over seeds of the difference (of the log ratio) and m the margin (its
    logarithm): reproduced where d >= m and the interval lies above 0; not reproduced where it lies
    below m; else inconclusive.
    """
    bound = math.log(margin) if as_ratio else margin
    criterion = (
        f"{_sides(first, second, as_ratio)}. Reproduced: the mean is at least {margin:g} and the"
        f" interval lies above {1 if as_ratio else 0}. Not reproduced: the interval lies below"
        f" {margin:g}"
    )

    def test(outcomes: Outcomes) -> Finding:
        found = Interval.of(compare(outcomes, first, second, as_ratio))
        if found.mean >= bound and found.low > 0:
            return Finding("reproduced", found.told(as_ratio))
        verdict: Verdict = "not reproduced" if found.high < bound else "inconclusive"
        return Finding(verdict, found.told(as_ratio))

    return Claim(says, criterion, test)


def equals(says: str, first: Of, second: Of, margin: float, as_ratio: bool = False) -> Claim:
    """Claim that two values differ by less than ``margin``; as a ratio: by less than that factor.

    Reproduced where the interval lies within -m and m; not reproduced where it lies wholly outside.
    """
    bound = math.log(margin) if as_ratio else margin
    allowed = f"1/{margin:g} and {margin:g}" if as_ratio else f"-{margin:g} and {margin:g}"
    criterion = (
        f"{_sides(first, second, as_ratio)}. Reproduced: the interval lies between {allowed}."
        " Not reproduced: it lies outside"
    )

    def test(outcomes: Outcomes) -> Finding:
        found = Interval.of(compare(outcomes, first, second, as_ratio))
        if -bound < found.low and found.high < bound:
            return Finding("reproduced", found.told(as_ratio))
        outside = found.low > bound or found.high < -bound
        return Finding("not reproduced" if outside else "inconclusive", found.told(as_ratio))

    return Claim(says, criterion, test)


def not_below(says: str, first: Of, second: Of, margin: float) -> Claim:
    """Claim that one value is not below another by ``margin`` or more.

    Reproduced where the interval lies above -m; not reproduced where it lies below; else
    inconclusive.
    """
    criterion = (
        f"{_sides(first, second, as_ratio=False)}. Reproduced: the interval lies above"
        f" -{margin:g}. Not reproduced: it lies below -{margin:g}"
    )

    def test(outcomes: Outcomes) -> Finding:
        found = Interval.of(compare(outcomes, first, second))
        if found.low > -margin:
            return Finding("reproduced", found.told(as_ratio=False))
        verdict: Verdict = "not reproduced" if found.high < -margin else "inconclusive"
        return Finding(verdict, found.told(as_ratio=False))

    return Claim(says, criterion, test)


def standing(findings: Sequence[Finding]) -> str:
    """Return a claim's verdict over its runs, in words. It is decided only if two runs agree."""
    verdicts = [finding.verdict for finding in findings]
    if len(verdicts) == 1:
        return f"{verdicts[0].capitalize()}, in one run"
    if len(set(verdicts)) == 1:
        return verdicts[0].capitalize()
    return f"Inconclusive: {verdicts[0]} in the first run, {verdicts[1]} in the second"


def _sides(first: Of, second: Of, as_ratio: bool) -> str:
    joined = "divided by" if as_ratio else "minus"
    if first.value == second.value:
        named = f"`{first.value}`, *{first.arm}* {joined} *{second.arm}*"
    else:
        sides = [f"`{side.value}` of *{side.arm}*" for side in (first, second)]
        named = f" {joined} ".join(sides)
    return f"Compared: {named}"


def number(value: float) -> str:
    """Return three significant digits, without an exponent where one can do without.

    What only rounding left of a difference is 0.
    """
    if abs(value) < 1e-12:
        return "0"
    if math.isnan(value) or math.isinf(value):
        return f"{value:g}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{digits}f}" if digits <= 6 else f"{value:.2e}"
