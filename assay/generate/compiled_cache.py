"""The key-value cache of compiled attention: per-slot tokens, and prompts stored once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from assay.generate.kv_cache import Extent, KeyValues, Prompt, Room
from assay.model.compiled import LANES


class CompiledCache(KeyValues):
    """Keys and values of S slots. The completions of one prompt share the prompt's keys and values.

    Keys of completion tokens (per slot): [S, H, blocks, D, LANES]. Values of completion tokens: [S,
    H, capacity, D]. Keys of prompt tokens: [H, blocks, D, LANES]. Values of prompt tokens: [H,
    length, D].
    """

    # A vector of keys holds LANES tokens, so that a score needs no sum within a vector.

    def __init__(self, heads: Sequence[int], width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.own: list[tuple[Tensor, Tensor]] = []
        # Capacity of each slot for its own tokens, which follow the shared prompt.
        self.capacity = 0
        self.positions_S = self.prompt_length_S = torch.zeros(0, dtype=torch.int64)
        self._heads, self._width, self._dtype = tuple(heads), width, dtype
        # References to each slot's prompt, which keep the prompt's memory alive for the C code.
        self._held: list[Prompt] = []
        self._pointers_LS2 = torch.zeros(0, 0, 2, dtype=torch.int64)

    @property
    def bytes_per_token(self) -> int:
        """Bytes of keys and values per token, over all layers."""
        return 2 * sum(self._heads) * self._width * self._dtype.itemsize

    def _stores(self) -> Iterable[Tensor]:
        prompts = {id(prompt): prompt for prompt in (*self._held, self.prompt)}
        pairs = [*self.own, *(pair for prompt in prompts.values() for pair in prompt.values())]
        return (tensor for pair in pairs for tensor in pair)

    def num_tokens(self, num_slots: int, room: Room) -> int:
        prompts = min(num_slots, room.num_groups)
        return num_slots * padded(room.extent.own) + prompts * self.prompt_tokens(room)

    def prompt_tokens(self, room: Room) -> int:
        return padded(room.extent.prompt)

    def make_room(self, num_slots: int, room: Room) -> None:
        # The old tensors are freed before the new tensors are allocated, to limit peak memory.
        self.release()
        self.num_slots, self.capacity = num_slots, padded(room.extent.own)
        self.layout += 1
        num_blocks = self.capacity // LANES
        for heads in self._heads:
            # The memory is filled with zeros, because masked elements enter a product, and 0 * nan
            # is nan.
            keys = torch.zeros(num_slots, heads, num_blocks, self._width, LANES, dtype=self._dtype)
            values = torch.empty(num_slots, heads, self.capacity, self._width, dtype=self._dtype)
            self.own.append((keys, values))
        self.prompt_length_S = torch.zeros(num_slots, dtype=torch.int64)
        self._pointers_LS2 = torch.zeros(len(self._heads), num_slots, 2, dtype=torch.int64)
        self._held = [{} for _ in range(num_slots)]

    def release(self) -> None:
        self.own, self._held, self.capacity = [], [], 0

    def keep(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Store one layer's keys and values of the prompt, [1, H, L, D] each."""
        heads, length, width = keys.shape[1:]
        whole = F.pad(keys[0], (0, 0, 0, padded(length) - length))
        blocks = whole.view(heads, -1, LANES, width).transpose(2, 3).contiguous()
        self.prompt[layer] = (blocks, values[0].contiguous())

    def known(self, layer: int) -> tuple[Tensor, Tensor] | None:
        if not self._num_known:
            return None
        blocks, values = self._last.pop(layer)
        keys = blocks.transpose(2, 3).reshape(len(blocks), -1, self._width)
        return keys[None, :, : self._num_known], values[None, :, : self._num_known]

    def place(self, slots: Tensor) -> None:
        addresses = [[one.data_ptr() for one in pair] for pair in self.prompt.values()]
        self._pointers_LS2[:, slots] = torch.tensor(addresses)[:, None]
        self.prompt_length_S[slots] = self.prompt[0][1].shape[1]
        for slot in slots.tolist():
            self._held[slot] = self.prompt

    def keep_slots(self, slots: Tensor, num_active: int) -> None:
        self.num_slots = len(slots)
        self.layout += 1
        # Layers are copied one at a time, so that only one layer exists twice.
        for layer, pair in enumerate(self.own):
            keys, values = (tensor.index_select(0, slots) for tensor in pair)
            self.own[layer] = keys, values
        self.prompt_length_S = self.prompt_length_S[slots]
        self._pointers_LS2 = self._pointers_LS2[:, slots].contiguous()
        self._held = [self._held[slot] for slot in slots.tolist()]

    def begin_step(self, positions_S: Tensor, extent: Extent) -> None:
        """Prepare the cache for a step with one token per slot.

        The position of an idle slot is arbitrary.
        """
        # An idle slot has position 0 and an old prompt length, so its position is clamped.
        self.positions_S = torch.maximum(positions_S, self.prompt_length_S)

    def stores(self, layer: int) -> tuple[Tensor, ...]:
        """Return the prompt pointers, prompt lengths, own keys and own values for the C code."""
        return self._pointers_LS2[layer], self.prompt_length_S, *self.own[layer]


def padded(length: int) -> int:
    """Round a number of tokens up to whole vectors of LANES tokens, at least one vector."""
    return max(-(-length // LANES), 1) * LANES
