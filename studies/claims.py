"""Claims and their verdicts, by criteria that are fixed before any run.

All arms use the same seeds (cold start, problems), so arms are compared by their differences per
seed. The 95 % interval of the mean difference determines the verdict, by Student's t (Student
1908): mean ± t e, with e = sqrt(sum (d - mean)^2 / (n - 1) / n) and t for n - 1 degrees of freedom
(2.36 for eight seeds). With fewer than eight seeds, a claim stays open. Each interval covers one
claim only: of forty intervals, about two miss the true value. A claim is decided if a second run
with other seeds agrees. The second run of older pages uses the same seeds with kernels that round
differently, and repeats much of the noise of the first run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from assay.run.seed_statistics import SeedDifference, three_digits

Outcomes = Mapping[str, Mapping[int, Mapping[str, float]]]
Verdict = Literal["reproduced", "not reproduced", "inconclusive"]


@dataclass(frozen=True)
class Finding:
    """Result of a claim in one run: the verdict, and a sentence with the numbers."""

    verdict: Verdict
    numbers: str


@dataclass(frozen=True)
class Claim:
    """A claim of the literature in the terms of a study. criterion: text of the criterion."""

    says: str
    criterion: str
    test: Callable[[Outcomes], Finding]


def interval_of(differences: Sequence[float]) -> SeedDifference:
    """Return the interval of the mean of paired differences; infinitely wide for too few seeds."""
    found = SeedDifference.of(differences)
    return found if found.is_enough else replace(found, low=-math.inf, high=math.inf)


def told(found: SeedDifference, as_ratio: bool) -> str:
    """Format an interval as text. as_ratio: its numbers are logarithms of ratios."""
    what = "ratio" if as_ratio else "difference"
    values = (found.mean, found.low, found.high)
    mean, low, high = (three_digits(math.exp(x) if as_ratio else x) for x in values)
    if not found.is_enough:
        return f"{what} {mean} ({found.num_seeds} seeds: too few to decide)"
    return f"{what} {mean} (95 % interval {low} to {high}, {found.num_seeds} seeds)"


@dataclass(frozen=True)
class Of:
    """A value of an arm, as one side of a comparison."""

    arm: str
    value: str


def compare(outcomes: Outcomes, first: Of, second: Of, as_ratio: bool = False) -> list[float]:
    """Return ``first - second`` for each seed with both values; as a ratio: log(first / second)."""
    seeds = sorted(outcomes[first.arm].keys() & outcomes[second.arm].keys())
    found = [
        (outcomes[first.arm][n].get(first.value), outcomes[second.arm][n].get(second.value))
        for n in seeds
    ]
    pairs = [(a, b) for a, b in found if a is not None and b is not None]
    return [math.log(a / b) if as_ratio else a - b for a, b in pairs]


def exceeds(says: str, first: Of, second: Of, margin: float, as_ratio: bool = False) -> Claim:
    """Claim that one value exceeds another by at least ``margin``, or for ratios by this factor.

    With d the mean difference over seeds (of logarithms, for ratios) and m the margin (its
    logarithm), the claim is reproduced if d >= m and the interval is above 0. The claim is not
    reproduced if the interval is below m, and else inconclusive.
    """
    bound = math.log(margin) if as_ratio else margin
    what = "ratio" if as_ratio else "difference"
    criterion = (
        f"{_sides(first, second, as_ratio)}. The claim counts as reproduced if the mean {what} is"
        f" at least {margin:g} and its 95 % interval lies above {1 if as_ratio else 0}. The claim"
        f" counts as not reproduced if the whole 95 % interval lies below {margin:g}"
    )

    def test(outcomes: Outcomes) -> Finding:
        found = interval_of(compare(outcomes, first, second, as_ratio))
        if found.mean >= bound and found.low > 0:
            return Finding("reproduced", told(found, as_ratio))
        verdict: Verdict = "not reproduced" if found.high < bound else "inconclusive"
        return Finding(verdict, told(found, as_ratio))

    return Claim(says, criterion, test)


def equals(says: str, first: Of, second: Of, margin: float, as_ratio: bool = False) -> Claim:
    """Claim that two values differ by less than ``margin``, or for ratios by less than this factor.

    The claim is reproduced if the interval is within -m and m, and not reproduced if the interval
    is completely outside.
    """
    bound = math.log(margin) if as_ratio else margin
    allowed = f"1/{margin:g} and {margin:g}" if as_ratio else f"-{margin:g} and {margin:g}"
    criterion = (
        f"{_sides(first, second, as_ratio)}. The claim counts as reproduced if the whole 95 %"
        f" interval lies between {allowed}. The claim counts as not reproduced if the whole 95 %"
        " interval lies outside of this range"
    )

    def test(outcomes: Outcomes) -> Finding:
        found = interval_of(compare(outcomes, first, second, as_ratio))
        if -bound < found.low and found.high < bound:
            return Finding("reproduced", told(found, as_ratio))
        outside = found.low > bound or found.high < -bound
        return Finding("not reproduced" if outside else "inconclusive", told(found, as_ratio))

    return Claim(says, criterion, test)


def not_below(says: str, first: Of, second: Of, margin: float) -> Claim:
    """Claim that one value is not below another by ``margin`` or more.

    The claim is reproduced if the interval is above -m, not reproduced if the interval is below -m,
    and else inconclusive.
    """
    criterion = (
        f"{_sides(first, second, as_ratio=False)}. The claim counts as reproduced if the whole 95 %"
        f" interval lies above -{margin:g}. The claim counts as not reproduced if the whole 95 %"
        f" interval lies below -{margin:g}"
    )

    def test(outcomes: Outcomes) -> Finding:
        found = interval_of(compare(outcomes, first, second))
        if found.low > -margin:
            return Finding("reproduced", told(found, as_ratio=False))
        verdict: Verdict = "not reproduced" if found.high < -margin else "inconclusive"
        return Finding(verdict, told(found, as_ratio=False))

    return Claim(says, criterion, test)


def standing(findings: Sequence[Finding]) -> str:
    """Return the verdict of a claim over its runs as text. A claim is decided only if two runs
    agree."""
    verdicts = [finding.verdict for finding in findings]
    if len(verdicts) == 1:
        return f"{verdicts[0].capitalize()}, in one run"
    if len(set(verdicts)) == 1:
        return verdicts[0].capitalize()
    return f"Inconclusive ({verdicts[0]} in the first run, {verdicts[1]} in the second run)"


def _sides(first: Of, second: Of, as_ratio: bool) -> str:
    joined = "divided by" if as_ratio else "minus"
    if first.value == second.value:
        named = f"`{first.value}`, *{first.arm}* {joined} *{second.arm}*"
    else:
        sides = [f"`{side.value}` of *{side.arm}*" for side in (first, second)]
        named = f" {joined} ".join(sides)
    return f"compares {named}"
