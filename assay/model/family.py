"""Read the parameters of the common decoder family (Llama, Mistral, Qwen2, Qwen3) from a loaded
model.

The lean decoders of the generator and of the learner use these parameters directly, and skip the
modules' forward methods. Plain low-rank adapters (peft's LoRA) are read together with their layers.
Any other wrapper, hook or layer class (quantization, DoRA) raises NotLean; the caller then uses the
modules' forward methods.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

FAMILIES = {"llama", "mistral", "qwen2", "qwen3"}
# Types of rotary embedding whose frequencies do not depend on the sequence length.
# For all other rotary types, the frequencies depend on the length of the sequence.
STATIC_ROPES = {"default", "linear", "llama3", "yarn"}


class NotLean(Exception):
    """Raised if a model is outside the decoder family, or if a wrapper or hook changes its
    computation."""


@dataclass(frozen=True, slots=True, eq=False)
class Adapter:
    """A low-rank adapter, which adds scale * up down x to a linear map of x (Hu et al., 2021,
    equation 3).

    down: [r, inputs]; up: [outputs, r]. Both matrices of the adapter are live parameters, whose
    type may differ from that of the linear map.
    """

    down: Tensor
    up: Tensor
    scale: float

    def merged(self, weight: Tensor) -> Tensor:
        """Return the weight with the adapter merged into it, summed in float32 and rounded to the
        weight's type."""
        wide = torch.promote_types(weight.dtype, self.up.dtype)
        up, down = self.up.detach().to(wide), self.down.detach().to(wide)
        whole = torch.addmm(weight.detach().to(wide), up, down, alpha=self.scale)
        return whole.to(weight.dtype)

    def add(self, total: Tensor, given: Tensor) -> None:
        """Add the adapter's output for the input rows ``given`` to ``total``, the output of the
        linear map, in place."""
        inner = given @ self.down.to(given.dtype).T
        total.addmm_(inner, self.up.to(given.dtype).T, alpha=self.scale)


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """Live parameters of one decoder layer; each linear map is (weight, bias or None).

    adapters: low-rank adapters of the linear maps, by field name of the linear map.
    """

    attention_norm: tuple[Tensor, float]
    query: tuple[Tensor, Tensor | None]
    key: tuple[Tensor, Tensor | None]
    value: tuple[Tensor, Tensor | None]
    query_norm: tuple[Tensor, float] | None
    key_norm: tuple[Tensor, float] | None
    output: tuple[Tensor, Tensor | None]
    mlp_norm: tuple[Tensor, float]
    gate: tuple[Tensor, Tensor | None]
    up: tuple[Tensor, Tensor | None]
    down: tuple[Tensor, Tensor | None]
    adapters: Mapping[str, Adapter] = field(default_factory=dict[str, Adapter])

    @property
    def maps(self) -> tuple[tuple[Tensor, Tensor | None], ...]:
        """Names of the linear maps, in the order of the forward pass."""
        return self.query, self.key, self.value, self.output, self.gate, self.up, self.down


@dataclass(frozen=True, slots=True, eq=False)
class Decoder:
    """Live parameters of a whole decoder model.

    padding_token: id of the token whose embedding gets no gradient. head: the output head, or the
    score layer of a classifier. width: size of one attention head. scale: factor by which attention
    scores are multiplied.
    """

    embedding: Tensor
    padding_token: int | None
    layers: tuple[Layer, ...]
    final_norm: tuple[Tensor, float]
    head: tuple[Tensor, Tensor | None]
    rotary: Any
    width: int
    scale: float

    @classmethod
    def of(cls, model: Any) -> Decoder:
        """Read the parameters of a loaded model. Raises NotLean if the lean decoder does not
        support the model.
        """
        model = unwrap(model)
        config: Any = getattr(model, "config", None)
        if getattr(config, "model_type", None) not in FAMILIES or config.hidden_act != "silu":
            raise NotLean("not of the Llama family")
        if hidden := hidden_tokens(config):
            raise NotLean(hidden)
        if config.rope_parameters.get("rope_type") not in STATIC_ROPES:
            raise NotLean("its rotary embedding depends on the sequence length")
        # The lean decoder calls no module, so it would ignore hooks and replaced forward methods.
        for name, module in model.named_modules():
            if any(getattr(module, hooks) for hooks in _HOOKS) or "forward" in vars(module):
                raise NotLean(f"{name} has hooks")
        try:
            body = model.model
            attention = body.layers[0].self_attn
            return cls(
                embedding=_weight(body.embed_tokens, nn.Embedding),
                padding_token=body.embed_tokens.padding_idx,
                layers=tuple(_read(layer) for layer in body.layers),
                final_norm=_norm(body.norm),
                head=_linear(model.lm_head if hasattr(model, "lm_head") else model.score),
                rotary=body.rotary_emb,
                width=attention.head_dim,
                scale=attention.scaling,
            )
        except AttributeError as error:
            raise NotLean(str(error)) from error

    def rotations(self, length: int) -> tuple[Tensor, Tensor]:
        """Return (cos, signed sin) for the positions 0 to ``length`` - 1, computed by the model's
        rotary module.

        Both are [length, width]. The first half of the sine is negated, as the function `rotate`
        requires.
        """
        positions = torch.arange(length, device=self.embedding.device)[None]
        cos, sin = self.rotary(self.embedding[:1, None], positions)
        first, second = sin[0].chunk(2, -1)
        return cos[0], torch.cat((-first, second), -1)


_HOOKS = ("_forward_hooks", "_forward_pre_hooks")


def unwrap(model: nn.Module) -> Any:
    """Return the causal model inside a peft wrapper; the layers still contain the adapters."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model  # pyright: ignore


def is_lean(model: nn.Module) -> bool:
    """Return whether the lean decoder can compute a model. The start-up probe compares the results
    of the lean decoder with those of the model."""
    try:
        Decoder.of(model)
    except NotLean:
        return False
    return True


def hidden_tokens(config: Any) -> str | None:
    """Return the reason why tokens do not attend to all earlier tokens; None if they do."""
    kinds = {*(getattr(config, "layer_types", None) or ())} - {"full_attention"}
    if kinds:
        return f"the model has layers of {', '.join(sorted(kinds))}"
    window = getattr(config, "sliding_window", None)
    if window and getattr(config, "use_sliding_window", True):
        return f"the model attends through a window of {window} tokens"
    return None


def rotate(heads: Tensor, cos: Tensor, signed_sin: Tensor) -> Tensor:
    """Apply rotary embedding (Su et al., 2021, equation 34); as in Llama, dimensions are paired
    half a head apart.
    """
    first, second = heads.chunk(2, -1)
    return (heads * cos).add_(torch.cat((second, first), -1).mul_(signed_sin))


def _read(layer: Any) -> Layer:
    attention, mlp = layer.self_attn, layer.mlp
    normed = hasattr(attention, "q_norm")
    maps = {
        "query": attention.q_proj,
        "key": attention.k_proj,
        "value": attention.v_proj,
        "output": attention.o_proj,
        "gate": mlp.gate_proj,
        "up": mlp.up_proj,
        "down": mlp.down_proj,
    }
    adapters = {name: _adapter(module) for name, module in maps.items()}
    return Layer(
        attention_norm=_norm(layer.input_layernorm),
        query_norm=_norm(attention.q_norm) if normed else None,
        key_norm=_norm(attention.k_norm) if normed else None,
        mlp_norm=_norm(layer.post_attention_layernorm),
        adapters={name: one for name, one in adapters.items() if one is not None},
        **{name: _linear(getattr(one, "base_layer", one)) for name, one in maps.items()},
    )


def _adapter(module: Any) -> Adapter | None:
    """Return the active low-rank adapter of a linear map, or None. Raises NotLean if a linear map
    has any other wrapper."""
    if not hasattr(module, "base_layer"):
        return None
    if type(module).__module__.partition(".")[0] != "peft" or not hasattr(module, "lora_A"):
        raise NotLean(f"{type(module).__name__} wraps a linear layer")
    if module.merged:
        raise NotLean("adapters are merged into the weights")
    if module.disable_adapters:
        return None
    try:
        (name,) = [one for one in module.active_adapters if one in module.lora_A]
        down, up = module.lora_A[name], module.lora_B[name]
        plain = type(module.lora_dropout[name]) is nn.Identity and not module.lora_variant
        plain = plain and name not in module.lora_magnitude_vector
    except (ValueError, KeyError, AttributeError) as error:
        raise NotLean(f"not one plain low-rank adapter: {error}") from error
    if not plain or up.bias is not None or down.bias is not None:
        raise NotLean("an adapter with more than two matrices")
    return Adapter(_weight(down, nn.Linear), _weight(up, nn.Linear), float(module.scaling[name]))


def _weight(module: Any, kind: type) -> Tensor:
    # A subclass, such as a quantized layer, may compute something else with the same weight.
    if type(module) is not kind or getattr(module, "parametrizations", None):
        raise NotLean(f"{type(module).__name__} instead of a plain {kind.__name__}")
    weight: Tensor = module.get_parameter("weight")
    return weight


def _linear(module: Any) -> tuple[Tensor, Tensor | None]:
    return _weight(module, nn.Linear), module.bias


def _norm(module: Any) -> tuple[Tensor, float]:
    if not type(module).__name__.endswith("RMSNorm"):
        raise NotLean(f"{type(module).__name__} instead of an RMS norm")
    return module.weight, module.variance_epsilon
