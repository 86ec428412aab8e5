"""The key-value cache of the fused decoder: completion tokens are stored per slot, and each prompt
is stored once.

A slot refers to its prompt by address, which the kernels read from device memory. Assigning a
prompt therefore copies nothing, siblings share one copy, and captured steps stay valid.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec

import torch
from torch import Tensor

from assay.generate.kv_cache import BLOCK, Extent, KeyValues, Room
from assay.model.family import Decoder, NotLean

# Attention is split into parts of `split` tokens, and a step's shape is its number of parts.
# All steps with at most this many parts, counted separately for prompts and for own tokens, have
# one shape.
# Each additional shape needs another captured graph, but surplus parts cost little.
LEAST_PARTS = 16
# Factor by which the next larger shape covers more tokens than the previous shape.
GROWTH = 4


class FusedCache(KeyValues):
    """Keys and values of S slots. Own tokens: [layers, 2, S, H, capacity, D]. A prompt: [layers, 2,
    H, length, D].

    split: number of tokens of one part, whose attention one GPU program computes. padding: all
    lengths in memory are multiples of this number of tokens.
    """

    def __init__(
        self, sizes: tuple[int, int, int], like: Tensor, split: int = BLOCK, padding: int = BLOCK
    ) -> None:
        super().__init__()
        self.num_layers, self.heads, self.width = sizes
        self.stores: list[tuple[Tensor, Tensor]] = []
        self.capacity = self.prompt_capacity = 0
        self.positions_S = torch.zeros(0, dtype=torch.int64)
        self.extent = Extent(0, 0, 0)
        self._like, self._split, self._padding = like, split, padding
        self._own = like.new_empty(0)
        # The current prompt, and the number of its tokens.
        self._kept, self._length = like.new_empty(0), 0
        # References to each slot's prompt, which keep the prompt's memory alive for the kernels.
        self._held: list[Tensor | None] = []
        # Address and length of each slot's prompt, on the host and on the device.
        self._table_2S = torch.zeros(2, 0, dtype=torch.int64)
        self.table_2S = self._table_2S
        self._changed = False

    @classmethod
    def of(cls, decoder: Decoder, split: int = BLOCK, padding: int = BLOCK) -> FusedCache:
        """Return a cache for a model. Raises NotLean if the number of attention heads differs
        between layers."""
        heads = {(len(layer.query[0]), len(layer.key[0])) for layer in decoder.layers}
        if len(heads) != 1:
            raise NotLean("layers with different numbers of heads")
        num_keys = len(decoder.layers[0].key[0]) // decoder.width
        like = decoder.layers[0].key[0].detach()
        return cls((len(decoder.layers), num_keys, decoder.width), like, split, padding)

    @property
    def bytes_per_token(self) -> int:
        """Bytes of keys and values per token, over all layers."""
        return 2 * self.num_layers * self.heads * self.width * self._like.element_size()

    def _stores(self) -> Iterable[Tensor]:
        prompts = {id(one): one for one in (*self._held, self._kept) if one is not None}
        return (self._own, *prompts.values())

    def num_tokens(self, num_slots: int, room: Room) -> int:
        prompts = min(num_slots, room.num_groups)
        return num_slots * self.padded(room.extent.own) + prompts * self.prompt_tokens(room)

    def prompt_tokens(self, room: Room) -> int:
        return self.padded(room.extent.prompt)

    def padded(self, length: int) -> int:
        """Round a number of tokens up, at least to one multiple of the padding."""
        return max(-(-length // self._padding), 1) * self._padding

    def new_prompt(self, length: int) -> Tensor:
        """Return memory for a prompt of ``length`` tokens: [layers, 2, H, padded length, D]."""
        shape = (self.num_layers, 2, self.heads, self.padded(length), self.width)
        return self._like.new_empty(shape)

    def keep_prompt(self, prompt: Tensor, length: int) -> None:
        """Set the current prompt, in memory from `new_prompt`."""
        self._kept, self._length = prompt, length

    def make_room(self, num_slots: int, room: Room) -> None:
        # The old tensors are freed before the new tensors are allocated, to limit peak memory.
        # The current prompt stays, because `place` needs it afterwards.
        self._free()
        self.num_slots, self.capacity = num_slots, self.padded(room.extent.own)
        self.prompt_capacity = self.padded(room.extent.prompt)
        self.layout += 1
        shape = (self.num_layers, 2, num_slots, self.heads, self.capacity, self.width)
        self._own = self._like.new_zeros(shape)
        self.stores = [(keys, values) for keys, values in map(torch.unbind, self._own)]
        self._held = [None] * num_slots
        self._table_2S = torch.zeros(2, num_slots, dtype=torch.int64)
        self.table_2S = self._table_2S.to(self._like.device, copy=True)
        self._changed = False

    def release(self) -> None:
        self._free()
        self._kept = self._like.new_empty(0)

    def _free(self) -> None:
        self.stores, self._held = [], []
        self._own = self._like.new_empty(0)
        self.capacity = self.prompt_capacity = 0

    def place(self, slots: Tensor) -> None:
        assert self._kept.numel(), "no prompt was read"
        chosen: list[int] = slots.tolist()
        self._table_2S[0, chosen] = self._kept.data_ptr()
        self._table_2S[1, chosen] = self._length
        self._changed = True
        for slot in chosen:
            self._held[slot] = self._kept

    def keep_slots(self, slots: Tensor, num_active: int) -> None:
        raise NotImplementedError("idle rows are not dropped on a GPU, where they cost little")

    def upload(self) -> None:
        """Copy changed addresses and lengths of prompts to the device, where decoding steps read
        them."""
        if self._changed:
            self.table_2S.copy_(self._table_2S)
            self._changed = False

    def in_blocks(self, extent: Extent) -> Extent:
        """Return the extent, rounded up to one of few shapes. Steps whose rounded extents are equal
        share one captured graph."""
        prompt = min(self._rounded(extent.prompt), self.prompt_capacity)
        own = min(self._rounded(extent.own), self.capacity)
        return Extent(prompt + own, prompt, own)

    def begin_step(self, positions_S: Tensor, extent: Extent) -> None:
        self.positions_S, self.extent = positions_S, extent

    def num_parts(self) -> tuple[int, int]:
        """Return the number of parts (of `split` tokens) that cover the prompts in the current
        step, and the number that cover prompts and own tokens."""
        prompt = -(-self.extent.prompt // self._split)
        return prompt, prompt + -(-self.extent.own // self._split)

    def _rounded(self, length: int) -> int:
        tokens = LEAST_PARTS * self._split
        while tokens < length:
            tokens *= GROWTH
        return tokens


def has_triton() -> bool:
    """Return whether Triton is installed, as it is with CUDA builds of torch."""
    return find_spec("triton") is not None
