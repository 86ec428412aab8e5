"""Preferences that are there before the first step: from files, or from the rollouts of a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from assay.config import PreferenceConfig
from assay.data.pairs import load_preferences
from assay.learn.preference_table import Preference
from assay.learn.preference_update import PreferenceBatch, PreferenceLearner
from assay.model.packing import pack
from assay.model.probe import LayoutChoice, probe_layouts
from assay.training.assemble import Bench
from assay.training.preference_pairs import (
    GOOD,
    Example,
    PairSchedule,
    mismatched,
    render_examples,
)
from assay.training.preference_reference import ReferenceTable
from assay.training.preference_verdicts import FILE_PREFIX, RUN_PREFIX, VerdictReader
from assay.types import Group


@dataclass(frozen=True)
class GivenPairs:
    """Examples, what the reference says of them (None: nothing is), and in which order they come."""

    examples: Sequence[Example]
    schedule: PairSchedule
    table: ReferenceTable | None
    learner: PreferenceLearner

    def draw(self, step: int) -> PreferenceBatch:
        """Return the examples of a step."""
        drawn = [self.examples[n] for n in self.schedule.draw(step)]
        return pack_examples(drawn, self.table, self.learner)


def pack_examples(
    examples: Sequence[Example], table: ReferenceTable | None, learner: PreferenceLearner
) -> PreferenceBatch:
    """Return examples as a batch, with what the reference table says of them."""
    groups = [example.group for example in examples]
    device = learner.device
    batch = pack(groups, [example.verdicts for example in examples], device)
    if table is None:
        return PreferenceBatch(batch)
    ref_R = table.rows(groups, device)
    others = [] if learner.row.paired else mismatched(examples)
    if not others:
        return PreferenceBatch(batch, ref_R)
    swapped = pack(others, [[GOOD] * len(one.completions) for one in others], device)
    return PreferenceBatch(batch, ref_R, swapped, table.rows(others, device))


def groups_to_score(
    steps: Iterator[Sequence[Example]], examples: Sequence[Example], row: Preference
) -> Iterator[Group]:
    """Yield every group whose reference log-probabilities are needed: examples, then each step's mismatches."""
    for example in examples:
        yield example.group
    if not row.paired:
        for step in steps:
            yield from mismatched(step)


def open_examples(
    bench: Bench,
    sources: Sequence[str],
    settings: PreferenceConfig,
    row: Preference,
    limit: int | None = None,
) -> tuple[list[Example], list[str]]:
    """Open sources of preferences; returns them as tokens, and one line a finding."""
    on_bad_row, seed = bench.config.data.on_bad_row, bench.config.run.seed
    limits = [one for one in (settings.max_tokens, bench.loaded.context_length) if one]
    longest = min(limits, default=None)
    reader = VerdictReader(row, settings, bench.renderer, seed, on_bad_row, longest)
    rows: list[Example] = []
    notes: list[str] = []
    judged = [one for one in sources if one.startswith((RUN_PREFIX, FILE_PREFIX))]
    for source in judged:
        found = reader.read(source)
        rows += found
        notes.append(f"{len(found)} preferences from {source}")
    skipped, num_skipped = list(reader.skipped), len(reader.skipped)
    files = [one for one in sources if one not in judged]
    if files:
        preferences = load_preferences(files, on_bad_row=on_bad_row, limit=limit)
        rendered = render_examples(
            preferences, bench.renderer, row, on_bad_row=on_bad_row, max_tokens=longest
        )
        rows += rendered.rows
        notes.append(preferences.describe())
        skipped += [*preferences.skipped, *rendered.skipped]
        num_skipped += preferences.num_skipped + len(rendered.skipped)
    if num_skipped:
        notes.append(f"{num_skipped} bad rows skipped, the first: {skipped[0]}")
    return rows[:limit], notes


def choose_pair_layout(bench: Bench, examples: Sequence[Example], row: Preference) -> LayoutChoice:
    """Prove on the loaded model that shared prompts equal plain ones, and choose for pairs of this length."""
    prompts = [len(one.group.prompt.tokens) for one in examples]
    completions = [len(each.tokens) for one in examples for each in one.group.completions]
    sizes = [len(one.group.completions) for one in examples]
    group_size = int(np.median(sizes))
    return probe_layouts(
        bench.loaded.model,
        prompt_length=int(np.median(prompts)),
        completion_length=int(np.median(completions)),
        group_size=group_size,
        layout=None if group_size > 1 else "plain",
    )
