"""Estimates of a run on several GPUs: placement, memory, seconds, age of tokens, cost.

Memory and the seconds of single passes are those of ``--device`` (`assay.plan.measured.on_device`).
The seconds of a step come from a simulation (`assay.plan.cluster_events`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from assay.config import TrainConfig
from assay.config.scale_clashes import unsupported_by_shards
from assay.config.toml_text import one_line
from assay.model.activations import saved_bytes
from assay.model.family import is_lean
from assay.model.layouts import micro_batch_tokens
from assay.model.load import choose_dtype
from assay.model.skeleton import skeleton
from assay.plan.arithmetic import MachineRates, two_digits, units_from_rates
from assay.plan.cluster import (
    GRADIENT_BYTES,
    LONGEST,
    REMEDIES,
    SEARCHED_STEPS,
    SIMULATED_STEPS,
    ClusterModel,
    ClusterPlacement,
    bottleneck,
    check_placement,
    costs_on,
    draw_lengths,
    fastest,
    placements,
    work_of,
)
from assay.plan.cluster_events import SKIPPED, ClusterCosts, SimulatedRun, simulate
from assay.plan.cluster_figure import draw_devices
from assay.plan.devices import Gpu
from assay.plan.measured.on_device import (
    PROMPT_TOKENS,
    REACHED_BANDWIDTH,
    REACHED_PRODUCTS,
    changed_config,
    lighter_settings,
    needed_models,
    read_shape,
)
from assay.plan.measured.pilot_facts import PilotFacts
from assay.plan.memory import MIB, MemoryPlan, plan_memory
from assay.plan.record import FIGURE_OF, write_page
from assay.session.assemble import choose_algorithm

COUNTS = (8, 16, 32, 64, 128, 256, 512, 1024)
"""Numbers of devices in the figure."""
SAMPLED_ONLY = ("packed", "kv_cache", "decoding", "proof")
SAMPLER = ("weights", "slack", *SAMPLED_ONLY)
STATE = ("master", "optimizer")
"""Parts of the memory that all learner ranks divide, except with 8-bit AdamW."""
DIVIDED = ("weights", "reference", "gradients", *STATE)
"""Parts of the memory that sharded weights divide among the ranks. With adapters, which are whole
in every rank, only the first part and `STATE` are divided."""


@dataclass(frozen=True, slots=True)
class DevicesPoint:
    """Simulation of one number of devices. fits: whether the placement fits into the memory.
    bottleneck: its name and a step's seconds without half of it; None if it was not looked for."""

    count: int
    where: ClusterPlacement
    run: SimulatedRun
    fits: bool
    bottleneck: tuple[str, float] | None = None


@dataclass(frozen=True, slots=True)
class DevicesPlan:
    """Estimates of a run on several devices.

    settings: changed settings with which the run fits into the memory. learner_mib, sampler_mib:
    estimated peaks per device. points: simulations for the figure. lengths: origin of the lengths.
    """

    gpu: Gpu
    model: str
    num_weights: int
    work: str
    lengths: str
    settings: Mapping[str, Any]
    chosen: DevicesPoint
    learner: MemoryPlan
    sampler: MemoryPlan
    fits: bool
    num_steps: int
    max_minutes: float | None = None
    points: Sequence[DevicesPoint] = ()
    price: float | None = None
    files: Sequence[str] = ()

    @property
    def hours(self) -> float:
        """Hours of the run's steps, without evaluations, at most ``run.max_minutes``."""
        hours = self.num_steps * self.chosen.run.step_seconds / 3600
        return hours if self.max_minutes is None else min(hours, self.max_minutes / 60)

    @property
    def device_hours(self) -> float:
        """Hours of all devices together."""
        return self.chosen.count * self.hours

    def with_figure(self, path: Path, title: str, overwrite: bool = False) -> DevicesPlan:
        """Draw the points to a file, and return the plan with its path. Raises UserError.

        title: name of the configuration. overwrite: as in `write_page`.
        """
        runs = [one.run for one in self.points]
        # Two hyphens would end the comment in the first line.
        owner = one_line(title).replace("--", "- -")
        drawn = draw_devices(
            [one.count for one in self.points],
            [one.step_seconds for one in runs],
            [one.learner_utilization for one in runs],
            [one.sampler_utilization for one in runs],
            self.chosen.count,
            f"{Path(self.model).name} on {self.gpu.name}",
        )
        write_page(path, f"{FIGURE_OF}{owner} -->\n{drawn}", overwrite)
        return replace(self, files=[str(path)])

    def as_dict(self) -> dict[str, Any]:
        """Return the estimates as plain values for JSON."""
        assert self.chosen.bottleneck is not None
        name, faster = self.chosen.bottleneck
        cost = None if self.price is None else self.price * self.device_hours
        return {
            "device": self.gpu.name,
            "model": self.model,
            "num_weights": self.num_weights,
            "lengths": self.lengths,
            "settings": dict(self.settings),
            "fits": self.fits,
            "usable_mib": self.gpu.usable_mib,
            "learner_mib": self.learner.total_mib,
            "sampler_mib": self.sampler.total_mib,
            **_point(self.chosen),
            "phases": self.chosen.run.waiting(),
            "hours": self.hours,
            "device_hours": self.device_hours,
            "cost": cost,
            "bottleneck": {"part": name, "step_seconds_if_twice_as_fast": faster},
            "points": [_point(one) for one in self.points],
            "files": list(self.files),
        }

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        one, run = self.chosen, self.chosen.run
        yield f"{self.model}, {self.num_weights / 1e9:.2f}B weights; {self.work}"
        yield f"lengths: {self.lengths}"
        yield f"on {one.count} x {self.gpu.name}: {one.where.words}"
        if one.where.chosen:
            yield f"  chosen by the plan, for the shortest step: {', '.join(one.where.chosen)}"
        for key, value in self.settings.items():
            yield f"  set {key} = {str(value).lower()}, or the run does not fit"
        verdict = "" if self.fits else ": the run does not fit; take larger GPUs or a smaller model"
        yield (
            f"memory per device: learner {self.learner.total_mib / 1024:.1f} GiB, sampler"
            f" {self.sampler.total_mib / 1024:.1f} GiB, usable"
            f" {self.gpu.usable_mib / 1024:.1f}{verdict}"
        )
        parts = ", ".join(f"{name} {two_digits(value)}" for name, value in run.waiting().items())
        yield f"a step: {two_digits(run.step_seconds)} s ({parts})"
        rate = run.step_tokens / run.step_seconds / one.count
        yield (
            f"utilization: learner {run.learner_utilization:.0%}, samplers"
            f" {run.sampler_utilization:.0%}; {two_digits(rate)} sampled tokens a second and device"
        )
        yield f"age of trained tokens: mean {run.age:.2f} steps, at most {run.oldest}"
        money = ""
        if self.price:
            money = f", {two_digits(self.price * self.device_hours)} at {self.price:g} an hour"
        yield (
            f"the run: {self.num_steps} steps in {two_digits(self.hours)} hours,"
            f" {two_digits(self.device_hours)} accelerator-hours{money}, without evaluations"
        )
        assert one.bottleneck is not None
        name, faster = one.bottleneck
        change = "all of the mean length" if name == LONGEST else "twice as fast"
        yield (
            f"next bottleneck: {name}; {change}, a step would take {two_digits(faster)} s:"
            f" {REMEDIES[name]}"
        )
        if self.points:
            yield ""
            yield f"  {'devices':>7}  {'learn':>5}  {'sample':>6}  {'step':>8}  learner  samplers"
            for point in self.points:
                step = f"{two_digits(point.run.step_seconds)} s"
                yield (
                    f"  {point.count:>7}  {point.where.learners:>5}  {point.where.samplers:>6}"
                    f"  {step:>8}  {point.run.learner_utilization:>7.0%}"
                    f"  {point.run.sampler_utilization:>8.0%}"
                    f"{'' if point.fits else '  does not fit'}"
                )
        yield "an estimate: data sheets and a simulation; `assay train` refuses ranks on GPUs today"
        yield from (f"wrote {path}" for path in self.files)


def _point(one: DevicesPoint) -> dict[str, Any]:
    return {
        "devices": one.count,
        "learners": one.where.learners,
        "samplers": one.where.samplers,
        "idle": one.where.idle,
        "shard": one.where.shard,
        "chosen": list(one.where.chosen),
        "fits": one.fits,
        "step_seconds": one.run.step_seconds,
        "step_tokens": one.run.step_tokens,
        "learner_utilization": one.run.learner_utilization,
        "sampler_utilization": one.run.sampler_utilization,
        "age": one.run.age,
        "oldest": one.run.oldest,
    }


class DevicesModel:
    """A configured run whose model is known by its shape only. made: skeletons of the model, by
    device type and whether they have adapters."""

    def __init__(
        self,
        gpu: Gpu,
        config: TrainConfig,
        shape: Any,
        prompt_tokens: float = PROMPT_TOKENS,
        pilot: PilotFacts | None = None,
        made: dict[tuple[str, bool], Any] | None = None,
    ) -> None:
        self.gpu, self.config, self.pilot = gpu, config, pilot
        self.prompt_tokens = pilot.prompt_tokens if pilot is not None else prompt_tokens
        self._shape, self._made = shape, {} if made is None else made
        self._dtype = choose_dtype(config.model.dtype, torch.device("cuda"))
        self._costs: dict[ClusterPlacement, ClusterCosts] = {}
        self._plans: dict[bool, MemoryPlan] = {}

    @property
    def skeleton(self) -> Any:
        """The model without weights."""
        return self._skeleton("cuda")

    def _skeleton(self, device: str) -> Any:
        # Building a skeleton takes seconds, so that models with other settings share it.
        lora = self.config.model.lora
        key = device, lora is not None
        if key not in self._made:
            self._made[key] = skeleton(self._shape, self._dtype, device, lora)
        return self._made[key]

    @property
    def divides_state(self) -> bool:
        """Whether learner ranks divide the optimizer's state, as in `assay.learn.optimizer`."""
        return self.config.optimizer.name != "adamw_8bit"

    @cached_property
    def facts(self) -> ClusterModel:
        """Sizes of the model's weights."""
        weights = list(self.skeleton.parameters())
        trained = [one for one in weights if one.requires_grad]
        return ClusterModel(
            weight_bytes=sum(one.numel() * one.element_size() for one in weights),
            sent_bytes=sum(one.numel() * one.element_size() for one in trained),
            num_trained=sum(one.numel() for one in trained),
            num_layers=self.skeleton.config.get_text_config().num_hidden_layers,
        )

    @cached_property
    def _module_bytes(self) -> float:
        """Activation memory of a layer of the model's own modules, in bytes per token."""
        # A CPU build of torch cannot run autograd on fake tensors of a CUDA device.
        return saved_bytes(self._skeleton("cpu"), lean=False)

    def _memory(self, shard: bool) -> MemoryPlan:
        if shard not in self._plans:
            # Sharded weights are computed by the model's own modules.
            lean = is_lean(self.skeleton) and not shard
            self._plans[shard] = plan_memory(
                self.config,
                self.skeleton,
                round(self.prompt_tokens),
                *needed_models(self.config),
                libraries_mib=0.0,
                lean=lean,
                gpu_mib=self.gpu.memory_mib,
                layer_bytes=None if lean else self._module_bytes,
            )
        return self._plans[shard]

    def sampler_memory(self) -> MemoryPlan:
        """Return the memory of a device that samples."""
        plan = self._memory(False)
        return replace(plan, parts={k: v for k, v in plan.parts.items() if k in SAMPLER})

    def learner_memory(self, where: ClusterPlacement) -> MemoryPlan:
        """Return the memory of the device of rank 0, which needs the most."""
        plan = self._memory(where.shard)
        parts = dict(plan.parts)
        if not where.shared:
            parts = {name: mib for name, mib in parts.items() if name not in SAMPLED_ONLY}
        if self.divides_state and not where.shard:
            parts |= {n: parts[n] / where.learners for n in STATE if n in parts}
        if where.shard:
            trains_all = self.facts.trains_all
            divided = DIVIDED if trains_all else ("weights", *(STATE if self.divides_state else ()))
            parts |= {n: parts[n] / where.learners for n in divided if n in parts}
            # Each rank's rows of the reference are float32, as those of the weights.
            if "reference" in parts and trains_all:
                parts["reference"] *= (
                    GRADIENT_BYTES * self.facts.num_trained / self.facts.sent_bytes
                )
            # Rank 0 keeps a whole copy, and the embedding stays whole with its gradient.
            table = self.skeleton.get_input_embeddings().weight
            whole = table.numel() * (table.element_size() + (GRADIENT_BYTES if trains_all else 0))
            layer = (self.facts.weight_bytes - table.numel() * table.element_size()) / max(
                1, self.facts.num_layers
            )
            parts["weights"] += (self.facts.weight_bytes + whole + layer) / MIB
        return replace(plan, parts=parts)

    def costs(self, where: ClusterPlacement) -> ClusterCosts:
        """Return the seconds of each elementary operation, such as a decoding step, with this
        assignment of processes to devices."""
        if where not in self._costs:
            rates = MachineRates(
                operations=REACHED_PRODUCTS * self.gpu.operations,
                bytes=REACHED_BANDWIDTH * self.gpu.bandwidth,
            )
            lean = is_lean(self.skeleton) and not where.shard
            units = units_from_rates(self.config, self.skeleton, rates, lean)
            slots = self.config.engine.slots
            found = costs_on(self.gpu, units, self.facts, where, slots, self.divides_state)
            verdict = self.pilot.verdict_seconds if self.pilot is not None else 0.0
            self._costs[where] = replace(found, verdict=verdict)
        return self._costs[where]

    def simulated(self, where: ClusterPlacement, num_steps: int) -> SimulatedRun:
        """Simulate a placement. num_steps: counted steps."""
        return simulate(self.work(where), self.costs(where), self.lengths(num_steps))

    def work(self, where: ClusterPlacement) -> Any:
        """Return the computation of one training step with this assignment of processes to
        devices."""
        rl: Any = self.config.rl
        tokens = micro_batch_tokens(rl.max_tokens_per_micro_batch, "cuda")
        row = choose_algorithm(self.config)
        # As in `scores_first`: with one minibatch, the first pass of the update also scores.
        num_scores = int(rl.num_minibatches > 1 or row.kl_in_reward) + int(row.kl_weight > 0)
        return work_of(self.config, where, self.prompt_tokens, tokens, num_scores)

    def lengths(self, num_steps: int) -> list[list[list[int]]]:
        """Draw the lengths of a simulation."""
        ahead = self.config.scale.steps_ahead
        groups = self.pilot.groups if self.pilot is not None else ()
        # With ``steps_ahead``, a device's load in one step depends on several steps.
        # The mean over few simulated steps would be noisy, so more steps are simulated.
        num_steps = max(num_steps, 2 * (ahead + 1))
        return draw_lengths(self.config, num_steps + SKIPPED + 2 * ahead, groups)

    def point(self, count: int, shard: bool, free: bool = False) -> DevicesPoint:
        """Return the fastest placement on a number of devices. free: ignore the numbers of
        [scale]."""
        config = self.config
        if free:
            scale = {"learner_ranks": None, "rollout_actors": None}
            config = config.model_copy(
                update={"scale": config.scale.model_copy(update=scale)},
            )
        tried = [one for one in placements(config, count, shard) if self.fits(one)]
        tried = tried or list(placements(config, count, shard))
        best = tried[0]
        if len(tried) > 1:
            best = fastest(tried, lambda one: self.simulated(one, SEARCHED_STEPS))
        return DevicesPoint(count, best, self.simulated(best, SIMULATED_STEPS), self.fits(best))

    def fits(self, where: ClusterPlacement) -> bool:
        """Whether a placement fits into the devices' memory."""
        peaks = [self.learner_memory(where)]
        peaks += [] if where.shared else [self.sampler_memory()]
        return max(one.total_mib for one in peaks) <= self.gpu.usable_mib


def plan_on_devices(
    gpu: Gpu,
    count: int,
    config: TrainConfig,
    prompt_tokens: int | None = None,
    price: float | None = None,
    pilot: PilotFacts | None = None,
    shape: Any = None,
    counts: Sequence[int] = COUNTS,
) -> DevicesPlan:
    """Estimate a configured run on several GPUs.

    counts: numbers of devices in the figure. shape: as in `plan_on`. Raises ConfigError for a stage
    without an estimate, and for fewer devices than [scale] asks for.
    """
    check_placement(config, count)
    has_adapters = False
    if shape is None:
        shape, has_adapters = read_shape(config.model)
    # As in `plan_on`, adapters of the model's path are trained further.
    if has_adapters and config.model.lora is None:
        config = changed_config(config, {"model.lora": {}})
    given = prompt_tokens or PROMPT_TOKENS
    model, shard, settings = _fitting(gpu, count, config, shape, given, pilot)
    chosen = model.point(count, shard)
    lengths = model.lengths(SIMULATED_STEPS)
    weakest = bottleneck(model.work(chosen.where), model.costs(chosen.where), lengths)
    assert config.drawing is not None
    drawn = config.drawing
    if pilot is not None:
        origin = f"{len(pilot.groups)} groups of the pilot {pilot.name}"
    else:
        most = config.sampling.max_tokens
        origin = (
            f"assumed exponential with mean {most / 2:g}, cut at {most} (--pilot RUN: measured)"
        )
    return DevicesPlan(
        gpu=gpu,
        model=config.model.path,
        num_weights=sum(one.numel() for one in model.skeleton.parameters()),
        work=f"{drawn.num_prompts} prompts x {drawn.group_size} completions,"
        f" prompts of {model.prompt_tokens:.0f} tokens",
        lengths=origin,
        settings=settings,
        chosen=replace(chosen, bottleneck=weakest),
        learner=model.learner_memory(chosen.where),
        sampler=model.learner_memory(chosen.where)
        if chosen.where.shared
        else model.sampler_memory(),
        fits=chosen.fits,
        max_minutes=config.run.max_minutes,
        num_steps=drawn.steps,
        points=[model.point(number, shard, free=True) for number in counts],
        price=price,
    )


def _fitting(
    gpu: Gpu,
    count: int,
    config: TrainConfig,
    shape: Any,
    prompt_tokens: float,
    pilot: PilotFacts | None,
) -> tuple[DevicesModel, bool, dict[str, Any]]:
    """Return the first variant that fits: as configured, sharded, or with lighter settings."""
    first: tuple[DevicesModel, bool, dict[str, Any]] | None = None
    made: dict[tuple[str, bool], Any] = {}
    for settings in lighter_settings(config):
        changed = changed_config(config, settings)
        can_shard = not any(unsupported_by_shards(changed))
        model = DevicesModel(gpu, changed, shape, prompt_tokens, pilot, made)
        for shard in (True,) if config.scale.shard else (False, True):
            if shard and not can_shard:
                continue
            added = settings | ({"scale.shard": True} if shard and not config.scale.shard else {})
            found = model, shard, added
            first = first or found
            if any(map(model.fits, placements(config, count, shard))):
                return found
    assert first is not None
    return first
