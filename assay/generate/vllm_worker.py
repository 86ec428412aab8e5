"""Code in vLLM's process: load weights from shared memory and compare them with the model.

vLLM adds `WeightReceiver` to its worker's base classes (``worker_extension_cls``).
"""

from __future__ import annotations

import mmap
import os
import warnings
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from assay.model.weights import fingerprint, memory_of

Place = tuple[str, str, list[int], int, int]
"""A tensor's location: name, type, shape, first byte and number of bytes."""


class SharedMemory:
    """Shared memory that another process on this machine opens by its `path`."""

    def __init__(self) -> None:
        # The memory is a memfd, because a killed process leaves no file of a memfd behind.
        self._file = os.memfd_create("assay-weights")
        self._bytes = torch.empty(0, dtype=torch.uint8)

    @property
    def path(self) -> str:
        """Path by which another process of the same user opens the shared memory."""
        return f"/proc/{os.getpid()}/fd/{self._file}"

    def write(self, tensors: Mapping[str, Tensor]) -> list[Place]:
        """Copy tensors into the memory, tied tensors only once; return the tensors' locations."""
        places: list[Place] = []
        begins: dict[Hashable, int] = {}
        end = 0
        for name, tensor in tensors.items():
            size = tensor.numel() * tensor.element_size()
            key = memory_of(tensor)
            if key not in begins:
                # The location is aligned, because a view of bytes as another dtype needs an aligned
                # start.
                begins[key], end = end, end + -(-size // 64) * 64
            kind = str(tensor.dtype).removeprefix("torch.")
            places.append((name, kind, list(tensor.shape), begins[key], size))
        if len(self._bytes) < end:
            os.ftruncate(self._file, end)
            self._bytes = torch.frombuffer(mmap.mmap(self._file, end), dtype=torch.uint8)
        for place, tensor in zip(places, tensors.values(), strict=True):
            view_of(self._bytes, place).copy_(tensor.detach())
        return places

    def close(self) -> None:
        """Free the memory."""
        os.close(self._file)


def view_of(memory: Tensor, place: Place) -> Tensor:
    """Return a tensor view of the memory."""
    _, kind, shape, begin, size = place
    return memory[begin : begin + size].view(getattr(torch, kind)).reshape(shape)


class WeightReceiver:
    """Methods that vLLM adds to its worker class, so that the engine can call them."""

    def assay_load(self, path: str, places: Sequence[Place]) -> dict[str, Any]:
        """Load weights from shared memory.

        Return the weights' hash, and the name of the first model parameter that differs, or ``""``.
        Only parameters with equal names are compared, because vLLM fuses or packs all others.
        """
        with open(path, "rb") as file, warnings.catch_warnings():
            # torch warns about read-only memory, but vLLM only reads the mapped tensors.
            warnings.simplefilter("ignore", UserWarning)
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            memory = torch.frombuffer(mapped, dtype=torch.uint8)
        sent = {place[0]: view_of(memory, place) for place in places}
        worker: Any = self
        worker.reload_weights(weights_iterator=iter(sent.items()))
        return {"fingerprint": fingerprint(sent), "other": self.assay_other(sent)}

    def assay_other(self, sent: Mapping[str, Tensor]) -> str:
        """Return the name of a parameter that differs from the sent tensor, or ``""``."""
        worker: Any = self
        for name, mine in worker.get_model().named_parameters():
            its = sent.get(name)
            if its is None or mine.shape[1:] != its.shape[1:] or len(mine) < len(its):
                continue
            # vLLM's embedding may have additional rows of padding, which are not compared.
            if not torch.equal(mine[: len(its)].cpu(), its):
                return name
        return ""
