"""Facts read from a configuration and its row files, without opening a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from assay.config import TrainConfig
from assay.errors import UserError
from assay.host.machine import memory_mib
from assay.plan.facts import LEARNED, Facts, Reward
from assay.verify.expression import parse_expression

OF_VERIFIER: dict[str, Reward] = {
    "code": "tests",
    "judge": "judge",
    "reward_model": "reward_model",
    "process_reward_model": "reward_model",
}


def facts_of_config(config: TrainConfig) -> Facts:
    """Read the facts that a configuration states, such as the reward source and sampling limits."""
    found: dict[str, Any] = {
        "max_tokens": config.sampling.max_tokens,
        "memory_mib": memory_mib(),
        "hours": config.run.max_minutes / 60 if config.run.max_minutes else None,
    }
    stage: Any = config.drawing or config.preference
    if config.traces:
        found["reward"] = "demonstrations"
    elif config.pretrain is not None:
        found["reward"] = "texts"
    elif config.reward_model is not None:
        found["reward"] = "pairs"
    elif config.preference is not None and config.preference.given:
        found["reward"] = "unpaired" if config.preference.method == "kto" else "pairs"
    # The stage samples completions and judges them, possibly to build preference pairs.
    else:
        found["reward"], found["step_labels"], found["shaped"] = reward_of(config.data.verifier)
        found["group_size"] = stage.group_size
    if config.rl is not None:
        found["updates_per_batch"] = config.rl.epochs * config.rl.num_minibatches
        found["keep_close"] = bool(config.algorithm.kl_weight)
    return Facts(**found)


def reward_of(expression: str) -> tuple[Reward, bool, bool]:
    """Classify a verifier expression: (reward source, judges steps, has shaping terms)."""
    terms = parse_expression(expression)
    names = [name.partition("@")[0] for name in terms[0].names]
    found: list[Reward] = [OF_VERIFIER.get(name, "answer") for name in names]
    learned: list[Reward] = [one for one in found if one in LEARNED]
    steps = any("process_reward_model" in one for term in terms for one in term.names)
    return (learned or found)[0], steps, len(terms) > 1


def count_rows(config: TrainConfig) -> dict[str, Any]:
    """Count the demonstrations or preferences of the configured stage."""
    on_bad_row = config.data.on_bad_row
    if config.traces:
        from assay.data.traces import load_traces

        return {"num_demonstrations": len(load_traces(config.traces, on_bad_row=on_bad_row))}
    sources: Sequence[str] = ()
    if config.preference is not None:
        sources = config.preference.given
    elif config.reward_model is not None:
        sources = config.reward_model.rows
    if not sources:
        return {}
    from assay.data.pairs import Labelled, load_preferences
    from assay.data.sources import open_source

    if config.reward_model is not None and config.reward_model.kind != "preference":
        count = sum(1 for one in sources for _ in open_source(one).scan())
        # Each row carries its own label, so the rows are not pairs.
        return {"num_pairs": count, "reward": "unpaired"}
    rows = load_preferences(sources, on_bad_row=on_bad_row)
    unpaired = len(rows) > 0 and isinstance(rows[0], Labelled)
    return {"num_pairs": len(rows), "reward": "unpaired" if unpaired else "pairs"}


def known_rows(config: TrainConfig) -> dict[str, Any]:
    """Like `count_rows`, but return an empty dict if the rows cannot be read."""
    try:
        return count_rows(config)
    except UserError:
        return {}


def exists(config: TrainConfig) -> bool:
    """Whether the configured model is an existing local folder. The hub is not queried."""
    path = config.model.path
    return any(Path(one).expanduser().exists() for one in (path, path.rpartition("@")[0] or path))
