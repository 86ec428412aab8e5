"""From preferences to groups of tokens: what a preference step learns from, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from assay.data.chat import PromptRenderer
from assay.data.pairs import Labelled, Pair, PreferenceSet
from assay.data.rowset import OnBadRow
from assay.errors import DataError, message
from assay.learn.preference_table import Preference
from assay.types import Completion, Group, Problem, Prompt, Verdict

GOOD = Verdict.of_score(1.0, "preference@1")
BAD = Verdict.of_score(0.0, "preference@1")


@dataclass(frozen=True, slots=True)
class Example:
    """What is learned from together: a group, and which of its completions are good."""

    group: Group
    verdicts: tuple[Verdict, ...]

    @classmethod
    def of_pair(
        cls, problem: Problem, prompt: Prompt, best: Completion, worst: Completion
    ) -> Example:
        """Return a pair; the better completion stands first."""
        return cls(Group(problem, prompt, (best, worst)), (GOOD, BAD))

    def apart(self) -> list[Example]:
        """Return each completion as an example of its own."""
        group = self.group
        return [
            Example(Group(group.problem, group.prompt, (completion,)), (verdict,))
            for completion, verdict in zip(group.completions, self.verdicts, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class Examples:
    """The examples of some sources. skipped: complaints about rows that were left out."""

    rows: list[Example]
    skipped: list[str]


def render_examples(
    preferences: PreferenceSet,
    renderer: PromptRenderer,
    row: Preference,
    *,
    on_bad_row: OnBadRow = "stop",
    max_tokens: int | None = None,
) -> Examples:
    """Render preferences to tokens, for a method that learns from pairs or from completions alone.

    A pair is two labelled completions to a method that learns from these. max_tokens: the longest prompt
    and completion together. Raises DataError for one that is longer, for two completions of the same
    tokens, and for a labelled completion where pairs are needed.
    """
    found: list[Example] = []
    skipped: list[str] = []
    for number, preference in enumerate(preferences):
        try:
            example = _example(preference, f"pair-{number}", renderer, row, max_tokens)
        except DataError as error:
            if on_bad_row == "stop":
                raise
            skipped.append(str(error))
            continue
        found += [example] if row.paired else example.apart()
    if not found:
        first = f"the first: {skipped[0]}"
        raise DataError(message("preference.pairs", "no row that fits", "at least one", first))
    return Examples(found, skipped)


def _example(
    preference: Pair | Labelled,
    id: str,
    renderer: PromptRenderer,
    row: Preference,
    max_tokens: int | None,
) -> Example:
    where = preference.source
    if isinstance(preference, Pair):
        texts = {"chosen": preference.chosen, "rejected": preference.rejected}
    elif row.paired:
        remedy = 'use method = "kto", which learns from labels'
        accepted = f"pairs, from which {row.name} learns"
        raise DataError(message(f"{where} label", "a single completion", accepted, remedy))
    else:
        texts = {"completion": preference.completion}
    prompt, replies = renderer.render_replies(preference.prompt, list(texts.values()), where)
    completions: list[Completion] = []
    for number, ((side, text), tokens) in enumerate(zip(texts.items(), replies, strict=True)):
        length = len(prompt) + len(tokens)
        if max_tokens is not None and length > max_tokens:
            found = f"{length} tokens, the prompt's included"
            accepted = f"at most {max_tokens}, by preference.max_tokens or the model's context"
            remedy = 'shorten it, or set data.on_bad_row = "skip"'
            raise DataError(message(f"{where} {side}", found, accepted, remedy))
        completions.append(as_completion(f"{id}/{number}", text, tokens))
    first, last = completions[0], completions[-1]
    if first is not last and np.array_equal(first.tokens, last.tokens):
        found = "the same tokens as chosen"
        raise DataError(message(f"{where} rejected", found, "two that differ", "drop it"))
    problem = Problem(id=id, prompt=preference.prompt, source=where)
    rendered = Prompt(str(preference.prompt), prompt)
    if isinstance(preference, Pair):
        return Example.of_pair(problem, rendered, first, last)
    verdict = GOOD if preference.desirable else BAD
    return Example(Group(problem, rendered, (first,)), (verdict,))


def as_completion(id: str, text: str, tokens: np.ndarray) -> Completion:
    """Return given tokens as a completion, all of which is learned from."""
    nothing = np.zeros(len(tokens), np.float32)
    sampled = np.ones(len(tokens), np.bool_)
    return Completion(id, text, tokens, nothing, nothing, sampled)


class PairSchedule:
    """Which examples each step learns from, fixed before the first: the state is the step alone.

    Every pass is a fresh seeded shuffle; the last step may be smaller.
    """

    def __init__(self, num_examples: int, per_step: int, epochs: float, seed: int) -> None:
        passes = int(np.ceil(epochs))
        orders = [np.random.default_rng((seed, n)).permutation(num_examples) for n in range(passes)]
        self.order = np.concatenate(orders)[: max(1, round(epochs * num_examples))]
        self.per_step = per_step

    @property
    def num_steps(self) -> int:
        """Optimizer steps in all."""
        return -(-len(self.order) // self.per_step)

    def draw(self, step: int) -> list[int]:
        """Return the indices of a step's examples."""
        first = step * self.per_step
        return self.order[first : first + self.per_step].tolist()


def mismatched(examples: Sequence[Example]) -> list[Group]:
    """Return each prompt with the completion of a next example, for KTO's reference point; none of fewer than two.

    (x_1, y_2), (x_2, y_3), ..., (x_m, y_1) as KTO has it; examples of the same prompt are passed over
    where there are others, since their completions do not mismatch.
    """
    count = len(examples)
    if count < 2:
        return []
    groups: list[Group] = []
    for index, example in enumerate(examples):
        prompt = example.group.prompt.tokens
        others = [(index + shift) % count for shift in range(1, count)]
        other = next((n for n in others if not _same(examples[n], prompt)), others[0])
        group = example.group
        completions = examples[other].group.completions
        groups.append(Group(group.problem, group.prompt, completions))
    return groups


def _same(example: Example, prompt: np.ndarray) -> bool:
    return np.array_equal(example.group.prompt.tokens, prompt)
