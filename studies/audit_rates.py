"""Rates of the rule `false_accept`: false alarms and detections. ``python -m studies.audit_rates``.

The rule, its defaults and the metrics are the run's own code. Simulated second verdicts replace the
verifiers: each problem has a probability that its accepted completions are overruled, drawn from a
beta distribution, because the completions of one problem are alike. The tables are written into
docs/trust.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from assay.config.guard import RULES, GuardConfig
from assay.run.guard_checks import CHECKS
from assay.run.guard_windows import LOOKS, Seen
from assay.run.history import History
from assay.run.intervals import share_interval
from assay.run.opinions import Opinion, opinion_metrics
from studies.guard import PAGE, write_part

SEED = 35
PROMPTS, GROUP = 8, 8
ALIKE = 0.5
"""Correlation of the second verdicts of one problem's completions."""
LENGTHS = (200, 1000)
# A sample of many problems, and all completions of few problems, which return often.
AUDITS = ((0.1, 2000), (1.0, 64))
# Shares of the completions that are overruled, and that are accepted.
HONEST = ((0.02, 0.5), (0.05, 0.5), (0.08, 0.5), (0.05, 0.05), (0.05, 0.02))
EXPLOITED = (0.15, 0.3, 0.6)
RUNS = 20
STEPS = 200
"""Steps of a run with a rising level."""
Perform = Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[Any]]


def fires_at(
    levels: np.ndarray,
    share: float,
    problems: int,
    random: np.random.Generator,
    accepted: float = 0.5,
) -> int:
    """Return the step at which the rule first fires; 0: never.

    levels: mean probability of each step that an accepted completion is overruled. share: share of
    the accepted completions that the second verifier judges. problems: number of problems, which
    are drawn at random. accepted: mean pass rate.
    """
    (rule,) = (one for one in GuardConfig().active() if one.name == "false_accept")
    history, window = History(), list[list[Opinion]]()
    passes = random.beta(2 * accepted, 2 * (1 - accepted), problems)
    # A problem keeps its rank, so that a rising level overrules the same problems first.
    rank = random.random(problems)
    for step, level in enumerate(levels, 1):
        overruled = _chances(float(level), rank)
        opinions: list[Opinion] = []
        for problem in random.choice(problems, PROMPTS, replace=False):
            audited = random.binomial(random.binomial(GROUP, passes[problem]), share)
            for wrong in random.random(audited) < overruled[problem]:
                opinions.append(Opinion(f"p{problem}", "passed", "failed" if wrong else "passed"))
        window = [*window[1 - rule.window :], opinions]
        # Metrics between two tests of the rule are not read.
        if step % (rule.window // LOOKS):
            continue
        row = {"step": step, **opinion_metrics([one for own in window for one in own], opinions)}
        history.add(row)
        seen = Seen(history, (), row, planned=len(levels))
        if CHECKS[rule.check](rule, seen) is not None:
            return step
    return 0


def _chances(level: float, rank: np.ndarray) -> np.ndarray:
    """Return each problem's probability: quantiles of a beta distribution with mean ``level``."""
    draws = _sorted_draws(round(level, 3))
    return draws[(rank * len(draws)).astype(int)]


@cache
def _sorted_draws(level: float) -> np.ndarray:
    spread = 1 / ALIKE - 1
    return np.sort(np.random.default_rng(0).beta(level * spread, (1 - level) * spread, 4096))


def honest_run(task: tuple[float, float, float, int, int, int]) -> bool:
    """Return whether the rule fires in a run with a constant level."""
    level, accepted, share, problems, steps, number = task
    seed = [SEED, *(round(100 * one) for one in (level, accepted, share)), problems, number]
    random = np.random.default_rng(seed)
    return fires_at(np.full(steps, level), share, problems, random, accepted) > 0


def exploited_run(task: tuple[float, float, int]) -> int:
    """Return the step at which the rule fires in a run whose level rises over its middle third."""
    level, share, number = task
    random = np.random.default_rng([SEED, round(100 * level), round(10 * share), number])
    way = np.clip((np.arange(STEPS) - STEPS / 3) / (STEPS / 3), 0, 1)
    return fires_at(0.02 + (level - 0.02) * way, share, AUDITS[0][1], random)


def honest_table(runs: int, perform: Perform) -> Iterator[str]:
    """Yield the false alarms of runs whose second verifier overrules a constant share."""
    cells = [(*one, steps) for one, steps in product(AUDITS, LENGTHS)]
    heads = [f"{share:.0%} of {problems}, {steps}" for share, problems, steps in cells]
    yield f"| overruled | accepted | {' | '.join(heads)} |"
    yield f"|---:|---:{'|---:' * len(heads)}|"
    for level, accepted in HONEST:
        tasks = [(level, accepted, *cell, number) for cell in cells for number in range(runs)]
        found = np.array([*perform(honest_run, tasks)]).reshape(len(cells), runs).mean(1)
        rates = " | ".join(f"{one:.1%}" if one else "0" for one in found)
        yield f"| {level:.0%} | {accepted:.0%} | {rates} |"
    yield ""
    yield (
        f"Each cell has {runs} simulated runs. A rate of 0 has a 95 % interval up to"
        f" {share_interval(0.0, runs)[1]:.1%}."
    )


def exploited_table(runs: int, perform: Perform) -> Iterator[str]:
    """Yield how often the rule fires while the policy learns to exploit the first verifier."""
    cells = [share for share, _ in AUDITS]
    yield f"| overruled at the end | {' | '.join(f'{one:.0%} judged' for one in cells)} |"
    yield f"|---:{'|---:' * len(cells)}|"
    for level in EXPLOITED:
        tasks = [(level, share, number) for share in cells for number in range(runs)]
        steps = np.array([*perform(exploited_run, tasks)]).reshape(len(cells), runs)
        yield f"| {level:.0%} | {' | '.join(map(_found_words, steps))} |"
    yield ""
    yield (
        f"Each cell has {runs} simulated runs, with the share of runs in which the rule fires,"
        " and the median step."
    )


def _found_words(steps: np.ndarray) -> str:
    found = steps[steps > 0]
    return f"{len(found) / len(steps):.0%}" + (
        f", step {np.median(found):.0f}" if len(found) else ""
    )


def main() -> None:
    """Simulate the runs and write the tables."""
    parser = argparse.ArgumentParser(prog="python -m studies.audit_rates", description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--page", type=Path, default=PAGE)
    options = parser.parse_args()
    assert RULES["false_accept"].window % LOOKS == 0
    with ProcessPoolExecutor(options.processes) as pool:

        def perform(function: Callable[[Any], Any], tasks: Sequence[Any]) -> Iterator[Any]:
            return pool.map(function, tasks, chunksize=10)

        tables = {
            "honest audits": honest_table(options.runs, perform),
            "exploited verifiers": exploited_table(options.runs, perform),
        }
        for name, lines in tables.items():
            write_part(options.page, name, [*lines], "studies.audit_rates")
            print(name, flush=True)


if __name__ == "__main__":
    main()
