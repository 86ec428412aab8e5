"""Metrics of simulated healthy and faulty runs, for `studies.guard_rates`.

The noise is that of recorded runs on the sums of `studies.guard` (8 x 8 completions, up to 1,000
steps). In these records, the variance of a step's pass rate is twice that of independent
completions. In the simulation it is three times as large, because the problems of real data sets
differ more. The standard deviation of length is 2 % in the records and 6 % here, and that of
entropy 16 % in both. The logarithm of the KL has a standard deviation of 0.3 with the heavy tail of
Student's t with 5 degrees of freedom, and one step in a thousand is an outlier of ten times the
value. Gradient norms vary by 25 %. The noise of different steps is independent, as in the records,
but the policy itself drifts by a point.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray
ALIKE = 0.3
"""Correlation of the verdicts of one problem's completions."""
NUM_HELDOUT = 128
EVALUATIONS = 20
"""Evaluations of a run, evenly spaced."""
BROKEN = 0.005
"""Share of the problems that no verifier can judge, and of other completions that time out."""


@dataclass
class Truth:
    """True values of a run's policy at each step. The metrics are these values with noise.

    passed, heldout: probability that a completion passes. form: mean of the other component of the
    reward. length, entropy, kl, mismatch: means of these metrics. sought: share of the problems on
    which the policy makes the verifier time out. same_prompt, not_judged, loss: additions to these
    metrics.
    """

    passed: Array
    heldout: Array
    length: Array
    entropy: Array
    kl: Array
    form: Array
    mismatch: float | Array = 3e-7
    sought: float | Array = 0.0
    not_judged: float | Array = 0.0
    same_prompt: float | Array = 0.0
    loss: float | Array = 0.0


@dataclass(frozen=True)
class Series:
    """Data that the guard reads: metrics by name, and rows of evaluations."""

    metrics: Mapping[str, Array]
    evaluations: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    def rows(self) -> Iterator[dict[str, float]]:
        """Yield the metrics of each step."""
        names = [*self.metrics]
        for step, values in enumerate(zip(*self.metrics.values(), strict=True), 1):
            yield {"step": step, **dict(zip(names, map(float, values), strict=True))}


def healthy(kind: str, steps: int, random: np.random.Generator) -> Truth:
    """Return a healthy run of a kind, whose learning takes 10 to 500 steps.

    learns: gains 10 to 40 points and loses up to four fifths of its entropy. thinks: the same gain,
    with completions that grow to 1.5 to 4 times their length. slow: gains at most 5 points. hard:
    starts at 1 to 3 % and gains 10 to 30 points. sure: rises from 70 to 85 % to 95 %, with almost
    no entropy left.
    """
    pace = np.exp(random.uniform(np.log(10), np.log(500)))
    way = 1 - np.exp(-np.arange(steps) / pace)
    uniform = random.uniform
    start, gain, entropy, length = {
        "learns": (uniform(0.2, 0.5), uniform(0.1, 0.4), uniform(0.2, 0.8), uniform(0.8, 1.3)),
        "thinks": (uniform(0.2, 0.5), uniform(0.15, 0.4), uniform(0.3, 1.0), uniform(1.5, 4.0)),
        "slow": (uniform(0.1, 0.6), uniform(0.0, 0.05), uniform(0.6, 1.0), uniform(0.9, 1.2)),
        "hard": (uniform(0.01, 0.03), uniform(0.1, 0.3), uniform(0.3, 0.9), uniform(0.8, 1.5)),
        "sure": (uniform(0.7, 0.85), 0.0, uniform(0.03, 0.3), uniform(0.7, 1.1)),
    }[kind]
    gain = 0.95 - start if kind == "sure" else gain
    passed = start + gain * way + _wander(steps, 0.01, random)
    return Truth(
        passed=passed,
        heldout=start + 0.8 * gain * way + _wander(steps, 0.01, random),
        length=uniform(50, 500) * length**way,
        entropy=uniform(0.15, 1.0) * entropy**way,
        kl=0.002 + uniform(0.01, 0.1) * way,
        form=uniform(0.2, 0.5) + uniform(0.0, 0.5) * way,
        mismatch=float(random.choice([3e-7, 1e-3, 0.01])),
    )


KINDS = ("learns", "thinks", "slow", "hard", "sure")


def _wander(steps: int, spread: float, random: np.random.Generator) -> Array:
    """Return a slow random drift of the policy, which persists for about twenty steps."""
    found = np.empty(steps)
    value, keep = random.normal(0, spread), np.exp(-1 / 20)
    for step in range(steps):
        value = keep * value + random.normal(0, spread * np.sqrt(1 - keep**2))
        found[step] = value
    return found


def observe(truth: Truth, prompts: int, group: int, random: np.random.Generator) -> Series:
    """Return the metrics of a run with ``prompts`` x ``group`` completions per step."""
    steps, total = len(truth.passed), prompts * group
    mean = np.clip(truth.passed, 1e-3, 0.999)[:, None]
    spread = 1 / ALIKE - 1
    chance = random.beta(
        mean * spread, (1 - mean) * spread, (steps, prompts)
    )  # of each problem's completions to pass
    right = random.binomial(group, chance)
    passed = right.sum(1) / total
    broken = random.random((steps, prompts)) < (np.zeros(steps) + truth.sought)[:, None] + BROKEN
    sides = (np.zeros(steps) + truth.not_judged)[:, None]
    lost = np.where(broken, group, random.binomial(group, BROKEN + sides * np.ones((1, prompts))))
    form = random.binomial(total, np.clip(truth.form, 0, 1)) / total
    noise = 1 / np.sqrt(total)
    kl = truth.kl * np.exp(0.3 * random.standard_t(5, steps) / np.sqrt(5 / 3))
    kl = np.where(random.random(steps) < 1e-3, 10 * kl, kl)
    flat = np.zeros(steps)
    metrics = {
        "reward/mean": passed + 0.2 * form,
        "reward/math": passed,
        "reward/think_format": form,
        "verdict/passed": passed,
        "verdict/not_judged_share": lost.sum(1) / total,
        "group/often_not_judged": (lost >= max(2, group / 4)).mean(1),
        "group/all_fail_equal": (right == 0).mean(1),
        "group/same_prompt": flat + truth.same_prompt,
        "length/mean": truth.length * np.exp(0.5 * noise * random.normal(size=steps)),
        "entropy/mean": truth.entropy * np.exp(1.3 * noise * random.normal(size=steps)),
        "kl/mean": kl,
        "mismatch/mean": truth.mismatch * np.exp(0.07 * random.normal(size=steps)),
        "optimizer/grad_norm": 0.5 * np.exp(0.25 * random.normal(size=steps)) + flat + truth.loss,
        "loss/total": flat + truth.loss,
    }
    return Series(metrics, _evaluations(truth.heldout, random))


def _evaluations(accuracy: Array, random: np.random.Generator) -> list[dict[str, Any]]:
    """Return greedy evaluations on the same problems. Each problem has a fixed difficulty."""
    every = max(5, len(accuracy) // EVALUATIONS)
    hardness, rows = random.random(NUM_HELDOUT), list[dict[str, Any]]()
    for step in range(0, len(accuracy) + 1, every):
        level = accuracy[max(0, step - 1)]
        right = hardness + random.normal(0, 0.15, NUM_HELDOUT) < level
        shares = {f"h{n}": float(one) for n, one in enumerate(right)}
        found = {"eval/pass_at_1": float(right.mean()), "eval/by_problem": shares}
        rows.append({"step": step, "eval/temperature": 0.0, **found})
    return rows


def faulty(kind: str, steps: int, random: np.random.Generator) -> Truth:
    """Return a run that is healthy for a third of its steps, and fails over the next third."""
    truth = healthy("slow", steps, random)
    way = np.clip((np.arange(steps) - steps / 3) / (steps / 3), 0, 1)
    since = (np.arange(steps) >= steps / 3).astype(float)
    level = random.uniform(0.3, 0.6)
    truth.passed, truth.heldout = (level + _wander(steps, 0.01, random) for _ in range(2))
    FAULTS[kind](truth, way, since)
    return truth


def _entropy_dies(truth: Truth, way: Array, since: Array) -> None:
    truth.entropy = truth.entropy * 0.01**way


def _entropy_halves(truth: Truth, way: Array, since: Array) -> None:
    truth.entropy = truth.entropy * 0.4**way


def _entropy_halves_and_worse(truth: Truth, way: Array, since: Array) -> None:
    truth.entropy = truth.entropy * 0.4**way
    truth.passed = truth.passed - 0.15 * way


def _longer(truth: Truth, way: Array, since: Array) -> None:
    truth.length = truth.length * 4**way


def _longer_and_worse(truth: Truth, way: Array, since: Array) -> None:
    truth.length = truth.length * 4**way
    truth.passed = truth.passed - 0.2 * way


def _form_only(truth: Truth, way: Array, since: Array) -> None:
    truth.form = 0.2 + 0.7 * way
    truth.passed, truth.heldout = (one - 0.25 * way for one in (truth.passed, truth.heldout))


def _leak(truth: Truth, way: Array, since: Array) -> None:
    truth.passed = truth.passed + 0.3 * way
    truth.heldout = truth.heldout - 0.25 * way


def _collapses(truth: Truth, way: Array, since: Array) -> None:
    truth.passed, truth.heldout = (one * (1 - 0.95 * way) for one in (truth.passed, truth.heldout))


def _kl_jumps(truth: Truth, way: Array, since: Array) -> None:
    truth.kl = truth.kl * (1 + 30 * since) + 0.1 * since


def _stale(truth: Truth, way: Array, since: Array) -> None:
    truth.mismatch = 3e-7 + 0.02 * way


def _wrong_weights(truth: Truth, way: Array, since: Array) -> None:
    truth.mismatch = 3e-7 + 0.3 * since


def _verifier_fails(truth: Truth, way: Array, since: Array) -> None:
    truth.not_judged = 0.4 * since


def _sought(truth: Truth, way: Array, since: Array) -> None:
    truth.sought = 0.2 * way


def _nothing_passes(truth: Truth, way: Array, since: Array) -> None:
    truth.passed = truth.passed * (1 - since)


def _same_prompt(truth: Truth, way: Array, since: Array) -> None:
    truth.same_prompt = np.ones(len(way))


def _not_finite(truth: Truth, way: Array, since: Array) -> None:
    truth.loss = np.where(since > 0, np.nan, 0.0)


FAULTS = {
    "entropy falls to a hundredth": _entropy_dies,
    "entropy falls to 40 %, nothing is won": _entropy_halves,
    "entropy falls to 40 %, 15 points are lost": _entropy_halves_and_worse,
    "four times as long, nothing is won": _longer,
    "four times as long, 20 points are lost": _longer_and_worse,
    "the form's reward rises, 25 points are lost": _form_only,
    "the reward rises, held-out accuracy falls by 25 points": _leak,
    "accuracy falls to a twentieth": _collapses,
    "the KL is thirty times as large at once": _kl_jumps,
    "the sampler keeps old weights": _stale,
    "the sampler has other weights": _wrong_weights,
    "two in five completions are no longer judged": _verifier_fails,
    "the policy makes the checker time out on a fifth of the problems": _sought,
    "nothing passes any more": _nothing_passes,
    "all prompts are alike": _same_prompt,
    "a loss that is no number": _not_finite,
}
