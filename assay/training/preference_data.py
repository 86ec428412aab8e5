"""Training examples of preference methods: completions of one prompt, labelled good or bad.

Examples come from files of pairs, from the rollouts of a run (``run:FOLDER``), from a file of
``assay eval --out`` (``verdicts:FILE``), or from the groups that a step samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import numpy as np

from assay.config import PreferenceConfig
from assay.config.preference import FILE_PREFIX, RUN_PREFIX, Preference, is_judged_source
from assay.data.chat import PromptRenderer
from assay.data.completions import Record
from assay.data.pairs import Labelled, Pair, load_preferences
from assay.data.rows import complaint
from assay.data.rowset import OnBadRow, load_rows
from assay.errors import DataError, message
from assay.run.rollout_log import RolloutLog
from assay.training.row_schedule import BAD, GOOD, check_length
from assay.types import Completion, Group, Problem, Prompt, Status, Verdict


@dataclass(frozen=True, slots=True)
class Example:
    """One training example: a group with a label for each completion."""

    group: Group
    verdicts: tuple[Verdict, ...]

    @classmethod
    def of_pair(
        cls, problem: Problem, prompt: Prompt, best: Completion, worst: Completion
    ) -> Example:
        """Return a pair with the better completion first."""
        return cls(Group(problem, prompt, (best, worst)), (GOOD, BAD))

    def apart(self) -> list[Example]:
        """Split the example into one example per completion."""
        group = self.group
        return [
            Example(Group(group.problem, group.prompt, (completion,)), (verdict,))
            for completion, verdict in zip(group.completions, self.verdicts, strict=True)
        ]


def examples_of_group(
    group: Group,
    verdicts: Sequence[Verdict],
    row: Preference,
    settings: PreferenceConfig,
    rng: np.random.Generator,
) -> list[Example]:
    """Return the training examples of a judged group, without its unjudged completions.

    Paired methods get up to ``pairs_per_group`` pairs (see `chosen_pairs`). Unpaired methods get
    one example with all completions, desirable if they passed.
    """
    judged = [n for n, one in enumerate(verdicts) if one.judged and one.reward is not None]
    completions = group.completions
    if not row.paired:
        if not judged:
            return []
        kept = Group(group.problem, group.prompt, tuple(completions[n] for n in judged))
        return [Example(kept, tuple(GOOD if verdicts[n].correct else BAD for n in judged))]
    return [
        Example.of_pair(group.problem, group.prompt, completions[best], completions[worst])
        for best, worst in chosen_pairs(verdicts, judged, settings, rng)
        # A pair of equal completions is skipped,
        # because it has no gradient, whatever the rewards are.
        if not np.array_equal(completions[best].tokens, completions[worst].tokens)
    ]


def chosen_pairs(
    verdicts: Sequence[Verdict],
    judged: Sequence[int],
    settings: PreferenceConfig,
    rng: np.random.Generator,
) -> list[tuple[int, int]]:
    """Return (better, worse) indices of completions; each completion is in at most one pair.

    ``best_worst`` pairs the highest reward with the lowest, the second highest with the second
    lowest, and so on, while the rewards differ. ``random`` pairs correct completions with wrong
    completions in random order.
    """
    if settings.choose == "random":
        right = rng.permutation([n for n in judged if verdicts[n].correct]).astype(int).tolist()
        wrong = rng.permutation([n for n in judged if not verdicts[n].correct]).astype(int).tolist()
        return list(zip(right, wrong, strict=False))[: settings.pairs_per_group]
    rewards = {n: verdicts[n].reward or 0.0 for n in judged}
    ranked = sorted(judged, key=lambda n: -rewards[n])
    pairs = [(ranked[n], ranked[-1 - n]) for n in range(len(ranked) // 2)]
    pairs = [(best, worst) for best, worst in pairs if rewards[best] > rewards[worst]]
    return pairs[: settings.pairs_per_group]


def mismatched(examples: Sequence[Example]) -> list[Group]:
    """Return each prompt with the completions of another example; [] for a single example.

    The pairs of prompt x and completion y are (x_1, y_2), (x_2, y_3), ..., (x_m, y_1), as in KTO
    (Ethayarajh et al., 2024).
    """
    count = len(examples)
    groups: list[Group] = []
    for index, example in enumerate(examples if count > 1 else ()):
        group = example.group
        others = [examples[(index + shift) % count].group for shift in range(1, count)]
        prompt = group.prompt.tokens
        # A completion of an equal prompt would not be mismatched,
        # so an example with a different prompt is preferred.
        differ = (one for one in others if not np.array_equal(one.prompt.tokens, prompt))
        other = next(differ, others[0])
        groups.append(Group(group.problem, group.prompt, other.completions))
    return groups


@dataclass
class ExampleReader:
    """Reads preference sources as tokens.

    max_tokens: maximum number of prompt and completion tokens together. skipped: errors of skipped
    rows.
    """

    row: Preference
    settings: PreferenceConfig
    renderer: PromptRenderer
    seed: int
    on_bad_row: OnBadRow = "stop"
    max_tokens: int | None = None
    skipped: list[str] = field(default_factory=list[str])

    def read(
        self, sources: Sequence[str], limit: int | None = None
    ) -> tuple[list[Example], list[str]]:
        """Read the examples of all sources; return (examples, notes). Raises DataError."""
        found: list[Example] = []
        notes: list[str] = []
        # Number of skipped rows without a stored message:
        # `load_preferences` stores only the first messages.
        num_unlisted = 0
        for source in filter(is_judged_source, sources):
            judged = self.read_judged(source)
            found += judged
            notes.append(f"{len(judged)} preferences from {source}")
        files = [one for one in sources if not is_judged_source(one)]
        if files:
            rows = load_preferences(files, on_bad_row=self.on_bad_row, limit=limit)
            self.skipped += rows.skipped
            num_unlisted = rows.num_skipped - len(rows.skipped)
            found += self.render(rows)
            notes.append(rows.describe())
        if self.skipped:
            count = len(self.skipped) + num_unlisted
            notes.append(f"{count} bad rows skipped, the first: {self.skipped[0]}")
        return found[:limit], notes

    def render(self, preferences: Sequence[Pair | Labelled]) -> list[Example]:
        """Render pairs and labelled completions to tokens; methods without pairs get each pair as
        two labelled completions.

        Raises DataError for examples that are too long, for two completions with the same tokens,
        and for a labelled completion if the method needs pairs.
        """
        found: list[Example] = []
        for number, preference in enumerate(preferences):
            try:
                example = self._example(preference, f"pair-{number}")
            except DataError as error:
                self._skip(error)
            else:
                found += [example] if self.row.paired else example.apart()
        if not found:
            first = f"the first: {self.skipped[0]}"
            raise DataError(message("preference.pairs", "no row that fits", "at least one", first))
        return found

    def _example(self, preference: Pair | Labelled, id: str) -> Example:
        where, row = preference.source, self.row
        if isinstance(preference, Pair):
            texts = {"chosen": preference.chosen, "rejected": preference.rejected}
        elif row.paired:
            remedy = 'use method = "kto", which learns from labels'
            accepted = f"pairs, from which {row.name} learns"
            raise DataError(message(f"{where} label", "a single completion", accepted, remedy))
        else:
            texts = {"completion": preference.completion}
        prompt, replies = self.renderer.render_replies(
            preference.prompt, list(texts.values()), where, preference.think, preference.effort
        )
        completions = list[Completion]()
        for number, ((side, text), tokens) in enumerate(zip(texts.items(), replies, strict=True)):
            self._check_length(f"{where} {side}", len(prompt.tokens) + len(tokens))
            completions.append(Completion.from_tokens(f"{id}/{number}", tokens, text))
        problem = Problem(id, preference.prompt, source=where, think=preference.think)
        if isinstance(preference, Labelled):
            verdict = GOOD if preference.desirable else BAD
            return Example(Group(problem, prompt, tuple(completions)), (verdict,))
        if np.array_equal(completions[0].tokens, completions[1].tokens):
            found = "the same tokens as chosen"
            raise DataError(message(f"{where} rejected", found, "two that differ", "drop it"))
        return Example.of_pair(problem, prompt, *completions)

    def read_judged(self, source: str) -> list[Example]:
        """Return the training examples of judged groups.

        Raises DataError if the source has no rollouts, another tokenizer, a too long completion, or
        only groups of equal rewards.
        """
        found: list[Example] = []
        groups = self._of_run(source) if source.startswith(RUN_PREFIX) else self._of_file(source)
        for number, (where, group, verdicts) in enumerate(groups):
            # The choice of pairs is seeded by group,
            # so that a group's pairs do not depend on earlier groups.
            rng = np.random.default_rng((self.seed, number))
            for example in examples_of_group(group, verdicts, self.row, self.settings, rng):
                longest = max(len(one.tokens) for one in example.group.completions)
                try:
                    self._check_length(where, len(group.prompt.tokens) + longest)
                except DataError as error:
                    self._skip(error)
                else:
                    found.append(example)
        if not found:
            accepted = "groups in which one completion did better than another"
            raise DataError(message(source, "nothing but ties", accepted))
        return found

    def _check_length(self, where: str, length: int) -> None:
        accepted = f"{self.max_tokens}, by preference.max_tokens or the model's context"
        remedy = 'shorten it, or set data.on_bad_row = "skip"'
        check_length(where, length, self.max_tokens, accepted, remedy)

    def _skip(self, error: DataError) -> None:
        if self.on_bad_row == "stop":
            raise error
        self.skipped.append(str(error))

    def _of_run(self, source: str) -> Iterator[tuple[str, Group, Sequence[Verdict]]]:
        """Yield the rollouts of a run with their sampled tokens."""
        with closing(RolloutLog(Path(source.removeprefix(RUN_PREFIX)) / "rollouts")) as log:
            if not log.steps():
                accepted = "the folder of a run that sampled some"
                raise DataError(message(source, "no rollouts", accepted))
            for step in log.steps():
                recorded = log.read(step)
                if recorded is None:
                    remedy = 'or set data.on_bad_row = "skip"'
                    where, found = f"{source} step {step}", "a damaged shard"
                    self._skip(DataError(message(where, found, "a whole one", remedy)))
                    continue
                self._check_tokenizer(recorded.groups[0], source)
                for group, verdicts in zip(*recorded, strict=True):
                    yield f"{source} step {step} {group.id}", group, verdicts

    def _check_tokenizer(self, group: Group, source: str) -> None:
        """Raise DataError if the model's tokenizer encodes the text to other tokens than recorded,
        apart from a leading BOS."""
        tokenizer: Any = self.renderer.tokenizer
        expected = list(tokenizer.encode(group.prompt.text, add_special_tokens=False))
        found = group.prompt.tokens.tolist()
        if found[len(found) - len(expected) :] != expected:
            accepted = "rollouts of a model of the same family"
            raise DataError(message(source, "tokens of another tokenizer", accepted))

    def _of_file(self, source: str) -> Iterator[tuple[str, Group, Sequence[Verdict]]]:
        """Yield the groups of a verdict file; rows with equal prompts form a group."""
        file = source.removeprefix(FILE_PREFIX)
        how: Any = {"check": self._recorded, "on_bad_row": self.on_bad_row}
        rows = load_rows("verdicts", Record.read, [file], **how)
        self.skipped += rows.skipped
        siblings: dict[Any, list[Record]] = {}
        for row in rows:
            siblings.setdefault(row.prompt, []).append(row)
        for text, members in siblings.items():
            prompt = Prompt(text, self.renderer.encode_rendered(text, "")[0])
            completions, verdicts = zip(*map(self._recorded, members), strict=True)
            place = members[0].source
            yield place, Group(Problem(place, text), prompt, completions), verdicts

    def _recorded(self, row: Record) -> tuple[Completion, Verdict]:
        """Return the completion and verdict of one row of ``assay eval --out``."""
        prompt, text, verdict = row.prompt, row.text("completion"), row.verdict
        if not isinstance(prompt, str):
            raise complaint(row.source, "prompt", prompt, "text, as assay eval --out writes it")
        if verdict is None:
            raise complaint(row.source, "status", None, ", ".join(get_args(Status)))
        # A truncated completion is marked, because training must not append an end token to it.
        ended = row.keys.get("finish_reason") != "length"
        tokens = self.renderer.encode_rendered(prompt, text, ended)[1]
        if not len(tokens):
            raise complaint(row.source, "completion", text, "text that has some tokens")
        return Completion.from_tokens(row.source, tokens, text), verdict
