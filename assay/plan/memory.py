"""Estimate the memory of a run before it starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from assay.config import TrainConfig
from assay.model.family import Decoder, NotLean
from assay.model.head import LOGITS_AT_ONCE
from assay.model.layouts import micro_batch_tokens

MIB = 2**20
FLOAT32, HALF = 4, 2
GENERATION = ("kv_cache",)
UPDATE = ("gradients", "activations", "logits")


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Estimated memory by part, in MiB, and the setting that each part answers to.

    Some parts are held in one phase of a step only: in `GENERATION` or in `UPDATE`.
    """

    parts: Mapping[str, float]
    settings: Mapping[str, str]

    @property
    def total_mib(self) -> float:
        """The sum of what is held throughout, and of the larger phase."""
        generation, update = (
            sum(self.parts.get(name, 0.0) for name in phase) for phase in (GENERATION, UPDATE)
        )
        return sum(self.parts.values()) - min(generation, update)

    def __str__(self) -> str:
        rows = [
            f"  {name:<12}{mib:>9.0f} MiB   {self.settings.get(name, '')}".rstrip()
            for name, mib in self.parts.items()
        ]
        total = f"  {'total':<12}{self.total_mib:>9.0f} MiB   (within a factor of two)"
        return "\n".join([*rows, total])


def plan_memory(
    config: TrainConfig, model: Any, prompt_tokens: int, has_reference: bool
) -> MemoryPlan:
    """Estimate the memory of ``config`` on a loaded model.

    Weights, float32 gradients, what float32 master weights need beside narrower weights (the lower
    half of bfloat16's, the whole for others and for the 8-bit optimizer), two moments of the
    optimizer, the frozen reference, the key/value cache of all slots, the activations of one
    micro-batch (`_kept_widths`), and of its logits those that are held at one time, with the head's
    gradient. ``prompt_tokens``: of a typical prompt. It is rough: count on a factor of two.
    """
    shape = model.config.get_text_config()
    width, layers = shape.hidden_size, shape.num_hidden_layers
    heads = shape.num_attention_heads
    head_width = getattr(shape, "head_dim", None) or width // heads
    kv_width = (getattr(shape, "num_key_value_heads", None) or heads) * head_width
    weight_size = next(model.parameters()).element_size()
    trained = [p for p in model.parameters() if p.requires_grad]
    num_trained = sum(p.numel() for p in trained)
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    parts = {
        "weights": weights,
        "gradients": num_trained * FLOAT32,
        "master": _master_bytes(config, trained),
        "optimizer": num_trained * 2 * _moment_size(config),
        "reference": weights if has_reference and config.model.lora is None else 0,
    }
    settings = {"reference": "algorithm.kl_weight = 0 needs none; model.lora needs no copy"}
    settings["optimizer"] = (
        'optimizer.state_dtype = "bfloat16", or name = "adamw_8bit"; model.lora trains far fewer'
        " weights"
    )
    stage = config.rl or config.sft
    if config.rl is not None:
        extent = prompt_tokens + config.sampling.max_tokens
        slots = min(config.engine.num_slots, config.rl.num_prompts * config.rl.group_size)
        parts["kv_cache"] = slots * extent * layers * 2 * kv_width * weight_size
        settings["kv_cache"] = "engine.max_kv_mib, engine.num_slots"
        batch_tokens = config.rl.num_prompts * (
            prompt_tokens + config.rl.group_size * config.sampling.max_tokens
        )
    else:
        batch_tokens = config.sft.tokens_per_step if config.sft else 0
    device = next(model.parameters()).device.type
    most = micro_batch_tokens(stage.max_tokens_per_micro_batch, device) if stage else 0
    tokens = min(batch_tokens, most)
    widths = (
        1.0 if config.model.activation_checkpointing else _kept_widths(model, heads * head_width)
    )
    last = 1  # what the last layer gave
    parts["activations"] = tokens * (layers * widths + last) * width * weight_size
    vocabulary = shape.vocab_size
    at_once = min(tokens, max(1, LOGITS_AT_ONCE // vocabulary))
    parts["logits"] = (at_once + width) * vocabulary * weight_size if tokens else 0
    section = "rl" if config.rl is not None else "sft"
    settings["activations"] = (
        f"{section}.max_tokens_per_micro_batch, model.activation_checkpointing"
    )
    return MemoryPlan({name: size / MIB for name, size in parts.items() if size}, settings)


def _kept_widths(model: Any, query_width: int) -> float:
    """Return how many numbers a layer keeps of a token for the backward pass, in widths of the model.

    The lean way keeps the layer's input, heads, what attention gave, the residual after it, gate and
    up (`assay.model.lean_decoder`). Modules keep 34 bytes a width at 16 bits, so 17 widths
    (Korthikanti et al. 2022, eq. 2, without the attention matrix, which is not stored).
    """
    try:
        layer = Decoder.of(model).layers[0]
    except NotLean:
        return 17.0
    width = layer.output[0].shape[0]
    heads = query_width + layer.key[0].shape[0] + layer.value[0].shape[0]
    if layer.query_norm:  # before the norms too
        heads *= 2
    return (2 * width + heads + query_width + 2 * layer.gate[0].shape[0]) / width


def _master_bytes(config: TrainConfig, trained: Sequence[Any]) -> int:
    """Return what is kept beside trained weights that are not float32."""
    has_halves = config.optimizer.name == "adamw"
    return sum(
        parameter.numel() * (HALF if has_halves and "bfloat16" in str(parameter.dtype) else FLOAT32)
        for parameter in trained
        if parameter.element_size() < FLOAT32
    )


def _moment_size(config: TrainConfig) -> int:
    """Return the bytes of one moment of one weight."""
    if config.optimizer.name == "adamw_8bit":
        return 1
    return HALF if config.optimizer.state_dtype == "bfloat16" else FLOAT32
