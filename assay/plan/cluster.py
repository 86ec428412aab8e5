"""Placement of a run on several devices, and the seconds of their communication."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from assay.config import TrainConfig
from assay.errors import ConfigError, message
from assay.plan.cluster_events import ClusterCosts, ClusterWork, SimulatedRun, simulate
from assay.plan.devices import Gpu
from assay.plan.step_seconds import UnitSeconds

HOST_DEVICES = 8
"""Devices of one host, as in DGX and HGX servers."""
HOST_VERIFIERS = 56
"""Verifier workers of a host without ``verification.num_workers``: one for two of the 112 cores of
a DGX H100 (its data sheet)."""
REACHED_LINKS = 0.8
"""Share of the links' bandwidth that a collective operation is assumed to reach."""
LATENCY = 1e-5
"""Assumed seconds of one hop of a collective operation."""
BUCKET_BYTES = 2**25
"""Bytes of gradients in one operation (`assay.learn.ranks`)."""
GRADIENT_BYTES = 4
MEAN_LENGTH = 0.5
"""Mean of the assumed exponential lengths before the cut, as a share of sampling.max_tokens."""
SIMULATED_STEPS, SEARCHED_STEPS = 8, 3
"""Simulated steps after the first ones, of a printed placement and of a searched one."""
SHARES = (1 / 16, 1 / 8, 1 / 4, 3 / 8, 1 / 2, 5 / 8, 3 / 4, 7 / 8)
"""Shares of the devices that are tried as learner ranks."""


@dataclass(frozen=True, slots=True)
class ClusterModel:
    """Facts of a model that communication depends on.

    weight_bytes: of all weights. sent_bytes: of the weights that change, in the model's type.
    num_trained: number of trained weights. num_layers: number of decoder layers.
    """

    weight_bytes: int
    sent_bytes: int
    num_trained: int
    num_layers: int

    @property
    def trains_all(self) -> bool:
        """Whether all weights are trained, and not only adapters."""
        return self.sent_bytes == self.weight_bytes


@dataclass(frozen=True, slots=True)
class ClusterPlacement:
    """Number of devices by use.

    shared: whether one of the learner's devices is also the only sampler. chosen: configuration
    keys that the command chose.
    """

    learners: int
    samplers: int
    idle: int = 0
    shard: bool = False
    shared: bool = False
    chosen: Sequence[str] = ()

    @property
    def words(self) -> str:
        """The placement as one line of text."""
        kind = ", sharded weights" if self.shard else ", each with all weights"
        learn = f"{self.learners} learn{kind if self.learners > 1 else ''}"
        sample = "the first of them also samples" if self.shared else f"{self.samplers} sample"
        idle = f"; {self.idle} are idle" if self.idle else ""
        return f"{learn}; {sample}{idle}"


def collective_bandwidth(gpu: Gpu, count: int) -> float:
    """Return the bandwidth of a collective operation over devices, in bytes per second.

    Between hosts, all devices of a host use their network adapters at the same time.
    """
    links = gpu.link if count <= HOST_DEVICES else min(gpu.link, HOST_DEVICES * gpu.network)
    return REACHED_LINKS * links


def gather_seconds(gpu: Gpu, count: int, num_bytes: float, calls: int = 1) -> float:
    """Return the seconds of an all-gather or a reduce-scatter of ``num_bytes``.

    calls: number of operations that share the bytes.
    """
    if count < 2:
        return 0.0
    hops = calls * math.ceil(math.log2(count)) * LATENCY
    return (count - 1) / count * num_bytes / collective_bandwidth(gpu, count) + hops


def broadcast_seconds(gpu: Gpu, where: ClusterPlacement, num_bytes: float) -> float:
    """Return the seconds in which the first learner sends ``num_bytes`` to all samplers."""
    # Every sampler receives all bytes, and the samplers may be on other hosts than the learner.
    hops = math.ceil(math.log2(where.samplers + 1)) * LATENCY
    return num_bytes / collective_bandwidth(gpu, where.learners + where.samplers) + hops


def costs_on(
    gpu: Gpu,
    units: UnitSeconds,
    model: ClusterModel,
    where: ClusterPlacement,
    slots: int,
    divides_state: bool = True,
) -> ClusterCosts:
    """Return the seconds of each elementary operation, such as a decoding step, with this
    assignment of processes to devices.

    slots: slots of ``units.decode``. divides_state: whether each rank steps a slice of the weights,
    as it does unless the optimizer is 8-bit AdamW.
    """
    ranks, calls = where.learners, math.ceil(GRADIENT_BYTES * model.num_trained / BUCKET_BYTES)
    gradients = gather_seconds(gpu, ranks, GRADIENT_BYTES * model.num_trained, calls)
    weights = gather_seconds(gpu, ranks, model.weight_bytes, model.num_layers)
    moved = 0.0 if where.shared else model.sent_bytes
    transfer = broadcast_seconds(gpu, where, moved) if moved else 0.0
    # Adapters are never sharded, so their gradients are reduced as without shards.
    divides_trained = where.shard and model.trains_all
    # Without shards, each rank sends the slice that it stepped to the other ranks.
    stepped = gather_seconds(gpu, ranks, model.sent_bytes) if divides_state else 0.0
    return ClusterCosts(
        prompt_token=units.prompt_token,
        decode=max(0.0, units.decode - slots * units.decode_slot),
        decode_slot=units.decode_slot,
        update_token=units.update_token,
        update_fixed=units.update_fixed / (ranks if where.shard or divides_state else 1),
        score_token=units.teacher_token,
        # An all-reduce is a reduce-scatter and an all-gather. Sharded gradients are only scattered,
        # once for each micro-batch, and weights are gathered for the forward and the backward pass.
        reduce=0.0 if divides_trained else 2 * gradients + stepped,
        gather=2 * weights + (gradients if divides_trained else 0.0) if where.shard else 0.0,
        # The command gathers a whole copy of sharded weights before it sends the copy.
        transfer=transfer + (weights if divides_trained else 0.0),
        load=model.sent_bytes / gpu.bandwidth if moved else 0.0,
    )


def work_of(
    config: TrainConfig,
    where: ClusterPlacement,
    prompt_tokens: float,
    micro_batch: float,
    num_scores: int = 0,
) -> ClusterWork:
    """Return the computation of one training step with a placement, an assignment of processes to
    devices. num_scores: as in `ClusterWork`."""
    assert config.drawing is not None
    drawn, rl = config.drawing, config.rl
    return ClusterWork(
        num_prompts=drawn.num_prompts,
        group_size=drawn.group_size,
        prompt_tokens=prompt_tokens,
        num_samplers=where.samplers,
        num_ranks=where.learners,
        num_verifiers=config.scale.verifier_actors
        or config.verification.num_workers
        or HOST_VERIFIERS,
        slots=config.engine.slots,
        steps_ahead=config.scale.steps_ahead,
        num_minibatches=rl.num_minibatches if rl else 1,
        epochs=rl.epochs if rl else 1,
        num_scores=num_scores,
        micro_batch_tokens=micro_batch,
        shares_prompts=not where.shard,
    )


def draw_lengths(
    config: TrainConfig, num_steps: int, groups: Sequence[Sequence[int]] = ()
) -> list[list[list[int]]]:
    """Draw lengths of completions by step, group and sibling.

    groups: lengths of a pilot's completions by group. A drawn group takes all its lengths from one
    group of the pilot, because completions of one problem have similar lengths. Empty: exponential
    lengths, cut at ``sampling.max_tokens``.
    """
    assert config.drawing is not None
    shape = num_steps, config.drawing.num_prompts, config.drawing.group_size
    rng = np.random.default_rng(config.run.seed)
    if not groups:
        most = config.sampling.max_tokens
        drawn = np.minimum(np.ceil(rng.exponential(MEAN_LENGTH * most, shape)), most)
        return drawn.astype(int).tolist()
    chosen = rng.integers(0, len(groups), shape[:2])
    # A completion of a pilot with a higher limit would end at the limit of this run.
    limited = [np.minimum(group, config.sampling.max_tokens) for group in groups]
    return [[rng.choice(limited[n], shape[2]).tolist() for n in step] for step in chosen]


def placements(config: TrainConfig, count: int, shard: bool) -> Iterator[ClusterPlacement]:
    """Yield the placements of a run on ``count`` devices that its [scale] permits.

    Raises ConfigError if [scale] asks for more devices.
    """
    scale, drawn = config.scale, config.drawing
    assert drawn is not None
    ranks, actors = scale.learner_ranks, scale.rollout_actors
    asked = (ranks or 1) + (actors or 0)
    if asked > count:
        found = f"{count}, fewer than the {asked} that [scale] asks for"
        remedy = "add devices, or lower scale.learner_ranks or scale.rollout_actors"
        raise ConfigError(message("--devices", found, f"at least {asked}", remedy))
    keys = {"scale.learner_ranks": ranks, "scale.rollout_actors": actors}
    chosen = tuple(key for key, value in keys.items() if value is None)
    # A rank needs a group of each optimizer step, and an actor samples whole groups.
    most_ranks = drawn.num_prompts // (config.rl.num_minibatches if config.rl else 1)
    most_actors = drawn.num_prompts * (1 + scale.steps_ahead)
    if actors is None and count == (ranks or 1):
        yield ClusterPlacement(count, 1, 0, shard and count > 1, True, chosen)
        return
    for learners in [ranks] if ranks is not None else _tried(count - (actors or 1), most_ranks):
        samplers = actors if actors is not None else min(count - learners, most_actors)
        idle = count - learners - samplers
        yield ClusterPlacement(learners, samplers, idle, shard and learners > 1, False, chosen)


def check_placement(config: TrainConfig, count: int) -> None:
    """Raise ConfigError if a run cannot be simulated, or [scale] asks for more devices."""
    if config.rl is None:
        raise ConfigError(message("assay plan --devices", f"[{config.stage}]", "[rl]"))
    next(placements(config, count, config.scale.shard))


def _tried(most: int, most_ranks: int) -> list[int]:
    """Return numbers of learner ranks to try."""
    found = {max(1, round(share * (most + 1))) for share in SHARES} | {most_ranks, 1}
    return sorted(number for number in found if number <= min(most, most_ranks))


LONGEST = "the longest completions"
REMEDIES: Mapping[str, str] = {
    "decoding": "more samplers, or shorter completions",
    LONGEST: "scale.steps_ahead, with scale.rollout_actors, hides them behind other steps",
    "reading prompts": "more samplers",
    "passes of the update": "more learner ranks",
    "exchange of gradients and sharded weights": "fewer ranks, or more prompts in a step",
    "transfer of weights": "scale.steps_ahead does not hide it; a faster network does",
    "the optimizer's step": "more learner ranks, which divide it (not with 8-bit AdamW)",
    "verdicts": "verification.num_workers, or scale.verifier_actors",
}
FASTER: Mapping[str, Sequence[str]] = {
    "decoding": ("decode", "decode_slot"),
    "reading prompts": ("prompt_token",),
    "passes of the update": ("update_token", "score_token"),
    "exchange of gradients and sharded weights": ("reduce", "gather"),
    "transfer of weights": ("transfer", "load"),
    "the optimizer's step": ("update_fixed",),
    "verdicts": ("verdict",),
}
"""Costs that each possible bottleneck consists of."""


def bottleneck(
    work: ClusterWork, costs: ClusterCosts, lengths: Sequence[Sequence[Sequence[int]]]
) -> tuple[str, float]:
    """Return the part whose doubled speed shortens a step most, and the shorter step's seconds.

    For the longest completions, all completions of a step get their mean length.
    """
    found: dict[str, float] = {}
    for name, keys in FASTER.items():
        faster: dict[str, Any] = {key: getattr(costs, key) / 2 for key in keys}
        found[name] = simulate(work, replace(costs, **faster), lengths).step_seconds
    level: list[list[list[int]]] = []
    for step in lengths:
        sizes = [one for group in step for one in group]
        mean = round(sum(sizes) / len(sizes))
        level.append([[mean] * len(group) for group in step])
    found[LONGEST] = simulate(work, costs, level).step_seconds
    name = min(found, key=lambda one: found[one])
    return name, found[name]


def fastest(
    candidates: Sequence[ClusterPlacement], run_on: Callable[[ClusterPlacement], SimulatedRun]
) -> ClusterPlacement:
    """Return the placement with the shortest step; of almost equal ones, that with fewer busy
    devices."""
    seconds = {one: run_on(one).step_seconds for one in candidates}
    least = min(seconds.values())
    close = [one for one in candidates if seconds[one] <= 1.01 * least]
    return min(close, key=lambda one: (one.learners + one.samplers, seconds[one]))
