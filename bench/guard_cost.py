"""Overhead of the guard in a step of the demo: ``python -m bench.guard_cost``.

The bench runs the demo's RL stage with default settings, on a fresh model of the demo's size. The
guard is applied after every second step, so that each step with the guard has a neighbor without.
Seconds are processor seconds of this process, so that other processes hardly influence them.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from assay.init.tiny_model import make_model
from assay.recipes.demo import reinforce
from assay.run import evaluation_log
from assay.run.guard import Guard
from assay.run.intervals import t_quantile
from assay.session import stage
from assay.training import api


class Timed:
    """Wrapper of a function that records the processor seconds of each call."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self.seconds: list[float] = []

    def __call__(self, *given: Any) -> Any:
        started = time.process_time()
        try:
            return self.function(*given)
        finally:
            self.seconds.append(time.process_time() - started)


class Watch:
    """Applies the guard after every second step, and records the seconds of each step."""

    def __init__(self) -> None:
        self.check = Timed(Guard.check)
        self.on: list[float] = []
        self.off: list[float] = []
        self.number, self.since = 0, math.nan

    def __call__(self, guard: Guard, run: Any) -> None:
        self.number += 1
        if asked := self.number % 2 == 0:
            self.check(guard, run)
        now = time.process_time()
        (self.on if asked else self.off).append(now - self.since)
        self.since = time.process_time()


@contextmanager
def watched() -> Iterator[tuple[Watch, Timed]]:
    """Record the seconds of the guard and of the evaluation log within this context."""
    watch, answers = Watch(), Timed(evaluation_log.record_answers)
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(Guard, "check", lambda *given: watch(*given)))
        stack.enter_context(mock.patch.object(stage, "record_answers", answers))
        yield watch, answers


def main() -> None:
    """Run some steps and print the share of the guard in their time."""
    parser = argparse.ArgumentParser(prog="python -m bench.guard_cost", description=__doc__)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--heldout", type=int, default=200, help="held-out problems")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        make_model(Path(folder) / "model", options.seed)
        tree = reinforce(Path(folder), str(Path(folder) / "model"), options.seed)
        tree["rl"]["steps"] = options.steps
        tree.setdefault("evaluation", {})["max_problems"] = options.heldout
        tree["guard"] = {"options": {"all_wrong": {"action": "note"}}}  # the model is a fresh one
        with watched() as (watch, answers):
            api.train(tree, quiet=True)
    pairs = list(zip(watch.on[2:], watch.off[2:], strict=False))  # the first steps warm up
    step = statistics.median([one for pair in pairs for one in pair])
    asked = statistics.mean(watch.check.seconds[2:])
    ratios = [math.log(on / off) for on, off in pairs]
    mean, error = statistics.mean(ratios), statistics.stdev(ratios) / math.sqrt(len(ratios))
    half = t_quantile(len(ratios) - 1) * error
    low, high = (math.exp(mean + sign * half) - 1 for sign in (-1, 1))
    print(f"a step: {1000 * step:.0f} ms of the processor (median of {2 * len(pairs)})")
    print(f"the guard: {1000 * asked:.2f} ms a step, {asked / step:.2%} of it")
    print(f"last ten checks: {1000 * statistics.mean(watch.check.seconds[-10:]):.2f} ms each")
    print(f"steps with it against those beside, {len(pairs)} pairs: {low:+.1%} to {high:+.1%}")
    log = sum(answers.seconds)
    print(f"the evaluation log: {1000 * log:.0f} ms in all, in {len(answers.seconds)} evaluations")


if __name__ == "__main__":
    main()
