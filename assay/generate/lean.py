"""A lean way through the common decoder family (Llama, Mistral, Qwen2, Qwen3): the same parameters, less Python.

For a model of a few million parameters most of a decoding step is the overhead of modules, hooks and
masks. Here are the tensor operations alone, read from the live modules. Any wrapper, hook or
unknown part (LoRA, quantization) makes it refuse, and the module's own forward is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from assay.generate.kv_cache import BLOCK, Extent, SlotCache
from assay.generate.products import LayerProducts, Products, fingerprint
from assay.generate.shared_prompt import SharedPromptCache
from assay.model.family import Decoder, Layer, NotLean, rotate


class LeanForward:
    """Decoding through the parameters of a Llama-like model, held by reference.

    packed: multiply with copies of the linear maps, packed when a generation begins (see
    `products`); they are what the weights were at the last `refresh`. shared: siblings attend to
    one copy of their prompt (see `shared_prompt`).
    """

    name = "lean"
    by_blocks = True

    def __init__(self, model: nn.Module, packed: bool = False, shared: bool = False) -> None:
        self.cache = SharedPromptCache() if shared else SlotCache()
        self._model: Any = model
        self._packed = packed
        self._cos_KD = self._sin_KD = torch.zeros(0, 0)
        self._decoder = Decoder.of(model)
        self._products: Products | None = None
        self._weights: tuple[int, tuple[object, ...]] | None = None  # what was packed

    def refresh(self, num_rows: int) -> None:
        """Read the parameters of the live model again, for steps of ``num_rows`` slots; raise
        NotLean where it no longer fits. Packed copies stay while the weights are those of then."""
        self._decoder = Decoder.of(self._model)
        weights = (num_rows, fingerprint(self._decoder)) if self._packed else None
        if self._products is not None and weights == self._weights is not None:
            return
        self._products = None  # before the new ones, so that never both are held
        self._products = Products.of(self._decoder, num_rows if self._packed else 0)
        self._weights = weights

    def end_call(self) -> None:
        """Give the cache's memory back."""
        self.cache.release()

    def release(self) -> None:
        """Give the memory of cache and packed maps back."""
        self.cache.release()
        self._products = None

    def prefill(self, tokens_L: Tensor) -> Tensor:
        """Take a prompt's keys and values down in the cache and return its last logits [V]."""
        length = len(tokens_L)
        self._grow_rotary(length)
        cos, sin = self._cos_KD[:length, None], self._sin_KD[:length, None]
        self.cache.begin_prompt()
        hidden_LD = F.embedding(tokens_L, self._decoder.embedding)
        for index, (layer, products) in enumerate(self._layers()):
            query, key, value = (
                t.transpose(0, 1)[None]
                for t in self._projections(layer, products, hidden_LD, cos, sin)
            )
            self.cache.keep(index, key, value)
            attended = F.scaled_dot_product_attention(
                query, key, value, is_causal=True, scale=self._decoder.scale, enable_gqa=True
            )
            attended_LD = attended[0].transpose(0, 1).reshape(length, -1)
            _finish(layer, products, hidden_LD, attended_LD)
        return self._logits(hidden_LD[-1:])[0]

    def decode(self, tokens_S: Tensor, positions_S: Tensor, extent: Extent) -> Tensor:
        """Feed one token a slot and return the logits [S, V] of the next."""
        self.reach(extent)
        self.cache.begin_step(positions_S, extent)
        cos = self._cos_KD.index_select(0, positions_S)[:, None]
        sin = self._sin_KD.index_select(0, positions_S)[:, None]
        hidden_SD = F.embedding(tokens_S, self._decoder.embedding)
        num_slots, width = len(tokens_S), self._decoder.width
        for index, (layer, products) in enumerate(self._layers()):
            query, key, value = self._projections(layer, products, hidden_SD, cos, sin)
            attended = self.cache.attend(
                index,
                query.reshape(num_slots * key.shape[1], -1, width),
                key.reshape(-1, width),
                value.reshape(-1, width),
                self._decoder.scale,
            )
            _finish(layer, products, hidden_SD, attended.view(num_slots, -1))
        return self._logits(hidden_SD)

    def reach(self, extent: Extent) -> None:
        """Tabulate what a step of this extent looks up."""
        self._grow_rotary(extent.total)

    def memory(self) -> tuple[int, ...]:
        """Return what is another tuple whenever a step works on other memory than before, within one
        generation: the tables' address, and the cache's layout."""
        return self._cos_KD.data_ptr(), self._sin_KD.data_ptr(), self.cache.layout

    def _layers(self) -> Iterator[tuple[Layer, LayerProducts]]:
        assert self._products is not None, "refresh() comes first"
        return zip(self._decoder.layers, self._products.layers, strict=True)

    def _logits(self, hidden: Tensor) -> Tensor:
        assert self._products is not None, "refresh() comes first"
        return self._products.head(_normalize(hidden, self._decoder.final_norm))

    def _projections(
        self, layer: Layer, products: LayerProducts, hidden: Tensor, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return query, key and value of each token as [tokens, heads, D], rotated."""
        rows, width = len(hidden), self._decoder.width
        fused = products.query_key_value(_normalize(hidden, layer.attention_norm))
        fused = fused.view(rows, -1, width)
        num_queries, num_keys = len(layer.query[0]) // width, len(layer.key[0]) // width
        value = fused[:, num_queries + num_keys :]
        if layer.query_norm and layer.key_norm:
            query = _normalize(fused[:, :num_queries], layer.query_norm)
            key = _normalize(fused[:, num_queries:-num_keys], layer.key_norm)
            return rotate(query, cos, sin), rotate(key, cos, sin), value
        rotated = rotate(fused[:, : num_queries + num_keys], cos, sin)
        return rotated[:, :num_queries], rotated[:, num_queries:], value

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


def _finish(layer: Layer, products: LayerProducts, hidden: Tensor, attended: Tensor) -> None:
    """Add the rest of a layer to ``hidden``, in place: the output map and the gated MLP."""
    hidden += products.output(attended)
    gate, up = products.gate_up(_normalize(hidden, layer.mlp_norm)).chunk(2, -1)
    hidden += products.down(F.silu(gate).mul_(up))


def kv_mib_of_a_block(model: Any) -> float:
    """Return what a block of one slot takes in the cache; 0 where the model has no lean way."""
    try:
        layers = Decoder.of(model).layers
    except NotLean:
        return 0.0
    maps = [weight for layer in layers for weight in (layer.key[0], layer.value[0])]
    return sum(len(weight) * weight.element_size() for weight in maps) * BLOCK / 2**20
