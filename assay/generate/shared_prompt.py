"""The lean decoder's cache with shared prompts: siblings attend together to one copy.

A row holds one copy of a prompt and has places for up to `SIBLINGS` slots, whose completions
continue that prompt. The N rows are stored in blocks [num_blocks, N, H, PROMPT_BLOCK, D]. The
completion tokens of S slots are stored in separate blocks [num_blocks, S, H, BLOCK, D]. In a step,
one product multiplies the queries of all slots of a row with the row's prompt. One softmax then
covers the scores of prompt and completion tokens. The shapes of products do not depend on other
completions: vacant places of a row are computed too, and shorter prompts are padded with exact
zeros.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from assay.generate.kv_cache import (
    BLOCK,
    Extent,
    KeyValues,
    Room,
    SlotCache,
    block_scores,
    block_sum,
    blocked_bias,
    num_blocks_of,
    split_blocks,
)
from assay.model.transfer import on_device

PROMPT_BLOCK = 128
SIBLINGS = 8
# Number of prompt rows that are added if no row is free.
# Every step computes all rows, even free rows, so rows are added only when needed.
ROWS_AT_ONCE = 8


@dataclass(eq=False)
class _Row:
    """A row: one copy of a prompt, with places for `SIBLINGS` slots (None marks a vacant place)."""

    prompt_number: int = -1
    length: int = 1
    slots: list[int | None] = field(default_factory=lambda: [None] * SIBLINGS)

    @property
    def vacant(self) -> bool:
        """Whether no slot uses this copy of the prompt."""
        return all(slot is None for slot in self.slots)


class SharedPromptCache(KeyValues):
    """Keys and values of S slots with shared prompts; all layers have the same heads.

    The slots' own tokens are stored in a `SlotCache` that starts after the prompt.
    """

    def __init__(self) -> None:
        super().__init__()
        self._own = SlotCache()
        self._prompt_number = 0
        self._prompts: list[tuple[Tensor, Tensor]] = []
        self._rows: list[_Row] = []
        self._capacity = Extent(0, 0, 0)
        self._max_rows = 0
        self._mapped = -1

    @property
    def capacity(self) -> int:
        """Number of tokens that a slot can hold."""
        return self._capacity.total

    def num_tokens(self, num_slots: int, room: Room) -> int:
        own = num_blocks_of(room.extent.own) * BLOCK
        return num_slots * own + _max_rows(num_slots, room) * self.prompt_tokens(room)

    def prompt_tokens(self, room: Room) -> int:
        return num_blocks_of(room.extent.prompt, PROMPT_BLOCK) * PROMPT_BLOCK

    def make_room(self, num_slots: int, room: Room) -> None:
        # The old tensors are freed before the new tensors are allocated, to limit peak memory.
        self.release()
        self.num_slots, self._capacity = num_slots, room.extent
        self._own.prompt = self.prompt
        self._own.allocate(num_slots, room.extent.own)
        keys = self.prompt[0][0]
        self._heads, self._device, self._dtype = keys.shape[1], keys.device, keys.dtype
        self._max_rows = _max_rows(num_slots, room)
        self._grow()
        # Row and place of each slot.
        self._at: list[tuple[int, int] | None] = [None] * num_slots
        self._prompt_length_S = torch.zeros(num_slots, dtype=torch.int64, device=self._device)

    def release(self) -> None:
        self._own.release()
        self._own.prompt = {}
        self._prompts, self._rows = [], []
        self._capacity = Extent(0, 0, 0)

    def _stores(self) -> Iterable[Tensor]:
        return (*self._own._stores(), *(store for pair in self._prompts for store in pair))

    def in_blocks(self, extent: Extent) -> Extent:
        """Return the step's extent, rounded up to whole blocks so that many steps have the same
        shape."""
        prompt = num_blocks_of(extent.prompt, PROMPT_BLOCK) * PROMPT_BLOCK
        own = num_blocks_of(extent.own) * BLOCK
        return Extent(prompt + own, prompt, own)

    def begin_prompt(self, known: int = 0) -> None:
        super().begin_prompt(known)
        self._prompt_number += 1

    def place(self, slots: Tensor) -> None:
        """Assign the prompt to ``slots``, in vacant places of the prompt's rows or in new rows."""
        chosen: list[int] = slots.tolist()
        for slot in chosen:
            if (before := self._at[slot]) is not None:
                row, place = before
                self._rows[row].slots[place] = None
        for slot in chosen:
            row = self._row_with_a_place()
            place = self._rows[row].slots.index(None)
            self._rows[row].slots[place] = slot
            self._at[slot] = (row, place)
        if slots.device != self._prompt_length_S.device:
            slots = on_device(slots, self._device)
        self._prompt_length_S[slots] = self.prompt[0][0].shape[2]
        self._map()

    def keep_slots(self, slots: Tensor, num_active: int) -> None:
        chosen: list[int] = slots.tolist()
        places = [self._at[slot] for slot in chosen[:num_active]]
        used = sorted({at[0] for at in places if at is not None}) or [0]
        row_numbers = {row: number for number, row in enumerate(used)}
        self._rows = [replace(self._rows[row], slots=[None] * SIBLINGS) for row in used]
        self._at = [None] * len(chosen)
        for slot, at in enumerate(places):
            if at is not None:
                self._at[slot] = (row_numbers[at[0]], at[1])
                self._rows[row_numbers[at[0]]].slots[at[1]] = slot
        rows = on_device(torch.tensor(used), self._device)
        self._own.keep_slots(slots, num_active)
        self._prompts = [
            (k.index_select(1, rows), v.index_select(1, rows)) for k, v in self._prompts
        ]
        self._prompt_length_S = self._prompt_length_S[slots]
        self.num_slots = len(chosen)
        self.layout += 1
        self._map()

    def begin_step(self, positions_S: Tensor, extent: Extent) -> None:
        own_S = (positions_S - self._prompt_length_S).clamp_(min=0)
        self._own.begin_step(own_S, Extent(extent.own, 0, extent.own))
        self._num_prompt = num_blocks_of(extent.prompt, PROMPT_BLOCK)
        size = self._num_prompt * len(self._rows) * self._heads
        self._prompt_bias = self._all_prompt_bias[:size]

    def attend(
        self, layer: int, query: Tensor, keys: Tensor, values: Tensor, scale: float
    ) -> Tensor:
        """Store one token per slot (keys, values: [S * H, D]) and attend to all visible tokens.

        query: tensor of shape [S * H, queries per head, D]. Returns the same shape.
        """
        own_keys, own_values = self._own.write(layer, keys, values)
        prompt_keys, prompt_values = self._prompts[layer]
        own = block_scores(query, own_keys, self._own.bias(self._heads), scale)
        num_queries, width = query.shape[1:]
        together = query.index_select(0, self._slot_of_place).view(
            -1, SIBLINGS * num_queries, width
        )
        # The shape is [blocks, N * H, SIBLINGS * queries, PROMPT_BLOCK], including vacant places.
        prompt = block_scores(together, prompt_keys[: self._num_prompt], self._prompt_bias, scale)
        prompt = prompt.view(self._num_prompt, -1, num_queries * PROMPT_BLOCK)
        prompt = prompt.index_select(1, self._place_of_slot)
        prompt = prompt.view(self._num_prompt, -1, num_queries, PROMPT_BLOCK)
        weights = torch.cat((*prompt.unbind(), *own.unbind()), -1).softmax(-1)
        split = self._num_prompt * PROMPT_BLOCK
        shared = split_blocks(weights[..., :split], PROMPT_BLOCK)
        shared = shared.index_select(1, self._slot_of_place)
        shared = shared.view(self._num_prompt, -1, SIBLINGS * num_queries, PROMPT_BLOCK)
        seen = block_sum(shared, prompt_values[: self._num_prompt])
        seen = seen.view(-1, num_queries, seen.shape[-1]).index_select(0, self._place_of_slot)
        return seen.add_(block_sum(split_blocks(weights[..., split:], BLOCK), own_values))

    def _grow(self) -> None:
        """Add rows for prompts."""
        num_rows = min(len(self._rows) + ROWS_AT_ONCE, self._max_rows)
        assert num_rows > len(self._rows), "more prompts than groups can be active"
        if not self._rows:
            num_blocks = num_blocks_of(self._capacity.prompt, PROMPT_BLOCK)
            sizes = (num_blocks, num_rows, self._heads, PROMPT_BLOCK)
            # The memory is filled with zeros, because masked positions enter a product, and 0 * nan
            # is nan.
            self._prompts = [
                (k.new_zeros(*sizes, k.shape[3]), v.new_zeros(*sizes, v.shape[3]))
                for k, v in self.prompt.values()
            ]
        else:
            # Layers are copied one at a time, so that at most one layer is in memory twice.
            added = num_rows - len(self._rows)
            for layer, pair in enumerate(self._prompts):
                keys, values = (F.pad(old, (0, 0) * 3 + (0, added)) for old in pair)
                self._prompts[layer] = (keys, values)
        self.layout += 1
        self._rows += [_Row() for _ in range(num_rows - len(self._rows))]

    def _row_with_a_place(self) -> int:
        """Return the index of a row that holds the prompt and has a vacant place."""
        for index, row in enumerate(self._rows):
            if row.prompt_number == self._prompt_number and None in row.slots:
                return index
        index = next((n for n, row in enumerate(self._rows) if row.vacant), len(self._rows))
        if index == len(self._rows):
            self._grow()
        self._rows[index].prompt_number = self._prompt_number
        self._rows[index].length = self.prompt[0][0].shape[2]
        for stores, prompt in zip(self._prompts, self.prompt.values(), strict=True):
            for store, (tensor,) in zip(stores, prompt, strict=True):
                num_blocks = -(-tensor.shape[1] // PROMPT_BLOCK)
                padded = F.pad(tensor, (0, 0, 0, num_blocks * PROMPT_BLOCK - tensor.shape[1]))
                blocks = padded.view(self._heads, num_blocks, PROMPT_BLOCK, -1)
                store[:num_blocks, index] = blocks.transpose(0, 1)
        return index

    def _map(self) -> None:
        """Rebuild the index tensors between slots and places, and the masks of the prompts."""
        heads = self._heads
        slot_NB = torch.tensor([[slot or 0 for slot in row.slots] for row in self._rows])
        row_S, place_S = torch.tensor([at or (0, 0) for at in self._at]).unbind(-1)
        head_H = torch.arange(heads)
        slot_NHB = slot_NB[:, None] * heads + head_H[:, None]
        place_SH = (row_S[:, None] * heads + head_H) * SIBLINGS + place_S[:, None]
        length_N1 = torch.tensor([[row.length] for row in self._rows])
        num_blocks = num_blocks_of(self._capacity.prompt, PROMPT_BLOCK)
        order_K = torch.arange(num_blocks * PROMPT_BLOCK)
        bias_NK = torch.zeros((len(self._rows), len(order_K)), dtype=self._dtype)
        bias_NK.masked_fill_(order_K >= length_N1, -math.inf)
        bias = blocked_bias(bias_NK, heads, PROMPT_BLOCK).contiguous()
        slot_of_place, place_of_slot, bias = (
            on_device(one, self._device) for one in (slot_NHB.view(-1), place_SH.view(-1), bias)
        )
        if self._mapped != self.layout:
            self._mapped = self.layout
            self._slot_of_place, self._place_of_slot = slot_of_place, place_of_slot
            self._all_prompt_bias = bias
        else:
            # The tensors are updated in place, because captured steps read this memory.
            self._slot_of_place.copy_(slot_of_place)
            self._place_of_slot.copy_(place_of_slot)
            self._all_prompt_bias.copy_(bias)


def _max_rows(num_slots: int, room: Room) -> int:
    """Return the maximum number of prompt copies.

    A group needs one copy for every `SIBLINGS` completions, and a slot needs at most one copy.
    """
    return max(min(num_slots, room.num_groups * -(-room.group_size // SIBLINGS)), 1)
