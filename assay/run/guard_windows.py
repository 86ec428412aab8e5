"""What the guard's checks read, and the statistics that several checks share."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from assay.config.guard import HALVED, Rule
from assay.run.evaluations import Row
from assay.run.history import History, Window
from assay.run.intervals import t_quantile

# The following metrics have the prefix ``reward/`` of reward components, but are no components.
_NO_PARTS = ("reward/std", "reward/per_token", "reward/kl", "reward/overlong")


@dataclass(frozen=True)
class Seen:
    """Data that a check reads.

    row: metrics of the newest step. after: step at which the rule last fired; windows start after
    this step. price: cost per hour. planned: planned number of steps of the whole run. every:
    planned number of steps between evaluations; None: no evaluations between the first and the last
    step. changed: step at which the run last continued with a changed verifier; -1: never.
    """

    history: History
    evaluations: Sequence[Row] = ()
    row: Mapping[str, float] = field(default_factory=dict[str, float])
    after: int = 0
    price: float = 1.0
    planned: int = 1000
    every: int | None = None
    changed: int = -1

    def comparable(self, rows: Sequence[Row]) -> list[Row]:
        """Select the evaluations that a rule may compare with each other.

        These evaluations are not before the step at which the rule last fired. All of them have the
        newest temperature, and the same verifier.
        """
        # The evaluation at the step of a change is older than the change.
        first = max(self.after, self.changed + 1)
        own = [row for row in rows if row["step"] >= first]
        key = "eval/temperature"
        return [row for row in own if row.get(key) == own[-1].get(key)]

    def windows(self, rule: Rule) -> Iterator[tuple[str, Window]]:
        """Yield (name, newest window) of each metric that a rule reads, if the window is full."""
        for pattern in rule.reads:
            for name in self.history.names(pattern):
                part = self.history.newest(name, rule.window, self.after)
                if part is not None and name not in _NO_PARTS:
                    yield name, part


@dataclass(frozen=True)
class CheckFound:
    """Result of a check that fires.

    since: first step of the reported condition. series: names of the tested metrics, beginning with
    the metric that the message names. numbers: values for the placeholders of the rule's message.
    """

    since: int
    series: Sequence[str]
    numbers: Mapping[str, Any]


LOOKS = 5
"""Number of significance tests per window."""


def chance_of_test(rule: Rule, seen: Seen) -> float | None:
    """Return the probability of a false alarm that a test at this step may have; return None
    without a test.

    There are `LOOKS` tests per window. All tests of a run share the rule's ``chance``, the
    probability of a false alarm, in equal parts (Bonferroni).
    """
    # Tests are corrected, because an uncorrected test at every step of a long run eventually fires
    # by chance.
    # Without the correction, entropy_lost stopped 37 to 76 % of healthy runs of 200 steps.
    # Tests of overlapping windows are correlated, so the true false-alarm rate is even lower.
    stride, step = max(1, rule.window // LOOKS), int(seen.row.get("step") or 0)
    if not step or step % stride:
        return None
    return rule.chance / math.ceil(max(seen.planned, step) / stride)


def chance_of_evaluation(rule: Rule, seen: Seen, num_tests: int) -> float:
    """Return the probability of a false alarm that a test of one evaluation may have.

    All evaluations of a run share the rule's ``chance`` in equal parts (Bonferroni), as in
    `chance_of_test`. num_tests: number of tests so far. It counts if there were more tests than
    planned, because a time limit adds evaluations.
    """
    planned = math.ceil(seen.planned / seen.every) if seen.every else 1
    return rule.chance / max(planned, num_tests)


def strict(rule: Rule, seen: Seen) -> float | None:
    """Return the critical value of a test at this step, in standard errors; None without a test.

    The probability of a false alarm of one test is `chance_of_test`. The degrees of freedom of a
    test are those of two halves of a window, or of two windows.
    """
    chance = chance_of_test(rule, seen)
    if chance is None:
        return None
    num_steps = rule.window if rule.check in HALVED else 2 * rule.window
    return t_quantile(max(1, num_steps - 2), 2 * chance)


@dataclass(frozen=True, slots=True)
class Rise:
    """Rise of a metric between the halves of a window.

    before, after: means of the first and of the second half. error: standard error of the rise.
    times: size of the rise, in standard errors.
    """

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
        """Upper bound of the rise at this many standard errors."""
        return self.value + errors * self.error


def rise_in(part: Window) -> Rise:
    """Return the rise of a metric between the halves of a window."""
    middle = len(part.values) // 2
    first, second = part.values[:middle], part.values[middle:]
    errors = [half.var(ddof=1) / len(half) if len(half) > 1 else 0.0 for half in (first, second)]
    before, after = float(first.mean()), float(second.mean())
    # Equal values have no variance.
    # The divisor is a lower bound of the error, which avoids a division by 0 in `times`.
    error = max(math.sqrt(sum(errors)), 1e-9)
    return Rise(before, after, error)
