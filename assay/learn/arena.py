"""Room for a tensor beside each parameter, all of one kind in one block of memory."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

ALIGNMENT = 64  # elements: no two tensors share a cache line


class Arena:
    """Gives each parameter a zeroed contiguous tensor of its shape, cut from one block a device.

    A block is made when it is first asked for. The system hands out a large block page by page as
    it is written and takes it back whole, where hundreds of tensors made in turn with activations
    would leave holes that memory for other things is added beside.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], dtype: torch.dtype) -> None:
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
        """Return the tensor of one parameter: the same memory whenever it is asked for."""
        device, first = self._places[name]
        if device not in self._blocks:
            size = self._sizes[device]
            self._blocks[device] = torch.zeros(size, dtype=self.dtype, device=device)
        shape = self._shapes[name]
        return self._blocks[device][first : first + shape.numel()].view(shape)

    def drop(self) -> None:
        """Free the memory after the last tensor of it is released."""
        self._blocks.clear()
