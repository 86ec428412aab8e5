"""What the guard's rules look at: small functions of a rule and of the series that a run has.

Each returns what it found, or None. They are named by `check` in the rows of
``assay/config/guard.toml``, whose `limit`, `floor` and `window` they compare with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from assay.config.guard import Rule
from assay.run.evaluations import Row, accuracy_of, gain_between, of_deciding_kind
from assay.run.history import History, Window

_NO_PARTS = ("reward/std", "reward/per_token", "reward/kl", "reward/overlong")
PASSED = "verdict/passed"


@dataclass(frozen=True)
class Seen:
    """What a rule may look at. after: the step at which it spoke last; windows begin behind it.

    row: of the newest step. price: of an hour.
    """

    history: History
    evaluations: Sequence[Row] = ()
    row: Mapping[str, float] = field(default_factory=dict[str, float])
    after: int = 0
    price: float = 1.0

    def windows(self, rule: Rule) -> Iterator[tuple[str, Window]]:
        """Yield the newest window of each metric that a rule reads."""
        for pattern in rule.reads:
            for name in self.history.names(pattern):
                part = self.history.newest(name, rule.window, self.after)
                if part is not None and name not in _NO_PARTS:
                    yield name, part


@dataclass(frozen=True)
class CheckFound:
    """What a check found. since: the step where it began. numbers: for the words of the rule.

    series: the metrics that decided, of which the first is the one that the rule is about.
    """

    since: int
    series: Sequence[str]
    numbers: Mapping[str, Any]


def not_finite(rule: Rule, seen: Seen) -> CheckFound | None:
    """The newest value of a metric is not a number, or infinite."""
    heads = tuple(name.removesuffix("*") for name in rule.reads)
    for name, value in seen.row.items():
        if name.startswith(heads) and not math.isfinite(value):
            return CheckFound(int(seen.row["step"]), [name], {"value": value})
    return None


def above(rule: Rule, seen: Seen) -> CheckFound | None:
    """The mean over the window is above the limit."""
    for name, part in seen.windows(rule):
        if not part.mean <= rule.bound:  # also where it is no number
            return CheckFound(part.steps[0], [name], {"value": part.mean})
    return None


def below(rule: Rule, seen: Seen) -> CheckFound | None:
    """The mean over the window is below the limit."""
    for name, part in seen.windows(rule):
        if part.mean < rule.bound:
            return CheckFound(part.steps[0], [name], {"value": part.mean})
    return None


def jump(rule: Rule, seen: Seen) -> CheckFound | None:
    """The newest value is above the floor, and above limit times the median of the window before.

    The median, since one outlier before must not hide the next.
    """
    for pattern in rule.reads:
        for name in seen.history.names(pattern):
            part = seen.history.newest(name, rule.window + 1, seen.after)
            if part is None:
                continue
            before, value = float(np.median(part.values[:-1])), float(part.values[-1])
            if value > max(rule.floor, rule.bound * before):
                return CheckFound(part.steps[-1], [name], {"value": value, "before": before})
    return None


def outgrown(rule: Rule, seen: Seen) -> CheckFound | None:
    """The mean over the window is above the floor, and above limit times the very first value."""
    for name, part in seen.windows(rule):
        first = float(seen.history.part(name, 0, 1).values[0])
        if part.mean > max(rule.floor, rule.bound * first):
            return CheckFound(part.steps[0], [name], {"value": part.mean, "before": first})
    return None


def fallen(rule: Rule, seen: Seen) -> CheckFound | None:
    """The window's mean is below limit times the first one's, and fewer than the floor pass."""
    for name, part in seen.windows(rule):
        first = seen.history.part(name, 0, rule.window)
        passed = seen.history.newest(PASSED, rule.window)
        if part.steps[0] <= first.steps[-1] or passed is None or passed.mean >= rule.floor:
            continue
        if part.mean < rule.bound * first.mean:
            numbers = {"value": part.mean, "before": first.mean, "passed": passed.mean}
            return CheckFound(part.steps[0], [name, PASSED], numbers)
    return None


SURE = 0.9
"""Share that passes, above which a policy that is sure of itself is what was wanted."""


def falls_alone(rule: Rule, seen: Seen) -> CheckFound | None:
    """The window's mean of the first metric is below limit times the very first window's, none of
    the others rose, and the first of these, a share, is not above `SURE`.

    One has risen where it did so by more than floor standard errors, from its first window to its
    newest.
    """
    falling, *others = rule.reads
    rises: list[_Rise] = []
    for name in (falling, *others):
        newest = seen.history.newest(name, rule.window, seen.after)
        first = seen.history.part(name, 0, rule.window) if newest is not None else None
        if newest is None or first is None or newest.steps[0] <= first.steps[-1]:
            return None
        values = np.concatenate([first.values, newest.values])
        rises.append(_rise(Window([*first.steps, *newest.steps], values)))
    fall, *rest = rises
    won = rest[0].after > SURE or any(one.times > rule.floor for one in rest)
    if won or fall.after >= rule.bound * fall.before:
        return None
    numbers = {"before": fall.before, "value": fall.after}
    numbers |= {"passed_before": rest[0].before, "passed": rest[0].after}
    last = seen.history.part(falling, -rule.window).steps[0]
    return CheckFound(last, [falling, *others], numbers)


def collapsed(rule: Rule, seen: Seen) -> CheckFound | None:
    """The window's mean is below limit times the best earlier window's, and by the floor too."""
    for name, part in seen.windows(rule):
        earlier = seen.history.part(name, 0, -rule.window)
        if len(earlier.steps) < rule.window:
            continue
        sums = np.cumsum(np.concatenate([[0.0], earlier.values]))
        means = (sums[rule.window :] - sums[: -rule.window]) / rule.window
        at = int(np.argmax(means))
        best, value = float(means[at]), part.mean
        if value < min(rule.bound * best, best - rule.floor):
            last = earlier.steps[at + rule.window - 1]
            return CheckFound(last, [name], {"value": value, "before": best, "first": last})
    return None


def against(rule: Rule, seen: Seen) -> CheckFound | None:
    """A metric rises over the window's halves while fewer pass, both beyond chance.

    By more than limit standard errors of a difference of means; correctness by the floor at least.
    """
    passed = seen.history.newest(PASSED, rule.window, seen.after)
    if passed is None or (fall := _rise(passed)).value > -rule.floor or fall.times > -rule.bound:
        return None
    for name, part in seen.windows(rule):
        rise = _rise(part)
        if rise.times > rule.bound and part.steps == passed.steps:
            numbers = {"before": rise.before, "value": rise.after}
            numbers |= {"passed_before": fall.before, "passed": fall.after}
            return CheckFound(part.steps[len(part.steps) // 2], [name, PASSED], numbers)
    return None


def grows_alone(rule: Rule, seen: Seen) -> CheckFound | None:
    """The second half of the window is limit times the first, and no more pass than did.

    More pass where the share rose by more than floor standard errors.
    """
    passed = seen.history.newest(PASSED, rule.window, seen.after)
    if passed is None:
        return None
    for name, part in seen.windows(rule):
        growth, right = _rise(part), _rise(passed)
        if growth.after > rule.bound * growth.before and right.times < rule.floor:
            numbers = {"before": growth.before, "value": growth.after}
            numbers |= {"passed_before": right.before, "passed": right.after}
            return CheckFound(part.steps[len(part.steps) // 2], [name, PASSED], numbers)
    return None


def against_heldout(rule: Rule, seen: Seen) -> CheckFound | None:
    """Held-out accuracy fell since the best of the last evaluations, and the reward did not.

    Problem by problem, by more than limit standard errors and by the floor. The reward did not fall
    by more than one standard error. window: evaluations.
    """
    (reward,) = rule.reads
    fall = _heldout_fall(rule, seen)
    if fall is None or fall.value < rule.floor or reward not in seen.history:
        return None
    series = seen.history[reward]
    between = [n for n, step in enumerate(series.steps) if fall.first < step <= fall.last]
    if len(between) < 4:
        return None
    rise = _rise(Window([series.steps[n] for n in between], series.values[between]))
    if rise.times < -1.0:
        return None
    numbers = {"before": rise.before, "value": rise.after, **fall.numbers}
    return CheckFound(fall.first + 1, [reward, "eval/pass_at_1"], numbers)


def heldout_fell(rule: Rule, seen: Seen) -> CheckFound | None:
    """Held-out accuracy fell below floor times the best of the last evaluations, beyond chance."""
    fall = _heldout_fall(rule, seen)
    if fall is None or fall.best - fall.value >= rule.floor * fall.best:
        return None
    return CheckFound(fall.first + 1, list(rule.reads), fall.numbers)


@dataclass(frozen=True, slots=True)
class _Fall:
    """From the best of the last evaluations to the newest. value: by how much, with its error."""

    first: int
    last: int
    best: float
    value: float
    error: float

    @property
    def numbers(self) -> dict[str, float]:
        found = {"fall": self.value, "error": self.error, "first": self.first}
        return {**found, "times": self.value / self.error}


def _heldout_fall(rule: Rule, seen: Seen) -> _Fall | None:
    """Return a fall of more than limit standard errors, problem by problem."""
    rows = [row for row in of_deciding_kind(seen.evaluations) if row["step"] >= seen.after]
    rows = [row for row in rows if accuracy_of(row) is not None][-rule.window :]
    if len(rows) < 2:
        return None
    best, last = max(rows, key=lambda row: accuracy_of(row) or 0.0), rows[-1]
    gain = gain_between(best, last)
    if gain is None or gain.stderr is None:
        return None
    # where all problems change alike there is no spread: one of them is what chance may do
    fall, error = -gain.value, max(gain.stderr, 1 / gain.num_problems)
    if fall < rule.bound * error:
        return None
    return _Fall(int(best["step"]), int(last["step"]), accuracy_of(best) or 0.0, fall, error)


def total(rule: Rule, seen: Seen) -> CheckFound | None:
    """The sum of the series is above the limit; where both are there, of the larger one."""
    sums = {name: seen.history.total(name) for name in rule.reads}
    name = max(sums, key=lambda one: sums[one])
    return (
        CheckFound(int(seen.row["step"]), [name], {"value": sums[name]})
        if (sums[name] > rule.bound)
        else None
    )


def spent(rule: Rule, seen: Seen) -> CheckFound | None:
    """The hours so far, times the price of one, are above the limit."""
    value = seen.row.get("time/elapsed", 0.0) / 3600 * (seen.price if rule.name == "money" else 1.0)
    if value <= rule.bound:
        return None
    return CheckFound(int(seen.row["step"]), list(rule.reads), {"value": value})


@dataclass(frozen=True, slots=True)
class _Rise:
    """The halves of a window. times: their difference in its standard errors."""

    before: float
    after: float
    times: float

    @property
    def value(self) -> float:
        return self.after - self.before


def _rise(part: Window) -> _Rise:
    middle = len(part.values) // 2
    first, second = part.values[:middle], part.values[middle:]
    errors = [half.var(ddof=1) / len(half) if len(half) > 1 else 0.0 for half in (first, second)]
    before, after = float(first.mean()), float(second.mean())
    error = max(math.sqrt(sum(errors)), 1e-9)
    return _Rise(before, after, (after - before) / error)


CHECKS: Mapping[str, Callable[[Rule, Seen], CheckFound | None]] = {
    one.__name__: one
    for one in (
        *(not_finite, above, below, jump, outgrown, fallen, falls_alone, collapsed, against),
        *(grows_alone, against_heldout, heldout_fell, total, spent),
    )
}
