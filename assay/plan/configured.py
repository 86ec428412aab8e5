"""Facts that a configuration and its files tell by themselves: no model is opened."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from assay.config import TrainConfig
from assay.errors import UserError
from assay.plan.facts import LEARNED, Facts, Reward
from assay.verify.expression import parse_expression

MIB = 2**20
CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)

JUDGED = ("run:", "verdicts:")
"""How sources begin that hold judged groups (`assay.training.preference_verdicts`)."""

OF_VERIFIER: dict[str, Reward] = {
    "code": "tests",
    "judge": "judge",
    "reward_model": "reward_model",
    "process_reward_model": "reward_model",
}


def facts_of_config(config: TrainConfig) -> Facts:
    """Return what a configuration says itself: where the reward comes from, and how it is sampled."""
    facts = Facts(
        max_tokens=config.sampling.max_tokens,
        memory_mib=memory_mib(),
        hours=config.run.max_minutes / 60 if config.run.max_minutes else None,
    )
    if config.sft is not None:
        return replace(facts, reward="demonstrations")
    if config.preference is not None and given_pairs(config.preference.pairs):
        return replace(facts, reward="unpaired" if config.preference.method == "kto" else "pairs")
    if config.preference is not None:  # pairs are made of completions that a verifier judges
        reward, step_labels, shaped = reward_of(config.data.verifier)
        size = config.preference.group_size
        return replace(
            facts, reward=reward, step_labels=step_labels, shaped=shaped, group_size=size
        )
    if config.reward_model is not None:
        return replace(facts, reward="pairs")
    assert config.rl is not None
    reward, step_labels, shaped = reward_of(config.data.verifier)
    return replace(
        facts,
        reward=reward,
        step_labels=step_labels,
        shaped=shaped,
        group_size=config.rl.group_size,
        updates_per_batch=config.rl.epochs * config.rl.num_minibatches,
        keep_close=bool(config.algorithm.kl_weight),
    )


def reward_of(expression: str) -> tuple[Reward, bool, bool]:
    """Return where an expression's reward comes from, whether steps are judged, and whether it is shaped."""
    terms = parse_expression(expression)
    names = [name.partition("@")[0] for name in terms[0].names]
    found: list[Reward] = [OF_VERIFIER.get(name, "answer") for name in names]
    steps = any("process_reward_model" in one for term in terms for one in term.names)
    first = min(
        range(len(found)), key=lambda n: found[n] not in LEARNED
    )  # one that is learned, if any
    return found[first], steps, len(terms) > 1


def memory_mib() -> float | None:
    """Return the machine's memory, or its container's; None where the system does not tell."""
    try:
        found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None
    for path in CGROUP_LIMITS:
        try:
            found = min(found, int(path.read_text(encoding="utf-8")))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return found / MIB


def given_pairs(sources: Sequence[str]) -> list[str]:
    """Return the sources that hold preferences, not judged groups to make them of."""
    return [one for one in sources if not one.startswith(JUDGED)]


def count_rows(config: TrainConfig) -> dict[str, Any]:
    """Return how many demonstrations or preferences the configured stage has."""
    on_bad_row = config.data.on_bad_row
    if config.sft is not None:
        from assay.data.traces import load_traces

        return {"num_demonstrations": len(load_traces(config.sft.traces, on_bad_row=on_bad_row))}
    sources: Sequence[str] = ()
    if config.preference is not None:
        sources = given_pairs(config.preference.pairs)
    elif config.reward_model is not None:
        sources = config.reward_model.rows
    if not sources:
        return {}
    from assay.data.pairs import Labelled, load_preferences
    from assay.data.sources import open_source

    if config.reward_model is not None and config.reward_model.kind != "preference":
        count = sum(1 for one in sources for _ in open_source(one).scan())
        return {"num_pairs": count, "reward": "unpaired"}  # each is marked by itself
    rows = load_preferences(sources, on_bad_row=on_bad_row)
    unpaired = len(rows) > 0 and isinstance(rows[0], Labelled)
    return {"num_pairs": len(rows), "reward": "unpaired" if unpaired else "pairs"}


def known_rows(config: TrainConfig) -> dict[str, Any]:
    """Do as `count_rows`; nothing where the rows are not here."""
    try:
        return count_rows(config)
    except UserError:
        return {}


def exists(config: TrainConfig) -> bool:
    """Whether the configured model is a folder that is there (a hub name is not asked for)."""
    path = config.model.path
    return any(Path(one).expanduser().exists() for one in (path, path.rpartition("@")[0] or path))
