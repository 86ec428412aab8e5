"""Keys and values where compiled attention reads them: each slot's own tokens, and prompts once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from assay.generate.kv_cache import Extent, KeyValues, Prompt, Room
from assay.model.compiled import LANES


class CompiledCache(KeyValues):
    """Keys and values of S slots: each slot's own tokens, and prompts that siblings share.

    Own keys [S, H, blocks, D, LANES], own values [S, H, capacity, D]; of a prompt [H, blocks, D,
    LANES] and [H, length, D].
    """

    def __init__(self, heads: Sequence[int], width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.own: list[tuple[Tensor, Tensor]] = []
        self.capacity = 0  # own tokens of a slot
        self.positions_S = self.prompt_length_S = torch.zeros(0, dtype=torch.int64)
        self._heads, self._width, self._dtype = tuple(heads), width, dtype
        self._held: list[Prompt] = []  # the prompt of each slot, so that its memory stays
        self._pointers_LS2 = torch.zeros(0, 0, 2, dtype=torch.int64)

    @property
    def bytes_per_token(self) -> int:
        """What one token takes in all layers."""
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
        self.release()  # before the new tensors, so that never both are held
        self.num_slots, self.capacity = num_slots, padded(room.extent.own)
        self.layout += 1
        num_blocks = self.capacity // LANES
        for heads in self._heads:
            # zeros, not garbage: what is masked still enters a product, where 0 * nan is nan
            keys = torch.zeros(num_slots, heads, num_blocks, self._width, LANES, dtype=self._dtype)
            values = torch.empty(num_slots, heads, self.capacity, self._width, dtype=self._dtype)
            self.own.append((keys, values))
        self.prompt_length_S = torch.zeros(num_slots, dtype=torch.int64)
        self._pointers_LS2 = torch.zeros(len(self._heads), num_slots, 2, dtype=torch.int64)
        self._held = [{} for _ in range(num_slots)]

    def release(self) -> None:
        self.own, self._held, self.capacity = [], [], 0

    def keep(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Take down a layer of the prompt: [1, H, L, D]."""
        heads, length, width = keys.shape[1:]
        whole = F.pad(keys[0], (0, 0, 0, padded(length) - length))
        blocks = whole.view(heads, -1, LANES, width).transpose(2, 3).contiguous()
        self.prompt[layer] = (blocks, values[0].contiguous())

    def place(self, slots: Tensor) -> None:
        addresses = [[one.data_ptr() for one in pair] for pair in self.prompt.values()]
        self._pointers_LS2[:, slots] = torch.tensor(addresses)[:, None]
        self.prompt_length_S[slots] = self.prompt[0][1].shape[1]
        for slot in slots.tolist():
            self._held[slot] = self.prompt

    def keep_slots(self, slots: Tensor, num_active: int) -> None:
        self.num_slots = len(slots)
        self.layout += 1
        for layer, pair in enumerate(self.own):  # a layer at a time, so that little is held twice
            keys, values = (tensor.index_select(0, slots) for tensor in pair)
            self.own[layer] = keys, values
        self.prompt_length_S = self.prompt_length_S[slots]
        self._pointers_LS2 = self._pointers_LS2[:, slots].contiguous()
        self._held = [self._held[slot] for slot in slots.tolist()]

    def begin_step(self, positions_S: Tensor, extent: Extent) -> None:
        """Expect one token for each slot, at its position; an idle slot's is anywhere."""
        self.positions_S = torch.maximum(positions_S, self.prompt_length_S)

    def stores(self, layer: int) -> tuple[Tensor, ...]:
        """Return where the source finds prompts, their lengths, own keys and own values."""
        return self._pointers_LS2[layer], self.prompt_length_S, *self.own[layer]


def padded(length: int) -> int:
    """Return a number of tokens as whole vectors of the source, at least one."""
    return max(-(-length // LANES), 1) * LANES
