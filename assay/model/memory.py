"""The error that names the setting to lower, whatever device ran out of memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from assay.errors import OutOfMemory


@contextmanager
def out_of_memory_names(setting: str, doing: str = "the update") -> Iterator[None]:
    """Turn running out of memory, on any device, into OutOfMemory that names ``setting``."""
    try:
        yield
    except OutOfMemory:
        raise
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not _ran_out(error):
            raise
        reason = str(error).strip().split("\n")[0].split(". ")[0]
        raise OutOfMemory(f"memory ran out in {doing} ({reason}); lower {setting}") from error


def _ran_out(error: RuntimeError) -> bool:
    """The CPU allocator raises a plain RuntimeError."""
    text = str(error)
    return isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator" in text
