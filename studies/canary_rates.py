"""Rates of false alarms and detections of the rule ``canary_loss``: ``python -m
studies.canary_rates``.

The rule is the guard's own code and defaults, applied after every evaluation of a simulated run.
Before the run, a canary passes with probability `PASSES`. In each later evaluation, a verdict
differs from the first evaluation with the probability of the churn, equally often in both
directions. A loss additionally turns a share of all verdicts wrong: the share rises linearly until
the middle of the run, and the same canaries stay lost. Canaries are independent. The tables are
written into docs/trust.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from assay.config.guard import RULES
from assay.run.evaluations import CANARIES
from assay.run.guard_checks import CHECKS
from assay.run.guard_windows import Seen
from assay.run.history import History
from assay.run.intervals import share_interval
from studies.guard import PAGE, write_part

PASSES = 0.7
CHURNS = (0.02, 0.05, 0.1, 0.2)
LOSSES = (0.1, 0.2)
NUM_CANARIES = (50, 100, 200)
RUNS_OF = ((30, 10), (200, 20), (1000, 20))
"""Number of steps of a run, and of steps between its evaluations."""
SEED = 41


def stopped_at(
    count: int, steps: int, every: int, churn: float, loss: float, random: np.random.Generator
) -> int:
    """Return the step at which the rule stops a simulated run; 0: never."""
    rule = RULES["canary_loss"]
    first, unlucky = random.random(count) < PASSES, random.random(count)
    rows: list[dict[str, Any]] = []
    for step in range(0, steps + 1, every):
        passed = first
        if step:
            chance = np.where(first, churn / (2 * PASSES), churn / (2 * (1 - PASSES)))
            passed = first ^ (random.random(count) < chance)
            passed &= unlucky >= loss / PASSES * min(1.0, 2 * step / steps)
        by_problem = {f"c{n}": float(one) for n, one in enumerate(passed)}
        row = {"step": step, "eval/kind": CANARIES, "eval/temperature": 0.0}
        rows.append(row | {"eval/pass_at_1": float(passed.mean()), "eval/by_problem": by_problem})
        seen = Seen(History(), rows, {"step": float(step)}, planned=steps, every=every)
        if CHECKS[rule.check](rule, seen) is not None:
            return step
    return 0


def found_in(churn: float, loss: float, runs: int) -> Iterator[list[int]]:
    """Yield the steps of all stops, for each number of canaries and each length of a run."""
    for count in NUM_CANARIES:
        for steps, every in RUNS_OF:
            random = np.random.default_rng([SEED, count, steps, round(1000 * (churn + 10 * loss))])
            each = (stopped_at(count, steps, every, churn, loss, random) for _ in range(runs))
            yield [step for step in each if step]


def head(first: str) -> Iterator[str]:
    """Yield the head of a table whose columns are the simulated sizes and lengths."""
    cells = [f"{count}, {steps:,} steps" for count in NUM_CANARIES for steps, _ in RUNS_OF]
    yield f"| {first} | {' | '.join(cells)} |"
    yield f"|---|{'---:|' * len(cells)}"


def false_alarms(runs: int) -> Iterator[str]:
    """Yield the table of healthy runs that the rule stops."""
    yield from head("churn")
    for churn in CHURNS:
        cells = [f"{len(one) / runs:.2%}" if one else "0" for one in found_in(churn, 0.0, runs)]
        yield f"| {churn:.0%} | {' | '.join(cells)} |"
    yield ""
    most = share_interval(0.0, runs)[1]
    yield f"Each cell has {runs} simulated runs. A rate of 0 has a 95 % interval up to {most:.1%}."


def detections(runs: int) -> Iterator[str]:
    """Yield the table of losses that the rule finds, with the median step of the stop."""
    yield from head("loss, churn")
    for loss in LOSSES:
        for churn in CHURNS[1:3]:
            cells = [
                f"{len(one) / runs:.0%}" + (f", step {median(one):.0f}" if one else "")
                for one in found_in(churn, loss, runs)
            ]
            yield f"| {100 * loss:.0f} points, {churn:.0%} | {' | '.join(cells)} |"
    yield ""
    yield f"Each cell has {runs} simulated runs. The loss is complete in the middle of the run."


def main() -> None:
    """Simulate the runs and write the tables."""
    parser = argparse.ArgumentParser(prog="python -m studies.canary_rates", description=__doc__)
    parser.add_argument("--healthy", type=int, default=1000, help="runs of each size and length")
    parser.add_argument("--faulty", type=int, default=100, help="runs of each size and length")
    parser.add_argument("--page", type=Path, default=PAGE)
    options = parser.parse_args()
    tables = {
        "healthy canaries": false_alarms(options.healthy),
        "lost canaries": detections(options.faulty),
    }
    for name, lines in tables.items():
        write_part(options.page, name, [*lines], "studies.canary_rates")
        print(name, flush=True)


if __name__ == "__main__":
    main()
