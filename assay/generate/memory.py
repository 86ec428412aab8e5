"""The default memory limit of the key-value cache."""

from __future__ import annotations

from bisect import bisect_left

import torch

from assay.generate.kv_cache import KeyValues, Room
from assay.host.accelerator import device_memory_mib
from assay.host.machine import memory_mib

# Assumed memory in MiB if the system reports none.
UNTOLD_MIB = 8192.0


def default_kv_mib(device: torch.device) -> float:
    """Return a quarter of the device's memory, or a quarter of the container's memory limit."""
    # The limit depends on total memory, not on free memory, which may differ when a run resumes.
    own = None if device.type == "cpu" else device_memory_mib(device)
    return (own[1] if own else memory_mib() or UNTOLD_MIB) / 4


def num_that_fit(cache: KeyValues, room: Room, num_slots: int, multiple: int, kv_mib: float) -> int:
    """Return how many of ``num_slots`` slots fit in ``kv_mib`` together with the current prompt.

    The result is a multiple of ``multiple``, or less than ``multiple`` if no more slots fit.
    """

    def fits(number: int) -> bool:
        tokens = cache.num_tokens(number, room) + cache.prompt_tokens(room)
        return tokens * cache.bytes_per_token <= kv_mib * 2**20

    for step in (multiple, 1):
        counts = range(1, num_slots // step + 1)
        most = bisect_left(counts, True, key=lambda count: not fits(count * step))
        if most:
            return most * step
        num_slots = min(num_slots, multiple)
    return 0
