"""Estimated seconds of a run, from the model's operation count and the machine's measured rates.

Each prompt token costs one forward pass. Each trained token costs a forward and a backward pass. A
decoding step reads all weights once and runs one forward pass for each slot. Each phase reaches
only a fraction of the rate of a large matrix product; the fractions are constants of this module.
``assay plan`` does not use the module `arithmetic`, because it times the loaded model itself.
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
    evaluation_seconds,
    num_evaluations,
)

LONG_HOURS = 4.0
"""A run with a longer estimate gets a warning that names the configuration keys to lower."""
RATES_ALONE = "this machine's rate of matrix products alone; `assay plan` times the model"
SHARE_LEAN, SHARE_MODULES, SHARE_DECODING = 0.5, 0.35, 0.6
"""Shares of a CPU's rate of large matrix products: an update on the lean path, an update through
Hugging Face modules, and a decoding step."""
GPU_LEAN, GPU_MODULES, GPU_DECODING = 0.22, 0.15, 0.2
"""The same shares on a GPU. One H100 reached 0.21 and 0.25 in updates of a 0.5B model, and 0.2 in
decoding steps of 64 and 512 completions (docs/gpu.md). The share of modules was not measured."""
OPTIMIZER_BYTES = 48
"""Bytes that an optimizer step reads and writes for each trained weight, with clipping. AdamW alone
moves 28 in float32: it reads weight, gradient, two moments, and writes all but the gradient."""
DECODED_LAYER_SECONDS = 5e-5
"""Launch overhead of one layer in one decoding step, in seconds, on CPU and on GPU."""


@dataclass(frozen=True, slots=True)
class MachineRates:
    """Measured rates of a device.

    operations: operations per second of a large matrix product, in the dtype of the model. bytes:
    memory bandwidth in bytes per second. sure: whether the processor was otherwise idle during the
    measurement of these rates.
    """

    operations: float
    bytes: float
    sure: bool = True

    @classmethod
    def of(cls, dtype: torch.dtype, device: str) -> MachineRates:
        """Measure a device. The rates of a CPU are cached on disk, as `assay.model.rates`
        describes.
        """
        rates, sure = rates_here(device)
        return cls(rates[name_of(dtype)], memory_rate(device), sure)


def units_from_rates(
    config: TrainConfig, model: Any, rates: MachineRates, lean: bool = True
) -> UnitSeconds:
    """Estimate the unit times of a model (seconds per token and per decoding step).

    The model may be on the meta device, without weights.

    A forward pass takes 2 operations for each token and weight. A backward pass takes 4 operations
    for each token and weight; for a frozen weight, it takes 2. lean: whether the updates use the
    lean decoder.
    """
    # Operations of the attention are not counted: estimates are too low for thousands of tokens.
    maps, trained, size = 0, 0, 0
    embedding, outputs = model.get_input_embeddings().weight, model.get_output_embeddings()
    # A reward model has no output head.
    head = None if outputs is None else outputs.weight
    num_layers = model.config.get_text_config().num_hidden_layers
    for one in model.parameters():
        trained += one.numel() if one.requires_grad else 0
        size += one.numel() * one.element_size()
        # The input embedding is a lookup and no matrix product, so it costs no operations.
        # A tied input embedding is also the output head, whose matrix product counts.
        if one.ndim > 1 and (one is head or one is not embedding):
            maps += one.numel()
    forward = 2.0 * maps
    learned = forward + 2.0 * maps + 2.0 * min(trained, maps)
    learned += forward if config.model.activation_checkpointing else 0.0
    on_gpu = next(model.parameters()).device.type == "cuda"
    share = (GPU_LEAN if lean else GPU_MODULES) if on_gpu else SHARE_LEAN if lean else SHARE_MODULES
    slots, decoding = config.engine.slots, GPU_DECODING if on_gpu else SHARE_DECODING
    decode_slot = forward / (decoding * rates.operations)
    decode = size / rates.bytes + slots * decode_slot
    return UnitSeconds(
        begin=0.0,
        prompt_token=forward / (share * rates.operations),
        decode=decode + num_layers * DECODED_LAYER_SECONDS,
        update_fixed=trained * OPTIMIZER_BYTES / rates.bytes,
        update_token=learned / (share * rates.operations),
        teacher_token=forward / (share * rates.operations),
        decode_slot=decode_slot,
    )


@dataclass(frozen=True, slots=True)
class Expected:
    """Upper bound on the time that a run takes.

    step: estimated seconds of one training step. evaluations: estimated seconds of all evaluations
    together. keys: configuration keys whose reduction shortens the run. minutes:
    ``run.max_minutes``.
    """

    step: StepSeconds
    num_steps: int
    evaluations: float
    keys: str
    minutes: float | None = None

    @property
    def hours(self) -> float:
        """Hours from the start of the first step to the end of the last evaluation."""
        seconds = self.num_steps * self.step.total + self.step.once + self.evaluations
        return min(seconds / 3600, (self.minutes or float("inf")) / 60)

    @property
    def shown(self) -> str:
        """The time of the run as text, such as ``at most about 40 minutes``."""
        if self.hours < 0.1:
            return "a few minutes"
        minutes = 60 * self.hours
        found = f"{minutes:.0f} minutes" if minutes < 100 else f"{two_digits(self.hours)} hours"
        return f"at most about {found}"

    def __str__(self) -> str:
        parts = f"{self.num_steps} steps of {two_digits(self.step.total)} s"
        if self.evaluations:
            parts += f", evaluations {two_digits(self.evaluations / 3600)} hours"
        return f"{self.shown} ({parts})"

    @property
    def warning(self) -> str | None:
        """A warning if the run may take longer than `LONG_HOURS`; otherwise None."""
        if self.hours <= LONG_HOURS:
            return None
        return (
            f"the run may take {two_digits(self.hours)} hours, more than {LONG_HOURS:g}: lower"
            f" {self.keys}, take a smaller model, or end it in time with run.max_minutes"
        )


def two_digits(value: float) -> str:
    """Format a number with two significant digits and no exponent, such as 0.14 or 1,200."""
    return f"{float(f'{value:.2g}'):,.12g}"


def expect(
    config: TrainConfig,
    measured: UnitSeconds,
    prompt_tokens: float,
    num_heldout: int = 0,
    work: GivenWork | None = None,
    num_canaries: int = 0,
) -> Expected | None:
    """Estimate the time of a configured run; returns None if the rows of its stage were not
    counted.

    measured: unit times. prompt_tokens: mean length of a prompt. num_heldout, num_canaries: number
    of held-out problems and of canaries. work: size of the data set; used for stages that do not
    sample.
    """
    # Lengths and pass rates are not sampled here, so the estimate is an upper bound.
    # It assumes that every completion has maximum length, and every group carries gradient.
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
    asked = evaluation_seconds(config, measured, prompt_tokens, (num_heldout, num_canaries))
    times = num_evaluations(config, num_steps)
    if asked * times > num_steps * step.total:
        keys += ", evaluation.max_problems"
    return Expected(step, num_steps, asked * times, keys, config.run.max_minutes)
