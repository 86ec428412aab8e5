"""Copies from host memory to a device that do not wait for the device's queued work."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def on_device(values: np.ndarray | Tensor, device: torch.device | str) -> Tensor:
    """Return a copy of host values on a device; on the CPU, the values themselves.

    A GPU copy from pageable host memory first waits until the GPU has finished all queued work. A
    copy from pinned memory is queued behind the GPU's work, and the host continues at once.
    """
    tensor = values if isinstance(values, Tensor) else torch.from_numpy(values)
    place = torch.device(device)
    # Apple's mps devices share the host's memory, so copies need no pinned memory.
    if place.type in ("cpu", "mps"):
        return tensor.to(place)
    return tensor.pin_memory().to(place, non_blocking=True)
