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

from assay.config.guard import HALVED, Rule
from assay.run.evaluations import Row, accuracy_of, gain_between, of_deciding_kind
from assay.run.history import History, Window
from assay.run.intervals import t_quantile

_NO_PARTS = ("reward/std", "reward/per_token", "reward/kl", "reward/overlong")
PASSED = "verdict/passed"


@dataclass(frozen=True)
class Seen:
    """What a rule may look at. after: the step at which it spoke last; windows begin behind it.

    row: of the newest step. price: of an hour. planned: steps that the run will take.
    """

    history: History
    evaluations: Sequence[Row] = ()
    row: Mapping[str, float] = field(default_factory=dict[str, float])
    after: int = 0
    price: float = 1.0
    planned: int = 1000

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


def above_soon(rule: Rule, seen: Seen) -> CheckFound | None:
    """As `above`, where steps that the window still lacks count as 0: a whole step that is above
    limit times window speaks at once."""
    for name in rule.reads if rule.reads[0] in seen.history else ():
        part = seen.history.part(name, -rule.window)
        known = [n for n, step in enumerate(part.steps) if step > seen.after]
        mean = float(part.values[known].sum()) / rule.window
        if mean > rule.bound:
            value = float(part.values[known].mean())
            return CheckFound(part.steps[known[0]], [name], {"value": value})
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


LASTING = 3
"""Steps of which the median must have jumped, where one outlier says nothing."""


def lasting_jump(rule: Rule, seen: Seen) -> CheckFound | None:
    """As `jump`, of the median of the newest `LASTING` values: one outlier is no jump.

    The estimator of the KL has a heavy tail: one token that the policy finds a hundred times
    likelier than the reference did can be most of a step's mean.
    """
    for pattern in rule.reads:
        for name in seen.history.names(pattern):
            part = seen.history.newest(name, rule.window + LASTING, seen.after)
            if part is None:
                continue
            before, value = (
                float(np.median(some)) for some in (part.values[:-LASTING], part.values[-LASTING:])
            )
            if value > max(rule.floor, rule.bound * before):
                return CheckFound(part.steps[-LASTING], [name], {"value": value, "before": before})
    return None


def outgrown(rule: Rule, seen: Seen) -> CheckFound | None:
    """The mean over the window is above the floor, and above limit times the very first value."""
    for name, part in seen.windows(rule):
        first = float(seen.history.part(name, 0, 1).values[0])
        if part.mean > max(rule.floor, rule.bound * first):
            return CheckFound(part.steps[0], [name], {"value": part.mean, "before": first})
    return None


def fallen(rule: Rule, seen: Seen) -> CheckFound | None:
    """The window's mean is below limit times the first one's, and fewer than the floor pass.

    Over four windows, or as many steps as there are: the share that passes is noisier than entropy.
    """
    for name, part in seen.windows(rule) if PASSED in seen.history else ():
        first = seen.history.part(name, 0, rule.window)
        passed = seen.history.part(PASSED, -4 * rule.window)
        if part.steps[0] <= first.steps[-1] or passed.mean >= rule.floor:
            continue
        if part.mean < rule.bound * first.mean:
            numbers = {"value": part.mean, "before": first.mean, "passed": passed.mean}
            return CheckFound(part.steps[0], [name, PASSED], numbers)
    return None


SURE = 0.9
"""Share that passes, above which a policy that is sure of itself is what was wanted."""


LOOKS = 5
"""How often a rule that tests against chance looks within one window."""


def _strict(rule: Rule, seen: Seen) -> float | None:
    """Return the standard errors by which noise alone exceeds nothing at any look of the run.

    None where the rule does not look at this step. Each look spends an equal part of the rule's
    `chance` (Bonferroni: looks at windows that overlap depend on each other, which only makes the
    sum smaller). The steps of both halves, or of two windows, give the degrees of freedom.
    """
    stride, step = max(1, rule.window // LOOKS), int(seen.row.get("step") or 0)
    if not step or step % stride:
        return None
    num_looks = math.ceil(max(seen.planned, step) / stride)
    num_steps = rule.window if rule.check in HALVED else 2 * rule.window
    return t_quantile(max(1, num_steps - 2), 2 * rule.chance / num_looks)


def _since_start(rule: Rule, seen: Seen, name: str) -> _Rise | None:
    """Return the rise of a metric from its very first window to its newest; None while they
    overlap."""
    newest = seen.history.newest(name, rule.window, seen.after)
    first = seen.history.part(name, 0, rule.window) if newest is not None else None
    if newest is None or first is None or newest.steps[0] <= first.steps[-1]:
        return None
    values = np.concatenate([first.values, newest.values])
    return _rise(Window([*first.steps, *newest.steps], values))


def grown(rule: Rule, seen: Seen) -> CheckFound | None:
    """The window's mean is above the very first window's by limit, and beyond chance."""
    errors = _strict(rule, seen)
    for name in rule.reads if errors is not None else ():
        rise = _since_start(rule, seen, name) if name in seen.history else None
        if rise is not None and rise.value > rule.bound and rise.times > (errors or 0.0):
            numbers = {"before": rise.before, "value": rise.after}
            return CheckFound(seen.history.part(name, -rule.window).steps[0], [name], numbers)
    return None


def falls_alone(rule: Rule, seen: Seen) -> CheckFound | None:
    """The window's mean of the first metric is below limit times the very first window's, and
    nothing was won for it.

    That is: a gain of floor in the second metric, a share, is ruled out at the rule's `chance`, the
    share is not above `SURE`, and no other metric rose by more than two standard errors.
    """
    errors = _strict(rule, seen)
    if errors is None:
        return None
    falling, *others = rule.reads
    rises = [_since_start(rule, seen, name) for name in (falling, *others)]
    known = [one for one in rises if one is not None]
    if len(known) < len(rises):
        return None
    fall, passed, *rest = known
    won = passed.after > SURE or any(one.times > 2.0 for one in rest)
    if won or fall.after >= rule.bound * fall.before or passed.at_most(errors) >= rule.floor:
        return None
    numbers = {"before": fall.before, "value": fall.after}
    numbers |= {"passed_before": passed.before, "passed": passed.after}
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

    The metric by more than limit standard errors of a difference of means. Correctness by the floor
    at least, by limit standard errors, and by what the rule's `chance` asks of every look: the
    metric may rise in a healthy run, so that the test of correctness alone must hold the rate.
    """
    errors = _strict(rule, seen)
    passed = seen.history.newest(PASSED, rule.window, seen.after)
    if errors is None or passed is None:
        return None
    fall = _rise(passed)
    if fall.value > -rule.floor or fall.times > -max(rule.bound, errors):
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

    That is: a rise of floor in the share that passes is ruled out at the rule's `chance`.
    """
    errors = _strict(rule, seen)
    passed = seen.history.newest(PASSED, rule.window, seen.after)
    if errors is None or passed is None:
        return None
    for name, part in seen.windows(rule):
        growth, right = _rise(part), _rise(passed)
        if growth.after > rule.bound * growth.before and right.at_most(errors) < rule.floor:
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
    """The halves of a window. error: of their difference; times: the difference in errors."""

    before: float
    after: float
    error: float

    @property
    def value(self) -> float:
        return self.after - self.before

    @property
    def times(self) -> float:
        return self.value / self.error

    def at_most(self, errors: float) -> float:
        """The rise that so many standard errors still allow."""
        return self.value + errors * self.error


def _rise(part: Window) -> _Rise:
    middle = len(part.values) // 2
    first, second = part.values[:middle], part.values[middle:]
    errors = [half.var(ddof=1) / len(half) if len(half) > 1 else 0.0 for half in (first, second)]
    before, after = float(first.mean()), float(second.mean())
    error = max(math.sqrt(sum(errors)), 1e-9)
    return _Rise(before, after, error)


_ALL = (
    *(not_finite, above, above_soon, below, jump, lasting_jump, outgrown, grown, fallen),
    *(falls_alone, collapsed, against, grows_alone, against_heldout, heldout_fell, total, spent),
)
CHECKS: Mapping[str, Callable[[Rule, Seen], CheckFound | None]] = {
    one.__name__: one for one in _ALL
}
