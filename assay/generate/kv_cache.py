"""Preallocated keys and values of every slot, and attention that is independent of neighbors.

A layer's keys have the layout ``[num_blocks, S, H, BLOCK, D]``: position p of a slot is in block p
// BLOCK. Attention multiplies block by block, so every product has the same shape for any extent,
and blocks beyond a slot's length add exact zeros. A single product over the whole extent is not
used, because matrix libraries split the sum differently at another extent. With a single product,
the last bits of a completion would depend on the lengths of other completions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.cache_utils import Cache

from assay.model.transfer import on_device

BLOCK = 64

# Keys and values by layer, [1, H, L, D].
Prompt = dict[int, tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Extent:
    """Maximum lengths over all slots: total, prompt, and tokens after the prompt."""

    total: int
    prompt: int
    own: int


@dataclass(frozen=True)
class Room:
    """The required capacity: maximum extent, number of groups, and completions of each group."""

    extent: Extent
    num_groups: int
    group_size: int


class KeyValues:
    """Base class of key-value caches: storage for the slots, and the current prompt.

    layout: number that changes whenever the storage moves to other memory.
    """

    def __init__(self) -> None:
        self.num_slots = 0
        self.layout = 0
        self.prompt: Prompt = {}
        # Layers of the previous prompt, from which `known` has not yet returned the leading tokens.
        self._num_known, self._last = 0, Prompt()

    @property
    def bytes_per_token(self) -> int:
        """Bytes per token and slot, from the shapes of the last prompt."""
        tensors = [tensor for pair in self.prompt.values() for tensor in pair]
        return sum(one.shape[1] * one.shape[3] * one.element_size() for one in tensors)

    @property
    def num_bytes(self) -> int:
        """Bytes currently allocated."""
        return sum(store.numel() * store.element_size() for store in self._stores())

    def begin_prompt(self, known: int = 0) -> None:
        """Start to record the keys and values of the next prompt.

        known: number of leading tokens that this prompt and the previous prompt have in common.
        """
        self._num_known, self._last = known, dict(self.prompt) if known else {}
        self.prompt = {}

    def known(self, layer: int) -> tuple[Tensor, Tensor] | None:
        """Return a layer's keys and values of the known tokens, [1, H, known, D]."""
        if not self._num_known:
            return None
        # The layer is removed from the dictionary, so that at most one layer is in memory twice.
        keys, values = self._last.pop(layer)
        return keys[:, :, : self._num_known], values[:, :, : self._num_known]

    def keep(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Store one layer's keys and values of the prompt, [1, H, L, D] each."""
        self.prompt[layer] = (keys, values)

    def num_tokens(self, num_slots: int, room: Room) -> int:
        """Return the maximum number of stored tokens."""
        raise NotImplementedError

    def prompt_tokens(self, room: Room) -> int:
        """Return the number of tokens that the current prompt occupies before `place` copies the
        prompt."""
        raise NotImplementedError

    def make_room(self, num_slots: int, room: Room) -> None:
        """Allocate ``num_slots`` with the shapes of the last prompt. The old content is lost."""
        raise NotImplementedError

    def place(self, slots: Tensor) -> None:
        """Assign the current prompt to ``slots``: indices, on the host or on the cache's device."""
        raise NotImplementedError

    def keep_slots(self, slots: Tensor, num_active: int) -> None:
        """Keep only the given slots, in the given order.

        In the batch, slots from ``num_active`` on are idle.
        """
        raise NotImplementedError

    def begin_step(self, positions_S: Tensor, extent: Extent) -> None:
        """Prepare the cache for a step with one token per slot. No position exceeds ``extent``."""
        raise NotImplementedError

    def release(self) -> None:
        """Free the memory."""
        raise NotImplementedError

    def _stores(self) -> Iterable[Tensor]:
        raise NotImplementedError


class SlotCache(KeyValues, Cache):
    """The cache of a Hugging Face model, with one row per slot.

    Between `begin_prompt` and the end of the model's call, the cache records a prompt's keys and
    values, which `place` copies into slots. After `begin_step`, the cache stores one token for each
    slot.
    """

    def __init__(self) -> None:
        KeyValues.__init__(self)
        Cache.__init__(self, layers=[])
        # Number of blocks of the current step. The rounded extent is num_blocks * BLOCK tokens.
        self.num_blocks = 0
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}
        self._in_prompt = False
        # Number of prompt tokens before the current block.
        self._num_read = 0
        self._positions_S = torch.zeros(0, dtype=torch.int64)
        self._row_of_heads: dict[int, Tensor] = {}
        self._bias_of_heads: dict[int, Tensor] = {}
        self._order = torch.zeros(0)
        self._bias_SK = torch.zeros(0)

    @property
    def capacity(self) -> int:
        """Number of tokens that a slot can hold."""
        return next((keys.shape[0] * BLOCK for keys, _ in self._layers.values()), 0)

    def num_tokens(self, num_slots: int, room: Room) -> int:
        return num_slots * self.prompt_tokens(room)

    def prompt_tokens(self, room: Room) -> int:
        return num_blocks_of(room.extent.total) * BLOCK

    def make_room(self, num_slots: int, room: Room) -> None:
        self.allocate(num_slots, room.extent.total)

    def allocate(self, num_slots: int, capacity: int) -> None:
        """Allocate ``num_slots`` of ``capacity`` tokens, in the shapes of the last prompt."""
        if not self.prompt:
            raise NotImplementedError("the model stores no keys and values in its cache")
        num_blocks = -(-capacity // BLOCK)
        if num_slots == self.num_slots and num_blocks * BLOCK <= self.capacity:
            return
        # The old tensors are freed before the new tensors are allocated, to limit peak memory.
        self.release()
        self.num_slots = num_slots
        self.layout += 1
        for layer, (keys, values) in self.prompt.items():
            heads = keys.shape[1]
            # The memory is filled with zeros, because masked positions enter a product, and 0 * nan
            # is nan.
            self._layers[layer] = (
                keys.new_zeros(num_blocks, num_slots, heads, BLOCK, keys.shape[3]),
                values.new_zeros(num_blocks, num_slots, heads, BLOCK, values.shape[3]),
            )
        device = next(iter(self.prompt.values()))[0].device
        self._order = torch.arange(num_blocks * BLOCK, device=device)

    def release(self) -> None:
        self._layers.clear()

    def _stores(self) -> Iterable[Tensor]:
        return (store for pair in self._layers.values() for store in pair)

    def in_blocks(self, extent: Extent) -> Extent:
        """Return the step's extent, rounded up to whole blocks so that many steps have the same
        shape."""
        total = -(-extent.total // BLOCK) * BLOCK
        return Extent(total, total, total)

    def begin_prompt(self, known: int = 0) -> None:
        super().begin_prompt(known)
        self._in_prompt, self._num_read = True, known

    def begin_block(self, num_read: int) -> None:
        """Prepare the cache for the block of the prompt after the first ``num_read`` tokens."""
        self._num_read = num_read

    def place(self, slots: Tensor) -> None:
        if slots.device != self._order.device:
            slots = on_device(slots, self._order.device)
        for layer, prompt in self.prompt.items():
            for store, (tensor,) in zip(self._layers[layer], prompt, strict=True):
                heads, length, width = tensor.shape
                num_blocks = -(-length // BLOCK)
                padded = F.pad(tensor, (0, 0, 0, num_blocks * BLOCK - length))
                blocks = padded.reshape(heads, num_blocks, 1, BLOCK, width).permute(1, 2, 0, 3, 4)
                store[:num_blocks].index_copy_(1, slots, blocks.expand(-1, len(slots), -1, -1, -1))

    def keep_slots(self, slots: Tensor, num_active: int) -> None:
        self.num_slots = len(slots)
        self.layout += 1
        # Layers are copied one at a time, so that at most one layer is in memory twice.
        for layer, (keys, values) in self._layers.items():
            self._layers[layer] = keys.index_select(1, slots), values.index_select(1, slots)

    def begin_step(self, positions_S: Tensor, extent: Extent) -> None:
        self._in_prompt = False
        self.num_blocks = -(-extent.total // BLOCK)
        self._positions_S = positions_S
        self._row_of_heads.clear()
        self._bias_of_heads.clear()
        order = self._order[: self.num_blocks * BLOCK]
        dtype = next(iter(self._layers.values()))[0].dtype
        self._bias_SK = torch.zeros((self.num_slots, len(order)), dtype=dtype, device=order.device)
        self._bias_SK.masked_fill_(order > positions_S[:, None], -math.inf)

    @property
    def mask(self) -> Tensor:
        """The step's additive mask [S, 1, 1, K], as Hugging Face models accept it."""
        return self._bias_SK[:, None, None]

    def bias(self, heads: int) -> Tensor:
        """Return the step's mask as `attend` expects it, for a layer with ``heads`` key heads."""
        if heads not in self._bias_of_heads:
            self._bias_of_heads[heads] = blocked_bias(self._bias_SK, heads)
        return self._bias_of_heads[heads]

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store one token per slot, and return all blocks of the step's extent.

        keys, values: tensors of shape [S * heads, D].
        """
        key_store, value_store = self._layers[layer]
        heads = key_store.shape[2]
        if heads not in self._row_of_heads:
            self._row_of_heads[heads] = self._rows(heads)
        rows = self._row_of_heads[heads]
        key_store.view(-1, key_store.shape[-1]).index_copy_(0, rows, keys)
        value_store.view(-1, value_store.shape[-1]).index_copy_(0, rows, values)
        return key_store[: self.num_blocks], value_store[: self.num_blocks]

    def attend(
        self, layer: int, query: Tensor, keys: Tensor, values: Tensor, scale: float
    ) -> Tensor:
        """Store one token per slot (keys, values: [S * H, D]) and attend to all visible tokens.

        query: tensor of shape [S * H, queries per head, D]. Returns the same shape.
        """
        stored = self.write(layer, keys, values)
        return attend(query, *stored, self.bias(stored[0].shape[2]), scale)

    def _rows(self, heads: int) -> Tensor:
        device = self._order.device
        row_S = self._positions_S // BLOCK * self.num_slots
        row_S += torch.arange(self.num_slots, device=device)
        row_SH = row_S[:, None] * heads + torch.arange(heads, device=device)
        return (row_SH * BLOCK + self._positions_S[:, None] % BLOCK).view(-1)

    # These methods are called by a Hugging Face model on its cache.

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        layer_idx: int,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor]:
        """Store a block of a prompt, or one token per slot. Return the keys and values of all
        stored tokens, including the new ones."""
        if self._in_prompt:
            earlier = self.prompt.get(layer_idx) or self.known(layer_idx)
            both = key_states, value_states
            if earlier is not None:
                both = torch.cat((earlier[0], both[0]), 2), torch.cat((earlier[1], both[1]), 2)
            self.keep(layer_idx, *both)
            return both
        keys = key_states.reshape(-1, key_states.shape[-1])
        values = value_states.reshape(-1, value_states.shape[-1])
        return self.write(layer_idx, keys, values)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the number of tokens before the current block of a prompt, or before the step."""
        return self._num_read if self._in_prompt else self.num_blocks * BLOCK - 1

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """Return (extent, first position)."""
        read = self._num_read + query_length
        return (read if self._in_prompt else self.num_blocks * BLOCK), 0


def blocked_bias(bias_SK: Tensor, heads: int, block: int = BLOCK) -> Tensor:
    """Reshape a mask to [num_blocks * S * heads, 1, block]."""
    num_slots, extent = bias_SK.shape
    blocks = bias_SK.view(num_slots, extent // block, 1, block).transpose(0, 1)
    return blocks.expand(-1, -1, heads, -1).reshape(-1, 1, block)


def attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    bias: Tensor,
    scale: float,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Return softmax(scale * query keys^T + bias) values, computed block by block.

    query: tensor of shape [S * heads, queries per head, D]; heads are key heads. keys, values:
    tensors of shape [num_blocks, S, heads, BLOCK, D]. bias: from `blocked_bias`. softcap: scores
    become softcap * tanh(scores / softcap) (Gemma 2, arXiv 2408.00118). sinks: an additional score
    of each query head, whose weight applies to no value (gpt-oss). Returns a tensor of shape [S *
    heads, queries per head, D of values].
    """
    if softcap is None:
        scores = block_scores(query, keys, bias, scale)
    else:
        scores = block_scores(query, keys, torch.zeros_like(bias), scale / softcap)
        scores = scores.tanh().mul_(softcap) + bias.view(len(scores), -1, 1, bias.shape[-1])
    joined = scores[0] if len(scores) == 1 else torch.cat(scores.unbind(), -1)
    if sinks is None:
        weights = joined.softmax(-1)
    else:
        sinks = sinks.to(joined.dtype).view(-1, joined.shape[1], 1)
        sinks = sinks.repeat(len(joined) // len(sinks), 1, 1)
        weights = torch.cat([joined, sinks], -1).softmax(-1)[..., :-1]
    return block_sum(split_blocks(weights, BLOCK), values)


def block_scores(query: Tensor, keys: Tensor, bias: Tensor, scale: float) -> Tensor:
    """Return scale * query keys^T + bias, block by block: [num_blocks, rows, queries, block].

    query: [rows, queries, D]. keys: [num_blocks, ..., block, D]; the middle axes multiply to rows.
    bias: from `blocked_bias`.
    """
    num_blocks, (num_rows, num_queries, width) = len(keys), query.shape
    flat_keys = keys.reshape(num_blocks * num_rows, -1, keys.shape[-1]).transpose(1, 2)
    if num_blocks > 1:
        query = query.expand(num_blocks, -1, -1, -1).reshape(-1, num_queries, width)
    scores = torch.baddbmm(bias, query, flat_keys, alpha=scale)
    return scores.view(num_blocks, num_rows, num_queries, -1)


def block_sum(weights: Tensor, values: Tensor) -> Tensor:
    """Return the weighted sum of values, [rows, queries, D].

    weights: [num_blocks, rows, queries, block]. The terms of the blocks are added in order, so
    blocks of zeros at the end do not change the result.
    """
    num_blocks, num_rows, num_queries, size = weights.shape
    flat_values = values.reshape(num_blocks * num_rows, size, values.shape[-1])
    parts = torch.bmm(weights.reshape(-1, num_queries, size), flat_values)
    parts = parts.view(num_blocks, num_rows, num_queries, -1)
    return parts[0] if num_blocks == 1 else parts[0] + parts[1] if num_blocks == 2 else parts.sum(0)


def split_blocks(weights: Tensor, size: int) -> Tensor:
    """Reshape [rows, queries, blocks * size] to [blocks, rows, queries, size]."""
    return weights.unflatten(-1, (-1, size)).permute(2, 0, 1, 3)


def num_blocks_of(length: int, block: int = BLOCK) -> int:
    """Return the number of blocks for ``length`` tokens, at least one."""
    return max(-(-length // block), 1)
