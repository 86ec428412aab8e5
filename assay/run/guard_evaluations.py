"""Checks of the guard that compare evaluations: on held-out problems, and on canaries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from assay.config.guard import Rule
from assay.run.evaluations import (
    CANARIES,
    MUST_FAIL_CANARIES,
    accuracy_of,
    of_deciding_kind,
    of_kind,
)
from assay.run.guard_windows import CheckFound, Seen, chance_of_evaluation, rise_in
from assay.run.history import Window
from assay.run.paired import Paired, gain_between, paired_rows, sign_flip_p


def against_heldout(rule: Rule, seen: Seen) -> CheckFound | None:
    """Fire if held-out accuracy fell from its recent best while the training reward did not fall.

    Accuracy must fall by at least limit standard errors, paired by problem, and by at least the
    floor. The reward must not fall by more than one standard error. The window counts evaluations.
    """
    (reward,) = rule.reads
    fall = _heldout_fall(rule, seen)
    if fall is None or fall.value < rule.floor or reward not in seen.history:
        return None
    # The rule does not fire if reward and accuracy both fall, because then the policy gets worse
    # but does not hack the reward.
    series = seen.history[reward]
    between = [n for n, step in enumerate(series.steps) if fall.first < step <= fall.last]
    if len(between) < 4:
        return None
    rise = rise_in(Window([series.steps[n] for n in between], series.values[between]))
    if rise.times < -1.0:
        return None
    numbers = {"before": rise.before, "value": rise.after, **fall.numbers}
    return CheckFound(fall.first + 1, [reward, "eval/pass_at_1"], numbers)


def heldout_fell(rule: Rule, seen: Seen) -> CheckFound | None:
    """Fire if held-out accuracy is significantly lower than before and below ``floor`` times its
    recent best value."""
    fall = _heldout_fall(rule, seen)
    if fall is None or fall.best - fall.value >= rule.floor * fall.best:
        return None
    return CheckFound(fall.first + 1, list(rule.reads), fall.numbers)


@dataclass(frozen=True, slots=True)
class _Fall:
    """Fall of held-out accuracy from the best recent evaluation to the newest.

    first, last: steps of the two compared evaluations. best: accuracy of the best evaluation.
    value, error: size of the fall and its standard error.
    """

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
    """Return a fall of at least limit standard errors, paired by problem, else None."""
    rows = seen.comparable(of_deciding_kind(seen.evaluations))
    rows = [row for row in rows if accuracy_of(row) is not None][-rule.window :]
    if len(rows) < 2:
        return None
    best, last = max(rows, key=lambda row: accuracy_of(row) or 0.0), rows[-1]
    gain = gain_between(best, last)
    if gain is None or gain.stderr is None:
        return None
    # If all problems change by the same amount, their spread estimates an error of 0.
    # A single problem may still change by chance,
    # so the standard error is at least that of one problem.
    fall, error = -gain.value, max(gain.stderr, 1 / gain.num_problems)
    if fall < rule.bound * error:
        return None
    return _Fall(int(best["step"]), int(last["step"]), accuracy_of(best) or 0.0, fall, error)


def canaries_fell(rule: Rule, seen: Seen) -> CheckFound | None:
    """Fire if accuracy on the canaries fell since the first evaluation by more than the limit.

    The fall must be significant at the rule's ``chance`` in the exact test paired by canary.
    """
    rows = seen.comparable(of_kind(seen.evaluations, CANARIES))
    paired = _since_first(rows)
    gain = paired.gain
    if gain is None or -gain.value <= rule.bound:
        return None
    p_value = sign_flip_p(paired.differences)
    # The test is two-sided, and only a fall counts, so the probability of a false alarm is half
    # the p value.
    if p_value / 2 >= chance_of_evaluation(rule, seen, len(rows) - 1):
        return None
    numbers: dict[str, Any] = {"before": fmean(paired.a), "value": fmean(paired.b)}
    first = next(int(row["step"]) for row in rows if row.get("eval/by_problem"))
    numbers |= {"fall": gain.points, "p": p_value, "first": first}
    numbers |= {"count": len(paired), "worse": ", ".join(paired.worse[:3])}
    # A rollback returns to the newest evaluation without such a loss.
    gains = ((rows[n]["step"], _since_first(rows[: n + 1]).gain) for n in range(1, len(rows) - 1))
    kept = [step for step, one in gains if one is not None and -one.value <= rule.bound]
    since = max([rows[0]["step"], *kept]) + 1
    return CheckFound(int(since), list(rule.reads), numbers)


def _since_first(rows: Sequence[Mapping[str, Any]]) -> Paired:
    """Pair the newest evaluation with the first one that judged the same canary."""
    # A judge may be down during the first evaluation, which then holds no results to compare with.
    first: dict[str, float] = {}
    for row in rows[:-1]:
        first = {**(row.get("eval/by_problem") or {}), **first}
    return paired_rows({"eval/by_problem": first}, rows[-1]) if first else Paired()


def canaries_passed(rule: Rule, seen: Seen) -> CheckFound | None:
    """Fire if a canary passes that no honest completion passes, and that failed at first."""
    rows = seen.comparable(of_kind(seen.evaluations, MUST_FAIL_CANARIES))
    paired = _since_first(rows)
    # With several completions per canary, a share that rises from above 0 is no new hack.
    new = [id for id in paired.better if not paired.a[paired.ids.index(id)]]
    if len(new) <= rule.bound:
        return None
    numbers = {"value": len(new), "count": len(paired), "names": ", ".join(new[:3])}
    return CheckFound(int(rows[-2]["step"]) + 1, list(rule.reads), numbers)
