"""Seconds before anything is timed: a model's arithmetic over this machine's measured rates.

A prompt token takes one pass, a learned token a pass forward and back, a decoding step a read of
all weights and one pass for each slot. How much of the rate of a large product each of them
reaches is a constant here. `assay plan` times the loaded model instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from assay.config import TrainConfig
from assay.model.rates import memory_rate, name_of, rates_here
from assay.plan.step_seconds import (
    GivenWork,
    StepSeconds,
    UnitSeconds,
    estimate_sampled,
    estimate_work,
)

LONG_HOURS = 4.0
"""A run that takes longer is reported, with what makes it shorter."""
RATES_ALONE = "this machine's rate of matrix products alone; `assay plan` times the model"
SHARE_LEAN, SHARE_MODULES, SHARE_DECODING = 0.5, 0.35, 0.6
"""Of the rate of a large product, what an update reaches by the lean way and through modules, and
what a decoding step does."""
OPTIMIZER_BYTES = 48  # read and written by a step for each trained weight
DECODED_LAYER_SECONDS = 5e-5  # of a decoding step, in calls alone, on either kind of device


@dataclass(frozen=True, slots=True)
class MachineRates:
    """What a device does in a second: operations of products in one type, bytes read or written.

    sure: no other process had the processor while it was measured.
    """

    operations: float
    bytes: float
    sure: bool = True

    @classmethod
    def of(cls, dtype: torch.dtype, device: str) -> MachineRates:
        """Measure a device; the products' rates of a CPU are kept (`assay.model.rates`)."""
        rates, sure = rates_here(device)
        return cls(rates[name_of(dtype)], memory_rate(device), sure)


def units_from_rates(
    config: TrainConfig, model: Any, rates: MachineRates, lean: bool = True
) -> UnitSeconds:
    """Return estimated unit seconds of a model, which may be a skeleton.

    A forward pass of a token takes 2 operations a weight of its products; the backward pass takes
    4, and 2 where a weight is frozen. Attention is left out: with contexts of thousands of tokens
    estimates are too low. lean: which way an update goes.
    """
    maps, trained, size = 0, 0, 0
    embedding, outputs = model.get_input_embeddings().weight, model.get_output_embeddings()
    head = None if outputs is None else outputs.weight  # a reward model has none
    num_layers = model.config.get_text_config().num_hidden_layers
    for one in model.parameters():
        trained += one.numel() if one.requires_grad else 0
        size += one.numel() * one.element_size()
        if one.ndim > 1 and (one is head or one is not embedding):
            maps += one.numel()
    forward = 2.0 * maps
    learned = forward + 2.0 * maps + 2.0 * min(trained, maps)
    learned += forward if config.model.activation_checkpointing else 0.0
    share = SHARE_LEAN if lean else SHARE_MODULES
    slots = config.engine.slots
    decode = size / rates.bytes + slots * forward / (SHARE_DECODING * rates.operations)
    return UnitSeconds(
        begin=0.0,
        prompt_token=forward / (share * rates.operations),
        decode=decode + num_layers * DECODED_LAYER_SECONDS,
        update_fixed=trained * OPTIMIZER_BYTES / rates.bytes,
        update_token=learned / (share * rates.operations),
        teacher_token=forward / (share * rates.operations),
    )


@dataclass(frozen=True, slots=True)
class Expected:
    """What a run takes at most: every completion is as long as it may be, every group learned from.

    evaluations: seconds of all of them. minutes: after which the run is ended, by its
    configuration. keys: of the configuration, that make it shorter.
    """

    step: StepSeconds
    num_steps: int
    evaluations: float
    keys: str
    minutes: float | None = None

    @property
    def hours(self) -> float:
        """From the first step to the last evaluation."""
        seconds = self.num_steps * self.step.total + self.step.once + self.evaluations
        return min(seconds / 3600, (self.minutes or float("inf")) / 60)

    @property
    def shown(self) -> str:
        """The time as words."""
        if self.hours < 0.1:
            return "a few minutes"
        minutes = 60 * self.hours
        found = f"{minutes:.0f} minutes" if minutes < 100 else f"{self.hours:.2g} hours"
        return f"at most about {found}"

    def __str__(self) -> str:
        parts = f"{self.num_steps} steps of {self.step.total:.2g} s"
        parts += f", evaluations {self.evaluations / 3600:.2g} hours" if self.evaluations else ""
        return f"{self.shown} ({parts})"

    @property
    def warning(self) -> str | None:
        """One line where that is long."""
        if self.hours <= LONG_HOURS:
            return None
        return (
            f"the run may take {self.hours:.2g} hours, more than {LONG_HOURS:g}: lower {self.keys},"
            " take a smaller model, or end it in time with run.max_minutes"
        )


def expect(
    config: TrainConfig,
    measured: UnitSeconds,
    prompt_tokens: float,
    num_heldout: int = 0,
    work: GivenWork | None = None,
) -> Expected | None:
    """Return what a configured run takes; None for a stage whose rows nobody has counted.

    work: of a stage that learns from given rows. num_heldout: problems of an evaluation.
    """
    if config.drawing is not None:
        slots, stage = config.engine.slots, config.drawing
        step = estimate_sampled(config, measured, prompt_tokens, (), None, None, slots)
        num_steps = stage.steps
        keys = f"{config.stage}.steps, {config.stage}.group_size or sampling.max_tokens"
    elif work is not None:
        step, num_steps = estimate_work(work, measured), work.num_steps
        keys = f"{config.stage}.epochs"
    else:
        return None
    asked = _evaluation_seconds(config, measured, prompt_tokens, num_heldout)
    every = config.evaluation.every
    times = 2 + ((num_steps - 1) // every if every else 0)
    if asked * times > num_steps * step.total:
        keys += ", evaluation.max_problems"
    return Expected(step, num_steps, asked * times, keys, config.run.max_minutes)


def _evaluation_seconds(
    config: TrainConfig, measured: UnitSeconds, prompt_tokens: float, num_heldout: int
) -> float:
    """Return the seconds of one evaluation at all temperatures."""
    settings = config.evaluation
    count = min(num_heldout, settings.max_problems or num_heldout)
    waves = -(-count * settings.num_samples // config.engine.slots)
    decoding = waves * config.sampling.max_tokens * measured.decode
    return len(settings.temperatures) * (count * prompt_tokens * measured.prompt_token + decoding)
