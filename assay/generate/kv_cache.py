"""Keys and values of every slot, preallocated; and attention over them that no neighbor can change.

Keys of a layer stand as ``[num_blocks, S, H, BLOCK, D]``: position p of a slot is in block p //
BLOCK. Attention multiplies block by block, so every product has one shape however far the longest
slot has come, and blocks beyond a slot's own length add exact zeros. One product over the whole
extent would not do: for some shapes the library splits the sum differently at another extent, and
the last bits of a completion would depend on its neighbors' lengths.
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

BLOCK = 64

Prompt = dict[int, tuple[Tensor, Tensor]]  # keys and values of each layer, [1, H, L, D]


@dataclass(frozen=True)
class Extent:
    """How far the longest reaches: in all, its prompt, and what was sampled behind a prompt."""

    total: int
    prompt: int
    own: int


@dataclass(frozen=True)
class Room:
    """What a generation needs room for: its extent at the most, and how many share their
    prompts."""

    extent: Extent
    num_groups: int
    group_size: int


class KeyValues:
    """What every cache is: room for so many slots, and the prompt that is on its way to them.

    layout: another number whenever it takes other memory.
    """

    def __init__(self) -> None:
        self.num_slots = 0
        self.layout = 0
        self.prompt: Prompt = {}

    @property
    def bytes_per_token(self) -> int:
        """What one token of one slot takes, by the shapes of the last prompt."""
        tensors = [tensor for pair in self.prompt.values() for tensor in pair]
        return sum(one.shape[1] * one.shape[3] * one.element_size() for one in tensors)

    @property
    def num_bytes(self) -> int:
        """What is held now."""
        return sum(store.numel() * store.element_size() for store in self._stores())

    def begin_prompt(self) -> None:
        """Take down the keys and values of the next prompt."""
        self.prompt = {}

    def keep(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Take down a layer of the prompt: [1, H, L, D]."""
        self.prompt[layer] = (keys, values)

    def num_tokens(self, num_slots: int, room: Room) -> int:
        """Return how many tokens it may come to hold."""
        raise NotImplementedError

    def prompt_tokens(self, room: Room) -> int:
        """Return how many tokens one prompt takes on its way."""
        raise NotImplementedError

    def make_room(self, num_slots: int, room: Room) -> None:
        """Make room for ``num_slots``, in the shapes of the last prompt; what was held is lost."""
        raise NotImplementedError

    def place(self, slots: Tensor) -> None:
        """Let ``slots`` attend to the prompt."""
        raise NotImplementedError

    def keep_slots(self, slots: Tensor, num_active: int) -> None:
        """Go on with these slots alone, in this order; those beyond ``num_active`` are idle."""
        raise NotImplementedError

    def begin_step(self, positions_S: Tensor, extent: Extent) -> None:
        """Expect one token for each slot, at its position; no position is beyond ``extent``."""
        raise NotImplementedError

    def release(self) -> None:
        """Give the memory back."""
        raise NotImplementedError

    def _stores(self) -> Iterable[Tensor]:
        raise NotImplementedError


class SlotCache(KeyValues, Cache):
    """The cache that a Hugging Face model reads and writes, one row a slot.

    Between `begin_prompt` and the end of the model's call it takes down a prompt's keys and values,
    which `place` then copies into slots. After `begin_step` it takes one token a slot.
    """

    def __init__(self) -> None:
        KeyValues.__init__(self)
        Cache.__init__(self, layers=[])
        self.num_blocks = 0  # of the step at hand: the rounded extent is num_blocks * BLOCK
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}
        self._in_prompt = False
        self._positions_S = torch.zeros(0, dtype=torch.int64)
        self._row_of_heads: dict[int, Tensor] = {}
        self._bias_of_heads: dict[int, Tensor] = {}
        self._order = torch.zeros(0)
        self._bias_SK = torch.zeros(0)

    @property
    def capacity(self) -> int:
        """How many tokens a slot can hold."""
        return next((keys.shape[0] * BLOCK for keys, _ in self._layers.values()), 0)

    def num_tokens(self, num_slots: int, room: Room) -> int:
        return num_slots * self.prompt_tokens(room)

    def prompt_tokens(self, room: Room) -> int:
        return num_blocks_of(room.extent.total) * BLOCK

    def make_room(self, num_slots: int, room: Room) -> None:
        self.allocate(num_slots, room.extent.total)

    def allocate(self, num_slots: int, capacity: int) -> None:
        """Make room for ``num_slots`` of ``capacity`` tokens, in the shapes of the last prompt."""
        if not self.prompt:
            raise NotImplementedError("the model keeps no keys and values in its cache")
        num_blocks = -(-capacity // BLOCK)
        if num_slots == self.num_slots and num_blocks * BLOCK <= self.capacity:
            return
        self.release()  # before the new tensors, so that never both are held
        self.num_slots = num_slots
        self.layout += 1
        for layer, (keys, values) in self.prompt.items():
            heads = keys.shape[1]
            # zeros, not garbage: a masked position still enters a product, where 0 * nan is nan
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
        """Return the extent that a step computes, in whole blocks; steps of one shape have one."""
        total = -(-extent.total // BLOCK) * BLOCK
        return Extent(total, total, total)

    def begin_prompt(self) -> None:
        super().begin_prompt()
        self._in_prompt = True

    def place(self, slots: Tensor) -> None:
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
        for layer, (keys, values) in self._layers.items():  # one layer at a time is held twice
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
        """The step's additive mask [S, 1, 1, K], in the form that Hugging Face models take."""
        return self._bias_SK[:, None, None]

    def bias(self, heads: int) -> Tensor:
        """Return the step's mask in the form that `attend` takes, for a layer of so many key
        heads."""
        if heads not in self._bias_of_heads:
            self._bias_of_heads[heads] = blocked_bias(self._bias_SK, heads)
        return self._bias_of_heads[heads]

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store one token a slot ([S * heads, D] each) and return all blocks of the step's
        extent."""
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
        """Store one token a slot (keys, values: [S * H, D]) and attend to all that each slot may
        see.

        query: [S * H, queries a head, D]. Returns the same shape.
        """
        stored = self.write(layer, keys, values)
        return attend(query, *stored, self.bias(stored[0].shape[2]), scale)

    def _rows(self, heads: int) -> Tensor:
        device = self._order.device
        row_S = self._positions_S // BLOCK * self.num_slots
        row_S += torch.arange(self.num_slots, device=device)
        row_SH = row_S[:, None] * heads + torch.arange(heads, device=device)
        return (row_SH * BLOCK + self._positions_S[:, None] % BLOCK).view(-1)

    # What a Hugging Face model calls.

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        layer_idx: int,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor]:
        """Take down a prompt's keys and values, or one token a slot."""
        if self._in_prompt:
            self.keep(layer_idx, key_states, value_states)
            return key_states, value_states
        keys = key_states.reshape(-1, key_states.shape[-1])
        values = value_states.reshape(-1, value_states.shape[-1])
        return self.write(layer_idx, keys, values)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return 0 for a prompt, and else the extent before the step's token."""
        return 0 if self._in_prompt else self.num_blocks * BLOCK - 1

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """Return (extent, first position)."""
        return (query_length if self._in_prompt else self.num_blocks * BLOCK), 0


def blocked_bias(bias_SK: Tensor, heads: int, block: int = BLOCK) -> Tensor:
    """Return a mask as [num_blocks * S * heads, 1, block]."""
    num_slots, extent = bias_SK.shape
    blocks = bias_SK.view(num_slots, extent // block, 1, block).transpose(0, 1)
    return blocks.expand(-1, -1, heads, -1).reshape(-1, 1, block)


def attend(query: Tensor, keys: Tensor, values: Tensor, bias: Tensor, scale: float) -> Tensor:
    """Return softmax(scale * query keys^T + bias) values, block by block.

    query: [S * heads, queries a head, D], heads counted as the keys'. keys, values: [num_blocks, S,
    heads, BLOCK, D]. bias: from `blocked_bias`. Returns [S * heads, queries a head, D of values].
    """
    scores = block_scores(query, keys, bias, scale)
    joined = scores[0] if len(scores) == 1 else torch.cat(scores.unbind(), -1)
    weights = joined.softmax(-1)
    return block_sum(split_blocks(weights, BLOCK), values)


def block_scores(query: Tensor, keys: Tensor, bias: Tensor, scale: float) -> Tensor:
    """Return scale * query keys^T + bias, block by block: [num_blocks, rows, queries, block].

    query: [rows, queries, D]. keys: [num_blocks, ..., block, D], rows between. bias: from
    `blocked_bias`.
    """
    num_blocks, (num_rows, num_queries, width) = len(keys), query.shape
    flat_keys = keys.reshape(num_blocks * num_rows, -1, keys.shape[-1]).transpose(1, 2)
    if num_blocks > 1:
        query = query.expand(num_blocks, -1, -1, -1).reshape(-1, num_queries, width)
    scores = torch.baddbmm(bias, query, flat_keys, alpha=scale)
    return scores.view(num_blocks, num_rows, num_queries, -1)


def block_sum(weights: Tensor, values: Tensor) -> Tensor:
    """Return the sum of values, weighted [num_blocks, rows, queries, block]: [rows, queries, D].

    The sum over blocks goes one after the other: zeros at its end change nothing.
    """
    num_blocks, num_rows, num_queries, size = weights.shape
    flat_values = values.reshape(num_blocks * num_rows, size, values.shape[-1])
    parts = torch.bmm(weights.reshape(-1, num_queries, size), flat_values)
    parts = parts.view(num_blocks, num_rows, num_queries, -1)
    return parts[0] if num_blocks == 1 else parts[0] + parts[1] if num_blocks == 2 else parts.sum(0)


def split_blocks(weights: Tensor, size: int) -> Tensor:
    """Return [rows, queries, blocks * size] as [blocks, rows, queries, size]."""
    return weights.unflatten(-1, (-1, size)).permute(2, 0, 1, 3)


def num_blocks_of(length: int, block: int = BLOCK) -> int:
    """Return how many blocks hold so many tokens, at least one."""
    return max(-(-length // block), 1)
