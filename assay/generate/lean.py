"""The lean decoder for Llama, Mistral, Qwen2 and Qwen3: live parameters without Python modules.

For a model with a few million parameters, modules, hooks and masks dominate the time of a decoding
step. The lean decoder runs only the tensor operations, with the live modules' parameters and
low-rank adapters. A hook, an unknown wrapper or an unknown module (quantization) raises NotLean;
the module's own forward is then used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from assay.generate.kv_cache import BLOCK, Extent, SlotCache
from assay.generate.products import LayerProducts, Products, fingerprint
from assay.generate.prompt_reading import read_bounds
from assay.generate.shared_prompt import SharedPromptCache
from assay.model.family import Decoder, Layer, NotLean, rotate

Norm: TypeAlias = tuple[Tensor, float]
Attend: TypeAlias = Callable[[int, Layer, Tensor], Tensor]
"""Function of (layer index, layer, fused queries, keys and values) that returns the attention
output."""


class LeanForward:
    """Decoding with the live parameters of a Llama-like model, which are not copied.

    packed: whether the decoder multiplies with packed copies of the linear maps (see `products`),
    made at the last `refresh`. shared: whether siblings attend to one copy of their prompt (see
    `shared_prompt`).
    """

    name = "lean"
    by_blocks = True

    @property
    def reads_in_blocks(self) -> bool:
        """Whether the decoder reads prompts in blocks."""
        # On a GPU, reading one block would take as long as reading a whole prompt.
        return self._decoder.embedding.device.type == "cpu"

    def __init__(self, model: nn.Module, packed: bool = False, shared: bool = False) -> None:
        self.cache = SharedPromptCache() if shared else SlotCache()
        self._model: Any = model
        self._packed = packed
        self._cos_KD = self._sin_KD = torch.zeros(0, 0)
        self._decoder = Decoder.of(model)
        self._products: Products | None = None
        # Row count for which the weights were packed, and fingerprint of the packed weights.
        self._weights: tuple[int, tuple[object, ...]] | None = None

    def refresh(self, num_rows: int) -> None:
        """Read the live model's parameters again, for steps of ``num_rows`` slots.

        Packed copies are reused while the weights are unchanged. Raises NotLean if the model is no
        longer supported.
        """
        self._decoder = Decoder.of(self._model)
        weights = (num_rows, fingerprint(self._decoder)) if self._packed else None
        if self._products is not None and weights == self._weights is not None:
            return
        # The old packed copies are freed before the new copies are made, to limit peak memory.
        self._products = None
        self._products = self._new_products(num_rows)
        self._weights = weights

    def _new_products(self, num_rows: int) -> Products:
        return Products.of(self._decoder, num_rows if self._packed else 0)

    def end_call(self) -> None:
        self.cache.release()

    def release(self) -> None:
        self.cache.release()
        self._products = None

    def prefill(self, tokens_L: Tensor, known: int = 0) -> Tensor:
        length = len(tokens_L)
        self._grow_rotary(length)
        self.cache.begin_prompt(known)
        bounds = read_bounds(length, known) if self.reads_in_blocks else [(0, length)]
        parts = [self._embedded(tokens_L[first:end]) for first, end in bounds]
        added: list[Tensor | None] = [None] * len(parts)
        # A layer processes all blocks of a prompt before the next layer, so that its weights enter
        # the CPU's cache once.
        for index, (layer, products) in enumerate(self._layers()):
            attend = self._prompt_attention(index, length)
            normed = [
                self._add_norm(*one, layer.attention_norm) for one in zip(parts, added, strict=True)
            ]
            fused = [products.query_key_value(one) for one in normed]
            attended = [attend(index, layer, one) for one in fused]
            added = [products.output(one) for one in attended]
            normed = [
                self._add_norm(*one, layer.mlp_norm) for one in zip(parts, added, strict=True)
            ]
            gated = [self._gated(products.gate_up(one)) for one in normed]
            added = [products.down(one) for one in gated]
        assert added[-1] is not None, "a model without layers"
        return self._logits(parts[-1][-1:], added[-1][-1:])[0]

    def decode(self, tokens_S: Tensor, positions_S: Tensor, extent: Extent) -> Tensor:
        self.reach(extent)
        self.cache.begin_step(positions_S, extent)
        return self._logits(*self._through_layers(tokens_S, self._step_attention(positions_S)))

    def reach(self, extent: Extent) -> None:
        """Extend the rotary tables to a step's extent."""
        self._grow_rotary(extent.total)

    def memory(self) -> tuple[int, ...]:
        """Return a key that changes, within one generation, whenever steps use other memory."""
        return self._cos_KD.data_ptr(), self._sin_KD.data_ptr(), self.cache.layout

    def _layers(self) -> Iterator[tuple[Layer, LayerProducts]]:
        assert self._products is not None, "refresh() comes first"
        return zip(self._decoder.layers, self._products.layers, strict=True)

    def _through_layers(self, tokens: Tensor, attend: Attend) -> tuple[Tensor, Tensor]:
        """Return the residual stream before the last layer's MLP, and the MLP's output."""
        hidden, added = self._embedded(tokens), None
        for index, (layer, products) in enumerate(self._layers()):
            normed = self._add_norm(hidden, added, layer.attention_norm)
            attended = attend(index, layer, products.query_key_value(normed))
            normed = self._add_norm(hidden, products.output(attended), layer.mlp_norm)
            added = products.down(self._gated(products.gate_up(normed)))
        assert added is not None, "a model without layers"
        return hidden, added

    def _embedded(self, tokens: Tensor) -> Tensor:
        return F.embedding(tokens, self._decoder.embedding)

    def _logits(self, hidden: Tensor, added: Tensor) -> Tensor:
        assert self._products is not None, "refresh() comes first"
        return self._products.head(self._add_norm(hidden, added, self._decoder.final_norm))

    def _add_norm(self, hidden: Tensor, added: Tensor | None, norm: Norm) -> Tensor:
        """Add ``added`` to ``hidden`` in place and return the norm of the sum."""
        if added is not None:
            hidden += added
        return _normalize(hidden, norm)

    def _gated(self, gate_up: Tensor) -> Tensor:
        """Return silu(gate) * up.

        Each row of ``gate_up`` holds the gate projection, followed by the up projection.
        """
        gate, up = gate_up.chunk(2, -1)
        return F.silu(gate).mul_(up)

    def _prompt_attention(self, index: int, length: int) -> Attend:
        """Return a layer's attention function for the blocks of a prompt.

        Blocks must come in order. Each block attends to itself and to all earlier blocks.
        """
        cache = self.cache
        earlier = cache.known(index)

        def attend(index: int, layer: Layer, fused: Tensor) -> Tensor:
            nonlocal earlier
            first = 0 if earlier is None else earlier[0].shape[2]
            end = first + len(fused)
            cos, sin = self._cos_KD[first:end, None], self._sin_KD[first:end, None]
            heads = self._rotated(layer, fused, cos, sin)
            query, keys, values = (t.transpose(0, 1)[None] for t in heads)
            seen = None
            if earlier is not None:
                keys = torch.cat((earlier[0], keys), 2)
                values = torch.cat((earlier[1], values), 2)
                seen = torch.ones(len(fused), end, dtype=torch.bool, device=fused.device)
                seen.tril_(first)
            earlier = keys, values
            if end == length:
                cache.keep(index, keys, values)
            attended = F.scaled_dot_product_attention(
                query,
                keys,
                values,
                seen,
                is_causal=seen is None,
                scale=self._decoder.scale,
                enable_gqa=True,
            )
            return attended[0].transpose(0, 1).reshape(len(fused), -1)

        return attend

    def _step_attention(self, positions_S: Tensor) -> Attend:
        """Return a step's attention function: one token per slot attends to the slot's tokens."""
        cos = self._cos_KD.index_select(0, positions_S)[:, None]
        sin = self._sin_KD.index_select(0, positions_S)[:, None]
        num_slots, width, scale = len(positions_S), self._decoder.width, self._decoder.scale
        cache = self.cache

        def attend(index: int, layer: Layer, fused: Tensor) -> Tensor:
            query, key, value = self._rotated(layer, fused, cos, sin)
            query = query.reshape(num_slots * key.shape[1], -1, width)
            key, value = key.reshape(-1, width), value.reshape(-1, width)
            return cache.attend(index, query, key, value, scale).view(num_slots, -1)

        return attend

    def _rotated(
        self, layer: Layer, fused: Tensor, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return rotated query and key, and value, as [tokens, heads, D]."""
        width = self._decoder.width
        fused = fused.view(len(fused), -1, width)
        num_queries, num_keys = len(layer.query[0]) // width, len(layer.key[0]) // width
        value = fused[:, num_queries + num_keys :]
        if layer.query_norm and layer.key_norm:
            query = _normalize(fused[:, :num_queries], layer.query_norm)
            key = _normalize(fused[:, num_queries:-num_keys], layer.key_norm)
            return rotate(query, cos, sin), rotate(key, cos, sin), value
        rotated = rotate(fused[:, : num_queries + num_keys], cos, sin)
        return rotated[:, :num_queries], rotated[:, num_queries:], value

    def _grow_rotary(self, extent: int) -> None:
        """Extend the tables of the module's rotary embedding to at least ``extent`` positions."""
        if extent <= len(self._cos_KD):
            return
        # The size of the rotary tables doubles, because each move of the tables invalidates all
        # captured graphs.
        size = max(2 * len(self._cos_KD), -(-extent // 256) * 256)
        self._cos_KD, self._sin_KD = self._decoder.rotations(size)


def _normalize(hidden: Tensor, norm: Norm) -> Tensor:
    """Apply a root-mean-square norm to rows [n, D]."""
    # The norm is rounded where the modules round, so that bfloat16 results equal the learner's.
    weight, epsilon = norm
    normed = F.rms_norm(hidden.float(), (weight.shape[0],), None, epsilon)
    return normed.to(hidden.dtype).mul_(weight)


def kv_mib_of_a_block(model: Any) -> float:
    """Return the MiB of one slot's block in the cache; 0 for a model that is not supported."""
    try:
        layers = Decoder.of(model).layers
    except NotLean:
        return 0.0
    maps = [weight for layer in layers for weight in (layer.key[0], layer.value[0])]
    return sum(len(weight) * weight.element_size() for weight in maps) * BLOCK / 2**20
