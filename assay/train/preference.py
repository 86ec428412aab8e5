"""Learning from preferences: `preference_step`, and a whole run of it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from assay.config import PreferenceConfig, TrainConfig
from assay.data.pairs import load_preferences
from assay.learn.preference_table import Preference, preference
from assay.learn.preference_update import PreferenceBatch, PreferenceLearner
from assay.model.packing import pack
from assay.model.probe import LayoutChoice, probe_layouts
from assay.run.directory import Run
from assay.run.guard import Guard
from assay.train.assemble import Bench, make_passes, open_bench, open_heldout
from assay.train.preference_pairs import (
    Example,
    PairSchedule,
    all_groups,
    mismatched,
    render_examples,
)
from assay.train.preference_reference import ReferenceTable
from assay.train.stages import EventRelay, Source, advance, open_run


class PairSource(Protocol):
    """Where a step's pairs come from."""

    def draw(self, step: int) -> PreferenceBatch:
        """Return the pairs of a step, with what the reference says of them."""
        ...


@dataclass
class PreferenceLoop:
    """What a preference step works with. warned: that the chosen completions fell."""

    source: PairSource
    run: Run
    learner: PreferenceLearner
    guard: Guard
    config: PreferenceConfig
    warned: bool = False


def preference_step(loop: PreferenceLoop) -> None:
    """Draw one step's pairs, learn from them, write it down."""
    pairs = loop.source.draw(loop.run.step)
    update = loop.learner.update(pairs, beta_at(loop.run.step, loop.config, loop.learner.row))
    loop.run.finish_step(update)
    warn_of_fall(loop)
    loop.guard.check(loop.run)


class GivenPairs:
    """Examples from files, in the order of a schedule."""

    def __init__(
        self,
        examples: Sequence[Example],
        schedule: PairSchedule,
        table: ReferenceTable | None,
        learner: PreferenceLearner,
    ) -> None:
        self.examples, self.schedule, self.table = examples, schedule, table
        self.learner = learner

    def draw(self, step: int) -> PreferenceBatch:
        """Return the examples of a step."""
        return self.pack([self.examples[n] for n in self.schedule.draw(step)])

    def pack(self, examples: Sequence[Example]) -> PreferenceBatch:
        """Return examples as a batch, with what the reference table says of them."""
        groups = [example.group for example in examples]
        device, table = self.learner.device, self.table
        batch = pack(groups, [example.verdicts for example in examples], device)
        others = [] if self.learner.row.paired else mismatched(examples)
        if table is None:
            return PreferenceBatch(batch)
        if not others:
            return PreferenceBatch(batch, table.rows(groups, device))
        verdicts = [example.verdicts for example in examples]  # not read
        return PreferenceBatch(
            batch,
            table.rows(groups, device),
            pack(others, verdicts, device),
            table.rows(others, device),
        )


def run_preference(config: TrainConfig, source: Source) -> Path:
    """Run the preference stage; returns the run's folder. Raises RunStopped by a guard."""
    settings = config.preference
    assert settings is not None
    row = choose_preference(settings)
    with ExitStack() as stack:
        events = EventRelay()
        guard = Guard(config.guard)
        bench = open_bench(config, stack, events)
        examples, notes = open_examples(bench, settings, row)
        heldout = open_heldout(bench)
        schedule = PairSchedule(
            len(examples), settings.pairs_per_step, settings.epochs, config.run.seed
        )
        layout = choose_pair_layout(bench, examples, row)
        learner = make_preference_learner(config, bench, schedule.num_steps, row, layout)
        run = open_run(config, source, bench, schedule.num_steps, stack)
        events.run = run
        for note in (*notes, f"{row.name}: {row.paper}, {row.equation}", layout.reason):
            run.note(note)
        table = None
        if row.needs_reference or settings.watch_start:
            table = ReferenceTable(run.folder)
            groups = all_groups(examples, schedule, row)
            run.event("reference", rows=table.fill(groups, learner.logprobs, learner.device))
        run.attach(model=learner)  # the policy is the reference until here
        learner.update = run.clock.timed("update", learner.update)
        pairs = GivenPairs(examples, schedule, table, learner)
        loop = PreferenceLoop(pairs, run, learner, guard, settings)
        advance(run, lambda: preference_step(loop), bench, heldout)
    return run.folder


def choose_preference(settings: PreferenceConfig) -> Preference:
    """Return the configured row of the table; raises ConfigError where it cannot work."""
    names = (
        "beta",
        "label_smoothing",
        "robust",
        "reference_free",
        "length_normalized",
        "margin",
        "nll_weight",
        "desirable_weight",
        "undesirable_weight",
    )
    changes = {name: getattr(settings, name) for name in names}
    return preference(settings.method, **changes)


def open_examples(
    bench: Bench, settings: PreferenceConfig, row: Preference
) -> tuple[list[Example], list[str]]:
    """Open the configured pairs; returns them as tokens, and one line a finding."""
    on_bad_row = bench.config.data.on_bad_row
    preferences = load_preferences(settings.pairs, on_bad_row=on_bad_row)
    limits = [one for one in (settings.max_tokens, bench.loaded.context_length) if one]
    rendered = render_examples(
        preferences,
        bench.renderer,
        row,
        on_bad_row=on_bad_row,
        max_tokens=min(limits, default=None),
    )
    notes = [preferences.describe()]
    skipped = [*preferences.skipped, *rendered.skipped]
    if skipped:
        count = preferences.num_skipped + len(rendered.skipped)
        notes.append(f"{count} bad rows skipped, the first: {skipped[0]}")
    return rendered.rows, notes


def choose_pair_layout(bench: Bench, examples: Sequence[Example], row: Preference) -> LayoutChoice:
    """Prove on the loaded model that shared prompts equal plain ones, and choose for pairs of this length."""
    prompts = [len(one.group.prompt.tokens) for one in examples]
    completions = [len(each.tokens) for one in examples for each in one.group.completions]
    return probe_layouts(
        bench.loaded.model,
        prompt_length=int(np.median(prompts)),
        completion_length=int(np.median(completions)),
        group_size=2 if row.paired else 1,
        layout=None if row.paired else "plain",
    )


def make_preference_learner(
    config: TrainConfig, bench: Bench, num_steps: int, row: Preference, layout: LayoutChoice
) -> PreferenceLearner:
    """Return the learner of the preference stage."""
    assert config.preference is not None
    most = config.preference.max_tokens_per_micro_batch
    passes = make_passes(config, bench, num_steps, "preference", most, layout.layout)
    passes.lean = layout.lean
    return PreferenceLearner(passes, row)


def beta_at(step: int, settings: PreferenceConfig, row: Preference) -> float:
    """Return beta after ``step`` steps: linear between the points of the schedule, constant outside."""
    if not settings.beta_schedule:
        return row.beta
    steps, betas = zip(*settings.beta_schedule, strict=True)
    return float(np.interp(step, steps, betas))


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
