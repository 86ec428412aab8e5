"""A lean way through the common decoder family (Llama, Mistral, Qwen2, Qwen3): the same parameters, less Python.

For a model of a few million parameters most of a decoding step is the overhead of modules, hooks and
masks. Here are the tensor operations alone, read from the live modules. Any wrapper, hook or
unknown part (LoRA, quantization) makes it refuse, and the module's own forward is used.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from assay.generate.kv_cache import SlotCache, attend
from assay.model.family import Decoder, Layer, rotate


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
        self._decoder = Decoder.of(self._model)

    def prefill(self, tokens_L: Tensor) -> Tensor:
        """Take a prompt's keys and values down in the cache and return its last logits [V]."""
        length = len(tokens_L)
        self._grow_rotary(length)
        cos, sin = self._cos_KD[:length, None], self._sin_KD[:length, None]
        self.cache.begin_prompt()
        hidden_LD = F.embedding(tokens_L, self._decoder.embedding)
        for index, layer in enumerate(self._decoder.layers):
            query, key, value = (
                t.transpose(0, 1)[None] for t in self._projections(layer, hidden_LD, cos, sin)
            )
            self.cache.update(key, value, index)
            attended = F.scaled_dot_product_attention(
                query, key, value, is_causal=True, scale=self._decoder.scale, enable_gqa=True
            )
            _finish(layer, hidden_LD, attended[0].transpose(0, 1).reshape(length, -1))
        return F.linear(_normalize(hidden_LD[-1:], self._decoder.final_norm), *self._decoder.head)[
            0
        ]

    def decode(self, tokens_S: Tensor, positions_S: Tensor, extent: int) -> Tensor:
        """Feed one token a slot and return the logits [S, V] of the next."""
        self._grow_rotary(extent)
        self.cache.begin_step(positions_S, extent)
        cos = self._cos_KD.index_select(0, positions_S)[:, None]
        sin = self._sin_KD.index_select(0, positions_S)[:, None]
        hidden_SD = F.embedding(tokens_S, self._decoder.embedding)
        num_slots, width = len(tokens_S), self._decoder.width
        for index, layer in enumerate(self._decoder.layers):
            query, key, value = self._projections(layer, hidden_SD, cos, sin)
            heads = key.shape[1]
            keys, values = self.cache.write(index, key.view(-1, width), value.view(-1, width))
            query = query.view(num_slots * heads, -1, width)
            attended = attend(query, keys, values, self.cache.bias(heads), self._decoder.scale)
            _finish(layer, hidden_SD, attended.view(num_slots, -1))
        return F.linear(_normalize(hidden_SD, self._decoder.final_norm), *self._decoder.head)

    def _projections(
        self, layer: Layer, hidden: Tensor, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return query, key and value of each token as [tokens, heads, D], rotated."""
        normed = _normalize(hidden, layer.attention_norm)
        rows, width = len(hidden), self._decoder.width
        query = F.linear(normed, *layer.query).view(rows, -1, width)
        key = F.linear(normed, *layer.key).view(rows, -1, width)
        value = F.linear(normed, *layer.value).view(rows, -1, width)
        if layer.query_norm and layer.key_norm:
            query = _normalize(query, layer.query_norm)
            key = _normalize(key, layer.key_norm)
        return rotate(query, cos, sin), rotate(key, cos, sin), value

    def _grow_rotary(self, extent: int) -> None:
        """Tabulate the module's own rotary embedding for at least ``extent`` positions."""
        if extent <= len(self._cos_KD):
            return
        size = max(2 * len(self._cos_KD), -(-extent // 256) * 256)
        self._cos_KD, self._sin_KD = self._decoder.rotations(size)


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
