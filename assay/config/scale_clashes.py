"""Checks that [scale] fits the other sections, before files or models are opened."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from assay.errors import message

SHARDED_STAGES = ("rl", "sft")
"""Training stages that support sharded weights."""


def clashes_of_scale(config: Any) -> Iterator[str]:
    """Yield a message for each setting of [scale] that the rest of a configuration does not
    support.

    config: a TrainConfig; its module imports this module, so the class cannot be imported here.
    """
    scale, stage, samples = config.scale, config.stage, config.drawing is not None
    if scale.num_sampling and not samples:
        accepted = "actors where a run samples completions, as in [rl]"
        yield message("scale", f"actors in a run of [{stage}]", accepted, "remove it")
    if scale.generator != "engine" and not samples:
        found = f'"{scale.generator}" in a run of [{stage}]'
        yield message("scale.generator", found, '"engine"')
    groups = _groups_a_step(config)
    if scale.num_followers and groups is not None and (scale.learner_ranks or 1) > groups[0]:
        accepted = f"at most {groups[0]}, the groups of an optimizer step"
        remedy = f"raise {groups[1]}, or start fewer ranks"
        yield message("scale.learner_ranks", scale.learner_ranks, accepted, remedy)
    # A single process cannot sample and learn at the same time, so `steps_ahead` needs actors.
    if scale.steps_ahead and scale.rollout_actors is None:
        accepted = "0 without scale.rollout_actors: sampling ahead needs processes of its own"
        yield message("scale.steps_ahead", scale.steps_ahead, accepted)
    if scale.steps_ahead and stage != "rl":
        yield message("scale.steps_ahead", scale.steps_ahead, "0 in a stage other than [rl]")
    grows = config.rl is not None and config.rl.max_group_size is not None
    if scale.steps_ahead and config.verification.schedule and grows:
        # Completions that extend a group are sampled and judged later
        # than the group's first completions, with newer policy weights.
        accepted = "0 with verification.schedule and rl.max_group_size: siblings differ in age"
        yield message("scale.steps_ahead", scale.steps_ahead, accepted)
    if scale.shard:
        yield from _clashes_of_shards(config)


def _groups_a_step(config: Any) -> tuple[int, str] | None:
    """Return the maximum number of groups per optimizer step, and the key that sets it; None if the
    size of a step is a number of tokens."""
    sizes = {"reward_model": "rows_per_step", "preference": "pairs_per_step"}
    key = "num_prompts" if config.drawing is not None else sizes.get(config.stage)
    if key is None:
        return None
    number = getattr(getattr(config, config.stage), key)
    return number // (config.rl.num_minibatches if config.rl else 1), f"{config.stage}.{key}"


def _clashes_of_shards(config: Any) -> Iterator[str]:
    if not config.scale.num_followers:
        accepted = "false without learner ranks"
        yield message("scale.shard", "true", accepted, "set scale.learner_ranks to 2 or more")
    if config.stage not in SHARDED_STAGES:
        accepted = f"false in a stage other than {', '.join(SHARDED_STAGES)}"
        yield message("scale.shard", f"true in a run of [{config.stage}]", accepted)
    for what in unsupported_by_shards(config):
        yield message("scale.shard", f"true with {what}", f"false with {what}")


def unsupported_by_shards(config: Any) -> Iterator[str]:
    """Yield a message for each setting that does not work with weights sharded over ranks."""
    unsupported = {
        "[teacher]": config.teacher is not None,
        'optimizer.name = "adamw_8bit"': config.optimizer.name == "adamw_8bit",
        'optimizer.state_dtype = "bfloat16"': config.optimizer.state_dtype != "float32",
    }
    yield from (what for what, is_set in unsupported.items() if is_set)
