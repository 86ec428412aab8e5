"""Reuse of freed memory, and out-of-memory errors that name the setting to lower."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch

from assay.errors import OutOfMemory

# Parameter numbers in glibc's malloc.h.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
# Older glibc releases reject a threshold above 32 MiB.
KEPT_BLOCK_MIB = (256, 32)
KEPT_MIB = 256
MUCH_MIB = 256


@cache
def keep_freed_memory() -> bool:
    """Make malloc reuse freed memory instead of returning it to the system; return whether it does.

    By default glibc returns every block above 32 MiB, and free memory at the end of the heap, to
    the system immediately. A new allocation then maps and zeroes the memory again page by page,
    which took as long as the arithmetic of some operations. This call raises the threshold to 256
    MiB.

    Has an effect only on Linux with glibc, and only if the environment does not set these two
    thresholds (``GLIBC_TUNABLES``, ``MALLOC_TRIM_THRESHOLD_``, ``MALLOC_MMAP_THRESHOLD_``).
    """
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    if "malloc.trim_threshold" in tunables or "malloc.mmap_threshold" in tunables:
        return False
    if {
        "MALLOC_TRIM_THRESHOLD_",
        "MALLOC_MMAP_THRESHOLD_",
    } & set(os.environ):
        return False
    try:
        libc = ctypes.CDLL(None)
        libc.gnu_get_libc_version  # noqa: B018 (mallopt of another library means other numbers)
        mallopt = libc.mallopt
    except (OSError, TypeError, AttributeError):
        return False
    # Use the first accepted value. Setting only the trim threshold would freeze the mmap threshold
    # at 128 KiB.
    # Larger blocks (optimizer state, gradients) are still mapped separately, because in the heap
    # they would leave large holes that no other allocation fills.
    kept = any(mallopt(M_MMAP_THRESHOLD, mib << 20) for mib in KEPT_BLOCK_MIB)
    return kept and bool(mallopt(M_TRIM_THRESHOLD, KEPT_MIB << 20))


class _Mallinfo(ctypes.Structure):
    """glibc's struct mallinfo2; ``fordblks`` is the free memory in the heap, in bytes."""

    _fields_ = (
        ("others", ctypes.c_size_t * 8),
        ("fordblks", ctypes.c_size_t),
        ("keepcost", ctypes.c_size_t),
    )


def return_freed_memory() -> bool:
    """Return the freed memory that malloc retains to the system if it is large; return whether it
    was.

    Call it between two phases of a step. Otherwise memory that generation has freed would add to
    the peak of the update.
    """
    if not keep_freed_memory():
        return False
    libc = ctypes.CDLL(None)
    try:
        libc.mallinfo2.restype = _Mallinfo
        if libc.mallinfo2().fordblks < MUCH_MIB << 20:
            return False
    except AttributeError:
        # glibc before 2.33 has no mallinfo2.
        pass
    return bool(libc.malloc_trim(0))


@contextmanager
def out_of_memory_names(setting: str, doing: str = "the update") -> Iterator[None]:
    """Convert any device's out-of-memory error to OutOfMemory with a message that names
    ``setting``."""
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
    """Return whether an error means out of memory.

    The CPU allocator raises a plain RuntimeError, which only its text identifies.
    """
    text = str(error)
    return isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator" in text
