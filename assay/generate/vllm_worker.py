"""What works in vLLM's own process: weights taken from shared memory, and held against the model.

vLLM makes `WeightReceiver` a base of its worker (``worker_extension_cls``).
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
"""Where a tensor is: its name, type and shape, the first byte and the number of bytes."""


class SharedMemory:
    """Memory of this machine that another process reads by its `path`; no file is left behind."""

    def __init__(self) -> None:
        self._file = os.memfd_create("assay-weights")
        self._bytes = torch.empty(0, dtype=torch.uint8)

    @property
    def path(self) -> str:
        """Where another process of the same user opens it."""
        return f"/proc/{os.getpid()}/fd/{self._file}"

    def write(self, tensors: Mapping[str, Tensor]) -> list[Place]:
        """Copy tensors, tied ones once; return where each is."""
        places: list[Place] = []
        begins: dict[Hashable, int] = {}
        end = 0
        for name, tensor in tensors.items():
            size = tensor.numel() * tensor.element_size()
            key = memory_of(tensor)
            if key not in begins:
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
        """Give it back."""
        os.close(self._file)


def view_of(memory: Tensor, place: Place) -> Tensor:
    """Return a tensor over memory."""
    _, kind, shape, begin, size = place
    return memory[begin : begin + size].view(getattr(torch, kind)).reshape(shape)


class WeightReceiver:
    """Methods that vLLM's worker gets."""

    def assay_load(self, path: str, places: Sequence[Place]) -> dict[str, Any]:
        """Load the weights that are in shared memory; return the hash of what was read, and the
        first of the model's own parameters that is something else, or ``""``.

        Only parameters that vLLM keeps under the same name can be compared: it fuses others, and
        packs them for a CPU.
        """
        with open(path, "rb") as file, warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of memory that cannot be written
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            memory = torch.frombuffer(mapped, dtype=torch.uint8)
        sent = {place[0]: view_of(memory, place) for place in places}
        worker: Any = self
        worker.reload_weights(weights_iterator=iter(sent.items()))
        return {"fingerprint": fingerprint(sent), "other": self.assay_other(sent)}

    def assay_other(self, sent: Mapping[str, Tensor]) -> str:
        """Return the name of a parameter that is not what was sent, or ``""``."""
        worker: Any = self
        for name, mine in worker.get_model().named_parameters():
            its = sent.get(name)
            if its is None or mine.shape[1:] != its.shape[1:] or len(mine) < len(its):
                continue
            if not torch.equal(mine[: len(its)].cpu(), its):  # an embedding may be padded
                return name
        return ""
