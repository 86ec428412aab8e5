"""Preferences from verdicts: the completions of a group against each other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from assay.config import PreferenceConfig
from assay.data.rowset import OnBadRow
from assay.errors import DataError, message
from assay.learn.preference_table import Preference
from assay.run.rollout_log import RolloutLog
from assay.train.preference_pairs import BAD, GOOD, Example
from assay.types import Group, Verdict

RUN_PREFIX = "run:"


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


def read_run(
    source: str,
    row: Preference,
    settings: PreferenceConfig,
    tokenizer: Any,
    *,
    seed: int,
    on_bad_row: OnBadRow = "stop",
    max_tokens: int | None = None,
) -> tuple[list[Example], list[str]]:
    """Return the examples of all rollouts of a run (``run:FOLDER``), and complaints about those left out.

    They are learned from token by token as they were sampled. Raises DataError where the folder has no
    rollouts, its tokens are another tokenizer's, or nothing in it can be told apart.
    """
    folder = Path(source.removeprefix(RUN_PREFIX))
    log = RolloutLog(folder / "rollouts")
    found: list[Example] = []
    skipped: list[str] = []
    try:
        steps = log.steps()
        if not steps:
            raise DataError(message(source, "no rollouts", "the folder of a run that sampled some"))
        for step in steps:
            recorded = log.read(step)
            if recorded is None:
                complaint = message(f"{source} step {step}", "a damaged shard", "a whole one")
                if on_bad_row == "stop":
                    raise DataError(complaint)
                skipped.append(complaint)
                continue
            _check_tokenizer(recorded.groups[0], tokenizer, source)
            judged = zip(recorded.groups, recorded.verdicts, strict=True)
            for number, (group, verdicts) in enumerate(judged):
                rng = np.random.default_rng((seed, step, number))
                for example in examples_of_group(group, verdicts, row, settings, rng):
                    if max_tokens is None or _length(example) <= max_tokens:
                        found.append(example)
                        continue
                    where = f"{source} step {step} {group.id}"
                    complaint = message(
                        where, f"{_length(example)} tokens", f"at most {max_tokens}"
                    )
                    if on_bad_row == "stop":
                        raise DataError(f'{complaint}; or set data.on_bad_row = "skip"')
                    skipped.append(complaint)
    finally:
        log.close()
    if not found:
        accepted = "groups in which one completion did better than another"
        raise DataError(message(source, f"{len(steps)} steps of ties", accepted))
    return found, skipped


def _length(example: Example) -> int:
    group = example.group
    return len(group.prompt.tokens) + max(len(one.tokens) for one in group.completions)


def _check_tokenizer(group: Group, tokenizer: Any, source: str) -> None:
    """Raise DataError where the prompt's text gives other tokens here; a BOS may stand before them."""
    expected = list(tokenizer.encode(group.prompt.text, add_special_tokens=False))
    found = group.prompt.tokens.tolist()
    if found[len(found) - len(expected) :] != expected:
        raise DataError(
            message(source, "tokens of another tokenizer", "rollouts of a model of the same family")
        )
