"""Memory for optimizer tensors: one block per device, with one tensor per parameter."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

# In elements.
# Tensors whose offsets are multiples of this number never share a cache line.
ALIGNMENT = 64


class Arena:
    """Allocates one zeroed contiguous tensor per parameter, from one memory block per device.

    A memory block is allocated when its first tensor is needed. The operating system commits a
    large block page by page when it is written, and reclaims it whole. Hundreds of separate
    tensors, interleaved with activations, would fragment memory.
    """

    def __init__(self, parameters: Mapping[str, Tensor], dtype: torch.dtype) -> None:
        self.dtype = dtype
        self._shapes = {name: parameter.shape for name, parameter in parameters.items()}
        self._places: dict[str, tuple[torch.device, int]] = {}
        self._sizes: dict[torch.device, int] = {}
        self._blocks: dict[torch.device, Tensor] = {}
        for name, parameter in parameters.items():
            first = self._sizes.get(parameter.device, 0)
            self._places[name] = parameter.device, first
            room = -(-parameter.numel() // ALIGNMENT) * ALIGNMENT
            self._sizes[parameter.device] = first + room

    def take(self, name: str) -> Tensor:
        """Return the tensor that belongs to one parameter. Repeated calls with the same name return
        the same memory."""
        device, first = self._places[name]
        if device not in self._blocks:
            size = self._sizes[device]
            self._blocks[device] = torch.zeros(size, dtype=self.dtype, device=device)
        shape = self._shapes[name]
        return self._blocks[device][first : first + shape.numel()].view(shape)

    def drop(self) -> None:
        """Drop the blocks. The memory of a block is freed once its last tensor is released."""
        self._blocks.clear()
