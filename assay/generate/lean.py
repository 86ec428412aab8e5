"""A lean way through the common decoder family (Llama, Mistral, Qwen2, Qwen3): the same parameters, less Python.

For a model of a few million parameters most of a decoding step is the overhead of modules, hooks and
masks. Here are the tensor operations alone, read from the live modules. Any wrapper, hook or
unknown part (LoRA, quantization) makes it refuse, and the module's own forward is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from assay.generate.kv_cache import SlotCache, attend

FAMILIES = {"llama", "mistral", "qwen2", "qwen3"}
STATIC_ROPES = {"default", "linear", "llama3", "yarn"}  # the others change with the length


class NotLean(Exception):
    """The model is not of the family, or something stands between it and its parameters."""


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """One decoder layer's live parameters; a linear map is (weight, bias or None)."""

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


class LeanForward:
    """Decoding through the parameters of a Llama-like model, held by reference."""

    name = "lean"
    by_blocks = True

    def __init__(self, model: nn.Module) -> None:
        self.cache = SlotCache()
        self._model: Any = model
        self._cos_KD = self._sin_KD = torch.zeros(0, 0)
        self.refresh()

    def refresh(self) -> None:
        """Read the parameters of the live model again; raise NotLean where it no longer fits."""
        config: Any = getattr(self._model, "config", None)
        if getattr(config, "model_type", None) not in FAMILIES or config.hidden_act != "silu":
            raise NotLean("not of the Llama family")
        if getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True):
            raise NotLean("attends to a sliding window")
        if config.rope_parameters.get("rope_type") not in STATIC_ROPES:
            raise NotLean("its rotary embedding changes with the length")
        for name, module in self._model.named_modules():
            if any(getattr(module, hooks) for hooks in _HOOKS) or "forward" in vars(module):
                raise NotLean(f"{name} has hooks")
        try:
            body = self._model.model
            self._embedding = _weight(body.embed_tokens, nn.Embedding)
            self._layers = tuple(_read(layer) for layer in body.layers)
            self._final_norm = _norm(body.norm)
            self._head = _linear(self._model.lm_head)
            self._rotary = body.rotary_emb
        except AttributeError as error:
            raise NotLean(str(error)) from error
        attention = body.layers[0].self_attn
        self._width = attention.head_dim
        self._scale = attention.scaling

    def prefill(self, tokens_L: Tensor) -> Tensor:
        """Take a prompt's keys and values down in the cache and return its last logits [V]."""
        length = len(tokens_L)
        self._grow_rotary(length)
        cos, sin = self._cos_KD[:length, None], self._sin_KD[:length, None]
        self.cache.begin_prompt()
        hidden_LD = F.embedding(tokens_L, self._embedding)
        for index, layer in enumerate(self._layers):
            query, key, value = (
                t.transpose(0, 1)[None] for t in self._projections(layer, hidden_LD, cos, sin)
            )
            self.cache.update(key, value, index)
            attended = F.scaled_dot_product_attention(
                query, key, value, is_causal=True, scale=self._scale, enable_gqa=True
            )
            _finish(layer, hidden_LD, attended[0].transpose(0, 1).reshape(length, -1))
        return F.linear(_normalize(hidden_LD[-1:], self._final_norm), *self._head)[0]

    def decode(self, tokens_S: Tensor, positions_S: Tensor, extent: int) -> Tensor:
        """Feed one token a slot and return the logits [S, V] of the next."""
        self._grow_rotary(extent)
        self.cache.begin_step(positions_S, extent)
        cos = self._cos_KD.index_select(0, positions_S)[:, None]
        sin = self._sin_KD.index_select(0, positions_S)[:, None]
        hidden_SD = F.embedding(tokens_S, self._embedding)
        num_slots, width = len(tokens_S), self._width
        for index, layer in enumerate(self._layers):
            query, key, value = self._projections(layer, hidden_SD, cos, sin)
            heads = key.shape[1]
            keys, values = self.cache.write(index, key.view(-1, width), value.view(-1, width))
            query = query.view(num_slots * heads, -1, width)
            attended = attend(query, keys, values, self.cache.bias(heads), self._scale)
            _finish(layer, hidden_SD, attended.view(num_slots, -1))
        return F.linear(_normalize(hidden_SD, self._final_norm), *self._head)

    def _projections(
        self, layer: Layer, hidden: Tensor, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return query, key and value of each token as [tokens, heads, D], rotated."""
        normed = _normalize(hidden, layer.attention_norm)
        rows, width = len(hidden), self._width
        query = F.linear(normed, *layer.query).view(rows, -1, width)
        key = F.linear(normed, *layer.key).view(rows, -1, width)
        value = F.linear(normed, *layer.value).view(rows, -1, width)
        if layer.query_norm and layer.key_norm:
            query = _normalize(query, layer.query_norm)
            key = _normalize(key, layer.key_norm)
        return _rotate(query, cos, sin), _rotate(key, cos, sin), value

    def _grow_rotary(self, extent: int) -> None:
        """Tabulate the module's own rotary embedding for at least ``extent`` positions."""
        if extent <= len(self._cos_KD):
            return
        size = max(2 * len(self._cos_KD), -(-extent // 256) * 256)
        positions = torch.arange(size, device=self._embedding.device)[None]
        cos, sin = self._rotary(self._embedding[:1, None], positions)
        first, second = sin[0].chunk(2, -1)
        self._cos_KD, self._sin_KD = cos[0], torch.cat((-first, second), -1)


_HOOKS = ("_forward_hooks", "_forward_pre_hooks")


def _rotate(heads: Tensor, cos: Tensor, signed_sin: Tensor) -> Tensor:
    """Rotary embedding (Su et al. 2021, eq. 34), halves as Llama pairs them."""
    first, second = heads.chunk(2, -1)
    return (heads * cos).add_(torch.cat((second, first), -1).mul_(signed_sin))


def _normalize(hidden: Tensor, norm: tuple[Tensor, float]) -> Tensor:
    """Root-mean-square norm, rounded where the modules round: in bfloat16 the learner's bits matter."""
    weight, epsilon = norm
    normed = F.rms_norm(hidden.float(), (weight.shape[0],), None, epsilon)
    return normed.to(hidden.dtype).mul_(weight)


def _finish(layer: Layer, hidden: Tensor, attended: Tensor) -> None:
    """Add the rest of a layer to ``hidden``, in place: the output map and the gated MLP."""
    hidden += F.linear(attended, *layer.output)
    normed = _normalize(hidden, layer.mlp_norm)
    gated = F.silu(F.linear(normed, *layer.gate)).mul_(F.linear(normed, *layer.up))
    hidden += F.linear(gated, *layer.down)


def _read(layer: Any) -> Layer:
    attention, mlp = layer.self_attn, layer.mlp
    normed = hasattr(attention, "q_norm")
    return Layer(
        attention_norm=_norm(layer.input_layernorm),
        query=_linear(attention.q_proj),
        key=_linear(attention.k_proj),
        value=_linear(attention.v_proj),
        query_norm=_norm(attention.q_norm) if normed else None,
        key_norm=_norm(attention.k_norm) if normed else None,
        output=_linear(attention.o_proj),
        mlp_norm=_norm(layer.post_attention_layernorm),
        gate=_linear(mlp.gate_proj),
        up=_linear(mlp.up_proj),
        down=_linear(mlp.down_proj),
    )


def _weight(module: Any, kind: type) -> Tensor:
    if type(module) is not kind or getattr(module, "parametrizations", None):
        raise NotLean(f"{type(module).__name__} stands where a plain {kind.__name__} is expected")
    weight: Tensor = module.get_parameter("weight")
    return weight


def _linear(module: Any) -> tuple[Tensor, Tensor | None]:
    return _weight(module, nn.Linear), module.bias


def _norm(module: Any) -> tuple[Tensor, float]:
    if not type(module).__name__.endswith("RMSNorm"):
        raise NotLean(f"{type(module).__name__} stands where an RMS norm is expected")
    return module.weight, module.variance_epsilon
