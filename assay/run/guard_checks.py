"""Checks of the guard: functions that test a rule against the metrics of a run.

A check returns its result if the rule fires, else None. Each rule of ``assay/config/guard.toml``
names its check and gives its limit, floor and window.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from assay.config.guard import Rule
from assay.run.guard_evaluations import (
    against_heldout,
    canaries_fell,
    canaries_passed,
    heldout_fell,
)
from assay.run.guard_windows import CheckFound, Rise, Seen, chance_of_test, rise_in, strict
from assay.run.history import Window
from assay.run.intervals import Interval

PASSED = "verdict/passed"


def not_finite(rule: Rule, seen: Seen) -> CheckFound | None:
    """Fire if the newest value of a metric is NaN or infinite."""
    heads = tuple(name.removesuffix("*") for name in rule.reads)
    for name, value in seen.row.items():
        if name.startswith(heads) and not math.isfinite(value):
            return CheckFound(int(seen.row["step"]), [name], {"value": value})
    return None


def above(rule: Rule, seen: Seen) -> CheckFound | None:
    """Fire if the window's mean is above the limit."""
    for name, part in seen.windows(rule):
        # The comparison is written with not, so that a mean of NaN fires too.
        if not part.mean <= rule.bound:
            return CheckFound(part.steps[0], [name], {"value": part.mean})
    return None


def above_soon(rule: Rule, seen: Seen) -> CheckFound | None:
    """Fire if the window's mean is above the limit, where missing steps of the window count as 0.

    A single value above limit times the window size therefore fires at once.
    """
    for name in rule.reads if rule.reads[0] in seen.history else ():
        part = seen.history.part(name, -rule.window)
        known = [n for n, step in enumerate(part.steps) if step > seen.after]
        mean = float(part.values[known].sum()) / rule.window
        if mean > rule.bound:
            value = float(part.values[known].mean())
            return CheckFound(part.steps[known[0]], [name], {"value": value})
    return None


def below(rule: Rule, seen: Seen) -> CheckFound | None:
    """Fire if the window's mean is below the limit."""
    for name, part in seen.windows(rule):
        if part.mean < rule.bound:
            return CheckFound(part.steps[0], [name], {"value": part.mean})
    return None


def jump(rule: Rule, seen: Seen) -> CheckFound | None:
    """Fire if the newest value is above the floor and above limit times the median before it.

    The compared median is the median of the window that ends one step earlier.
    """
    for pattern in rule.reads:
        for name in seen.history.names(pattern):
            part = seen.history.newest(name, rule.window + 1, seen.after)
            if part is None:
                continue
            # The newest value is compared with a median, so that an earlier outlier does not hide
            # the next one.
            before, value = float(np.median(part.values[:-1])), float(part.values[-1])
            if value > max(rule.floor, rule.bound * before):
                return CheckFound(part.steps[-1], [name], {"value": value, "before": before})
    return None


LASTING = 3
"""Number of newest values whose median `lasting_jump` tests."""


def lasting_jump(rule: Rule, seen: Seen) -> CheckFound | None:
    """Fire as `jump` does, but for the median of the newest `LASTING` values."""
    # A single step is not enough, because the KL estimator has a heavy tail.
    # One token can dominate the mean of a step, if the policy
    # gives that token a hundred times the reference's probability.
    # As a test of one value, rule kl_jump stopped a healthy recorded run of 1,000 steps.
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
    """Fire if the window's mean is above the floor and above limit times the run's first value."""
    for name, part in seen.windows(rule):
        first = float(seen.history.part(name, 0, 1).values[0])
        if part.mean > max(rule.floor, rule.bound * first):
            return CheckFound(part.steps[0], [name], {"value": part.mean, "before": first})
    return None


def fallen(rule: Rule, seen: Seen) -> CheckFound | None:
    """Fire if the window's mean is below limit times the first window's, at a low pass rate.

    A pass rate counts as low if it is below the floor.
    """
    for name, part in seen.windows(rule) if PASSED in seen.history else ():
        first = seen.history.part(name, 0, rule.window)
        # The pass rate is noisier than entropy, so its mean covers up to four windows.
        passed = seen.history.part(PASSED, -4 * rule.window)
        if part.steps[0] <= first.steps[-1] or passed.mean >= rule.floor:
            continue
        if part.mean < rule.bound * first.mean:
            numbers = {"value": part.mean, "before": first.mean, "passed": passed.mean}
            return CheckFound(part.steps[0], [name, PASSED], numbers)
    return None


SURE = 0.9
"""Pass rate above which low entropy is the desired result of training, not a fault."""


def _since_start(rule: Rule, seen: Seen, name: str) -> Rise | None:
    """Return the rise of a metric from its first to its newest window; None if windows overlap."""
    newest = seen.history.newest(name, rule.window, seen.after)
    first = seen.history.part(name, 0, rule.window) if newest is not None else None
    if newest is None or first is None or newest.steps[0] <= first.steps[-1]:
        return None
    values = np.concatenate([first.values, newest.values])
    return rise_in(Window([*first.steps, *newest.steps], values))


def grown(rule: Rule, seen: Seen) -> CheckFound | None:
    """Fire if the window's mean exceeds the first window's mean significantly by more than
    limit."""
    errors = strict(rule, seen)
    for name in rule.reads if errors is not None else ():
        rise = _since_start(rule, seen, name) if name in seen.history else None
        if rise is not None and rise.value > rule.bound and rise.times > (errors or 0.0):
            numbers = {"before": rise.before, "value": rise.after}
            return CheckFound(seen.history.part(name, -rule.window).steps[0], [name], numbers)
    return None


def falls_alone(rule: Rule, seen: Seen) -> CheckFound | None:
    """Fire if the rule's first metric falls below limit times its first window without a benefit.

    Of the rule's metrics, the second is a pass rate. There is a benefit if the pass rate is above
    `SURE`, if its gain may reach the floor (at the rule's ``chance``), or if any further metric
    rose by more than two standard errors.
    """
    errors = strict(rule, seen)
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


# The best of many windows is high by chance, so a fall by 2 or 3 standard errors is no evidence.
# In 300 simulated runs of 200 steps with a constant pass rate, 0.3 % fell by 5 standard errors.
# In 300 simulated runs of 1,000 steps, 2.7 % fell by 5 standard errors.
COLLAPSE_ERRORS = 5.0


@dataclass(frozen=True)
class _Collapse:
    """Fall of a metric from its best earlier window to the newest window.

    best, value: mean of the best window and mean of the newest window. at: index of the best
    window's first value. first: last step of the best window.
    """

    best: float
    value: float
    at: int
    first: int


def _collapse(rule: Rule, seen: Seen, name: str, part: Window) -> _Collapse | None:
    """Return the fall of a window's mean below limit times the best earlier window's mean.

    The result is None for a fall below the floor, or below `COLLAPSE_ERRORS` standard errors of the
    difference of the two means.
    """
    earlier = seen.history.part(name, 0, -rule.window)
    if len(earlier.steps) < rule.window:
        return None
    sums = np.cumsum(np.concatenate([[0.0], earlier.values]))
    means = (sums[rule.window :] - sums[: -rule.window]) / rule.window
    at = int(np.argmax(means))
    best, value = float(means[at]), part.mean
    # The noise of a step is estimated from differences of neighboring steps, which contain hardly
    # any trend.
    noise = float(np.diff([*earlier.values, *part.values]).std() / math.sqrt(2))
    error = noise * math.sqrt(2 / rule.window)
    if value >= min(rule.bound * best, best - max(rule.floor, COLLAPSE_ERRORS * error)):
        return None
    return _Collapse(best, value, at, earlier.steps[at + rule.window - 1])


def collapsed(rule: Rule, seen: Seen) -> CheckFound | None:
    """Fire if the mean of the newest window is far below the mean of the best earlier window
    (`_collapse`)."""
    for name, part in seen.windows(rule):
        fall = _collapse(rule, seen, name, part)
        if fall is not None:
            numbers = {"value": fall.value, "before": fall.best, "first": fall.first}
            return CheckFound(fall.first, [name], numbers)
    return None


def collapsed_beside(rule: Rule, seen: Seen) -> CheckFound | None:
    """Fire if one metric collapses while the mean of the rule's other metrics does not fall.

    The metrics are the pass rates of a mixture's parts. All metrics are compared over the same two
    windows: the best window and the newest window of the collapsed metric.
    """
    # If all parts of a mixture fall, the whole policy collapses, which rule ``collapse`` reports.
    # The overall pass rate cannot serve as comparison, because the collapsed part of the mixture
    # lowers it.
    for name, part in seen.windows(rule):
        fall = _collapse(rule, seen, name, part)
        if fall is None:
            continue
        best_steps = seen.history.part(name, fall.at, fall.at + rule.window).steps
        others = [
            seen.history[one]
            for pattern in rule.reads
            for one in seen.history.names(pattern)
            if one != name
        ]
        before, now = (
            [whole.values[np.isin(whole.steps, steps)] for whole in others]
            for steps in (best_steps, part.steps)
        )
        both = [pair for pair in zip(before, now, strict=True) if len(pair[0]) and len(pair[1])]
        if not both:
            continue
        means = np.array([[one.mean() for one in pair] for pair in both]).mean(axis=0)
        if means[1] >= means[0]:
            numbers = {"value": fall.value, "before": fall.best, "first": fall.first}
            numbers |= {"passed_before": float(means[0]), "passed": float(means[1])}
            return CheckFound(fall.first, [name, PASSED], numbers)
    return None


def against(rule: Rule, seen: Seen) -> CheckFound | None:
    """Fire if a metric rises between the halves of a window while the pass rate falls.

    The metric must rise by more than limit standard errors. The pass rate must fall by at least the
    floor, by at least limit standard errors, and significantly at the rule's ``chance``.
    """
    # The compared metric may rise in a healthy run, so the pass rate alone must bound the
    # false-alarm rate.
    errors = strict(rule, seen)
    passed = seen.history.newest(PASSED, rule.window, seen.after)
    if errors is None or passed is None:
        return None
    fall = rise_in(passed)
    if fall.value > -rule.floor or fall.times > -max(rule.bound, errors):
        return None
    for name, part in seen.windows(rule):
        rise = rise_in(part)
        if rise.times > rule.bound and part.steps == passed.steps:
            numbers = {"before": rise.before, "value": rise.after}
            numbers |= {"passed_before": fall.before, "passed": fall.after}
            return CheckFound(part.steps[len(part.steps) // 2], [name, PASSED], numbers)
    return None


def grows_alone(rule: Rule, seen: Seen) -> CheckFound | None:
    """Fire if a metric grows between the halves of a window while the pass rate does not rise.

    The metric's mean must grow by more than the factor limit. A rise of the pass rate by the floor
    must be ruled out at the rule's ``chance``.
    """
    errors = strict(rule, seen)
    passed = seen.history.newest(PASSED, rule.window, seen.after)
    if errors is None or passed is None:
        return None
    for name, part in seen.windows(rule):
        growth, right = rise_in(part), rise_in(passed)
        if growth.after > rule.bound * growth.before and right.at_most(errors) < rule.floor:
            numbers = {"before": growth.before, "value": growth.after}
            numbers |= {"passed_before": right.before, "passed": right.after}
            return CheckFound(part.steps[len(part.steps) // 2], [name, PASSED], numbers)
    return None


def overruled(rule: Rule, seen: Seen) -> CheckFound | None:
    """Fire if a share of overruled verdicts is above the limit, or rises by more than the floor.

    The first metric is the share over a window of steps, and the second the number of its problems.
    A third metric, ``verifier/second_since``, is the first step of the current second verifier.
    The lower bound of the share must be above the limit, or the lower bound of its rise since the
    first full window above 0, both at the rule's ``chance``.
    """
    share, count = rule.reads
    chance = chance_of_test(rule, seen)
    if chance is None or share not in seen.history:
        return None
    values, counts = seen.history[share], seen.history[count]
    if values.steps[-1] <= seen.after:
        return None
    value, bounds = float(values.values[-1]), _share_bounds(values, counts, -1, chance)
    # After a resume with another second verifier, earlier shares are not comparable.
    start = max(values.steps[0], int(seen.row.get("verifier/second_since", 0)))
    own = [n for n, step in enumerate(values.steps) if step >= start]
    if not own:
        return None
    full = start + rule.window - 1
    first = next((n for n in own if values.steps[n] >= full), own[0])
    before, since = float(values.values[first]), max(1, values.steps[-1] - rule.window + 1)
    # Newcombe's interval of a difference (1998, method 10), from the intervals of both.
    low = -1.0
    if values.steps[-1] - values.steps[first] >= rule.window:
        its = _share_bounds(values, counts, first, chance)
        low = value - before - math.hypot(value - bounds[0], its[1] - before)
    risen = low > 0 and value - before > rule.floor
    if not risen and bounds[0] <= rule.bound:
        return None
    numbers = {"value": value, "low": bounds[0], "before": before, "count": counts.values[-1]}
    numbers["how"] = "risen from" if risen else "at first"
    return CheckFound(since, [share], numbers)


def _share_bounds(shares: Window, counts: Window, at: int, chance: float) -> Interval:
    """Return bounds of a mean share over problems; each is wrong with at most this probability."""
    # Score intervals are wrong this far in the tail: at four standard errors, the lower bound of
    # two shares of 1 is above a tenth, although two of two are overruled in one of 100 windows.
    share, count = float(shares.values[at]), int(counts.values[at])
    return _lowest_mean(share, count, chance), 1 - _lowest_mean(1 - share, count, chance)


def _lowest_mean(mean: float, count: int, chance: float) -> float:
    """Return the lowest true mean at which a mean of independent values in [0, 1] is credible.

    With count n, a mean of at least p has probability at most exp(-n KL(p, m)) if the true mean is
    m < p, for any distribution of the values (Hoeffding 1963, theorem 1). KL is the divergence
    between two Bernoulli distributions. The lowest credible mean is the m at which Hoeffding's
    bound equals ``chance``.
    """
    low, high = 0.0, mean
    for _ in range(50):
        middle = (low + high) / 2
        divergence = math.inf
        if middle > 0:
            divergence = mean * math.log(mean / middle)
            if mean < 1:
                divergence += (1 - mean) * math.log((1 - mean) / (1 - middle))
        impossible = count * divergence > -math.log(chance)
        low, high = (middle, high) if impossible else (low, middle)
    return low


def total(rule: Rule, seen: Seen) -> CheckFound | None:
    """Fire if the sum of a metric over all steps exceeds the limit. The largest sum counts."""
    sums = {name: seen.history.total(name) for name in rule.reads}
    name = max(sums, key=lambda one: sums[one])
    return (
        CheckFound(int(seen.row["step"]), [name], {"value": sums[name]})
        if (sums[name] > rule.bound)
        else None
    )


def spent(rule: Rule, seen: Seen) -> CheckFound | None:
    """Fire if the elapsed hours, or for rule ``money`` their cost, exceed the limit."""
    value = seen.row.get("time/elapsed", 0.0) / 3600 * (seen.price if rule.name == "money" else 1.0)
    if value <= rule.bound:
        return None
    return CheckFound(int(seen.row["step"]), list(rule.reads), {"value": value})


_ALL = (
    *(not_finite, above, above_soon, below, jump, lasting_jump, outgrown, grown, fallen),
    *(falls_alone, collapsed, collapsed_beside, against, grows_alone),
    *(against_heldout, heldout_fell, canaries_fell, canaries_passed, overruled, total, spent),
)
CHECKS: Mapping[str, Callable[[Rule, Seen], CheckFound | None]] = {
    one.__name__: one for one in _ALL
}
