"""Copies from host memory to a device, without waiting for the queued work of the device."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def on_device(values: np.ndarray | Tensor, device: torch.device | str) -> Tensor:
    """Return a copy of host values on a device; for the CPU, return the values themselves.

    A copy to a GPU from pageable memory waits until the GPU has finished all queued work. A copy
    from pinned memory is queued behind the work of the GPU, and the host continues at once.
    """
    tensor = values if isinstance(values, Tensor) else torch.from_numpy(values)
    place = torch.device(device)
    # Apple's mps devices share memory with the host, so copies need no pinned memory.
    if place.type in ("cpu", "mps"):
        return tensor.to(place)
    return tensor.pin_memory().to(place, non_blocking=True)
