"""Learning from preferences: `preference_step`, and a whole run of it, from given pairs or on-policy."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from assay.config import PreferenceConfig, TrainConfig
from assay.generate.base import Generator
from assay.learn.meter import Update, step_metrics
from assay.learn.preference_table import Preference
from assay.learn.preference_update import PreferenceBatch, PreferenceLearner
from assay.learn.reference import Reference
from assay.run.directory import Run
from assay.run.guard import Guard
from assay.training.assemble import open_bench, open_verifiers
from assay.training.preference_setup import (
    Setup,
    choose_preference,
    prepare_given,
    prepare_on_policy,
    read_rows,
)
from assay.training.stages import EventRelay, Source, advance


class PairSource(Protocol):
    """Where a step's pairs come from."""

    def draw(self, step: int) -> PreferenceBatch | None:
        """Return the pairs of a step, with what the reference says of them; None where there are none."""
        ...


@dataclass
class PreferenceLoop:
    """What a preference step works with.

    generator: what samples pairs, where they are sampled. moving: the reference, where it is to
    follow the policy. warned: that the chosen completions fell.
    """

    source: PairSource
    run: Run
    learner: PreferenceLearner
    guard: Guard
    config: PreferenceConfig
    generator: Generator | None = None
    moving: Reference | None = None
    warned: bool = False


def preference_step(loop: PreferenceLoop) -> None:
    """Draw one step's pairs, learn from them, write it down."""
    run, learner = loop.run, loop.learner
    pairs = loop.source.draw(run.step)
    update = nothing_learned(learner)
    if pairs is not None:
        update = learner.update(pairs, beta_at(run.step, loop.config, learner.row))
    if loop.generator is not None:
        loop.generator.load_policy(learner.policy, update.policy_version)
    every = loop.config.reference_every
    if loop.moving is not None and every is not None and (run.step + 1) % every == 0:
        loop.moving.refresh()
    run.finish_step(update)
    warn_of_fall(loop)
    loop.guard.check(run)


def run_preference(config: TrainConfig, source: Source) -> Path:
    """Run the preference stage; returns the run's folder. Raises RunStopped by a guard."""
    settings = config.preference
    assert settings is not None
    row = choose_preference(settings)
    with ExitStack() as stack:
        events = EventRelay()
        guard = Guard(config.guard)
        verifiers = open_verifiers(config, stack, events)
        rows = read_rows(config, verifiers)
        bench = open_bench(config, verifiers)
        setup = Setup(config, settings, source, bench, row, events, stack, rows)
        ready = prepare_given(setup) if settings.pairs else prepare_on_policy(setup)
        loop = PreferenceLoop(
            ready.source,
            ready.run,
            ready.learner,
            guard,
            settings,
            ready.generator,
            ready.moving,
        )
        advance(
            ready.run,
            lambda: preference_step(loop),
            bench,
            ready.heldout_problems,
            ready.evaluate_pairs,
        )
    return ready.run.folder


def beta_at(step: int, settings: PreferenceConfig, row: Preference) -> float:
    """Return beta after ``step`` steps: linear between the points of the schedule, constant outside."""
    if not settings.beta_schedule:
        return row.beta
    steps, betas = zip(*settings.beta_schedule, strict=True)
    return float(np.interp(step, steps, betas))


def nothing_learned(learner: PreferenceLearner) -> Update:
    """Return the update of a step whose rollouts could not be told apart: no optimizer step is taken."""
    unit = "pairs" if learner.row.paired else "completions"
    return Update({f"preference/{unit}": 0.0, **step_metrics([])}, learner.policy_version)


def warn_of_fall(loop: PreferenceLoop) -> None:
    """Note once that chosen completions have become less likely than they were at the start.

    Their probability may fall while the margin grows: what rises instead is neither of the two.
    """
    change = loop.run.metrics.get("preference/change_chosen_token")
    if change is None or change > -loop.config.warn_fall or loop.warned:
        return
    loop.warned = True
    loop.run.event("chosen_fell", nats_per_token=change)
    loop.run.note(
        f"warning: chosen completions have lost {-change:.2f} nats a token since the start: the margin is"
        " learned at their cost; lower optimizer.learning_rate, raise preference.beta, or set"
        " preference.nll_weight"
    )
