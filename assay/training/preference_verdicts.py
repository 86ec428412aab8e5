"""Preferences from verdicts: the completions of a group against each other.

The groups are a step's rollouts, those of a run (``run:FOLDER``), or those of a file that
``assay eval --out`` wrote (``verdicts:FILE``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import numpy as np

from assay.config import PreferenceConfig
from assay.data.chat import PromptRenderer
from assay.data.rows import check_text, complaint, copy_row
from assay.data.rowset import OnBadRow
from assay.data.sources import open_source
from assay.errors import DataError, message
from assay.learn.preference_table import Preference
from assay.run.rollout_log import RolloutLog
from assay.training.preference_pairs import BAD, GOOD, Example, as_completion
from assay.types import Completion, Group, Problem, Prompt, Status, Verdict

RUN_PREFIX, FILE_PREFIX = "run:", "verdicts:"
VERIFIER = "file@1"

Judged = tuple[str, Group, Sequence[Verdict]]
"""Where a group comes from, the group, and its verdicts."""


def examples_of_group(
    group: Group,
    verdicts: Sequence[Verdict],
    row: Preference,
    settings: PreferenceConfig,
    rng: np.random.Generator,
) -> list[Example]:
    """Return what a judged group teaches; nothing of completions that were not judged.

    To a method that learns from pairs: up to ``pairs_per_group`` pairs (see `chosen_pairs`). To
    one that learns from single completions: all of them, desirable where they passed.
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
        if not np.array_equal(completions[best].tokens, completions[worst].tokens)
    ]


def chosen_pairs(
    verdicts: Sequence[Verdict],
    judged: Sequence[int],
    settings: PreferenceConfig,
    rng: np.random.Generator,
) -> list[tuple[int, int]]:
    """Return (better, worse) indices, each completion in one pair at most.

    best_worst: the highest reward with the lowest, the second with the second lowest, and so on, as
    long as they differ. random: completions that passed with others that did not, in a random order.
    """
    if settings.choose == "random":
        right = rng.permutation([n for n in judged if verdicts[n].correct]).astype(int).tolist()
        wrong = rng.permutation([n for n in judged if not verdicts[n].correct]).astype(int).tolist()
        return list(zip(right, wrong, strict=False))[: settings.pairs_per_group]
    ranked = sorted(judged, key=lambda n: -_reward(verdicts[n]))
    pairs = [(ranked[n], ranked[-1 - n]) for n in range(len(ranked) // 2)]
    pairs = [pair for pair in pairs if _reward(verdicts[pair[0]]) > _reward(verdicts[pair[1]])]
    return pairs[: settings.pairs_per_group]


def _reward(verdict: Verdict) -> float:
    assert verdict.reward is not None
    return verdict.reward


@dataclass(frozen=True)
class VerdictReader:
    """Reads judged groups from a source and makes examples of them.

    max_tokens: the longest prompt and completion together. skipped: complaints about what was left out.
    """

    row: Preference
    settings: PreferenceConfig
    renderer: PromptRenderer
    seed: int
    on_bad_row: OnBadRow = "stop"
    max_tokens: int | None = None
    skipped: list[str] = field(default_factory=list[str])

    def read(self, source: str) -> list[Example]:
        """Return the examples of a source.

        Raises DataError where it has no rollouts, its tokens are another tokenizer's, a completion is
        too long, or nothing in it can be told apart.
        """
        found: list[Example] = []
        groups = self._of_run(source) if source.startswith(RUN_PREFIX) else self._of_file(source)
        for number, (where, group, verdicts) in enumerate(groups):
            rng = np.random.default_rng((self.seed, number))
            for example in examples_of_group(group, verdicts, self.row, self.settings, rng):
                length = _length(example)
                if self.max_tokens is None or length <= self.max_tokens:
                    found.append(example)
                else:
                    self._complain(
                        where,
                        f"{length} tokens",
                        f"at most {self.max_tokens}, by preference.max_tokens or the model's context",
                    )
        if not found:
            accepted = "groups in which one completion did better than another"
            raise DataError(message(source, "nothing but ties", accepted))
        return found

    def _complain(self, where: str, found: str, accepted: str) -> None:
        if self.on_bad_row == "stop":
            remedy = 'or set data.on_bad_row = "skip"'
            raise DataError(message(where, found, accepted, remedy))
        self.skipped.append(message(where, found, accepted))

    def _of_run(self, source: str) -> Iterator[Judged]:
        """Yield the rollouts of a run, token by token as they were sampled."""
        log = RolloutLog(Path(source.removeprefix(RUN_PREFIX)) / "rollouts")
        try:
            steps = log.steps()
            if not steps:
                accepted = "the folder of a run that sampled some"
                raise DataError(message(source, "no rollouts", accepted))
            for step in steps:
                recorded = log.read(step)
                if recorded is None:
                    self._complain(f"{source} step {step}", "a damaged shard", "a whole one")
                    continue
                self._check_tokenizer(recorded.groups[0], source)
                for group, verdicts in zip(recorded.groups, recorded.verdicts, strict=True):
                    yield f"{source} step {step} {group.id}", group, verdicts
        finally:
            log.close()

    def _of_file(self, source: str) -> Iterator[Judged]:
        """Yield the groups of a file of verdicts: rows of equal prompts, in order of appearance."""
        file = open_source(source.removeprefix(FILE_PREFIX))
        siblings: dict[str, list[tuple[Completion, Verdict]]] = {}
        places: dict[str, str] = {}
        for _, number, raw in file.scan():
            where = f"{file.label}:{number}"
            try:
                text, completion, verdict = _read_row(file.parse(raw, where), where, self.renderer)
            except DataError as error:
                if self.on_bad_row == "stop":
                    raise
                self.skipped.append(str(error))
                continue
            siblings.setdefault(text, []).append((completion, verdict))
            places.setdefault(text, where)
        for text, members in siblings.items():
            prompt = Prompt(text, self.renderer.encode_rendered(text, "")[0])
            completions = tuple(completion for completion, _ in members)
            group = Group(Problem(places[text], text), prompt, completions)
            yield places[text], group, [verdict for _, verdict in members]

    def _check_tokenizer(self, group: Group, source: str) -> None:
        """Raise DataError where the prompt's text gives other tokens here; a BOS may stand before them."""
        tokenizer: Any = self.renderer.tokenizer
        expected = list(tokenizer.encode(group.prompt.text, add_special_tokens=False))
        found = group.prompt.tokens.tolist()
        if found[len(found) - len(expected) :] != expected:
            accepted = "rollouts of a model of the same family"
            raise DataError(message(source, "tokens of another tokenizer", accepted))


def _length(example: Example) -> int:
    group = example.group
    return len(group.prompt.tokens) + max(len(one.tokens) for one in group.completions)


def _read_row(row: Any, where: str, renderer: PromptRenderer) -> tuple[str, Completion, Verdict]:
    """Return a rendered prompt, a completion and its verdict from a row that ``assay eval --out`` wrote."""
    keys = copy_row(row, where)
    for key in ("prompt", "completion"):
        if not isinstance(keys.get(key), str):
            raise complaint(where, key, keys.get(key), "text, as assay eval --out writes it")
        check_text(keys[key], where, key)
    status, reward = keys.get("status"), keys.get("reward")
    if status not in get_args(Status):
        raise complaint(where, "status", status, ", ".join(get_args(Status)))
    verdict = Verdict.not_judged("unavailable", VERIFIER)
    if status != "not_judged":
        if not isinstance(reward, int | float) or isinstance(reward, bool):
            raise complaint(where, "reward", reward, "a number, where it was judged")
        verdict = Verdict.of_score(float(status == "passed"), VERIFIER, reward=float(reward))
    ended = keys.get("finish_reason") != "length"
    tokens = renderer.encode_rendered(keys["prompt"], keys["completion"], ended)[1]
    if not len(tokens):
        raise complaint(where, "completion", keys["completion"], "text that has some tokens")
    return keys["prompt"], as_completion(where, keys["completion"], tokens), verdict
