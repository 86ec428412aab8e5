"""Reuse of freed memory, and out-of-memory errors that name the setting to lower."""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch

from assay.errors import OutOfMemory

# Parameter numbers in glibc's malloc.h.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
# Older glibc releases reject a threshold above 32 MiB.
KEPT_BLOCK_MIB = (256, 32)
KEPT_MIB = 256
MUCH_MIB = 256
# Growth of resident memory from one micro-batch to later ones at which its holes are returned.
MUCH_GROWN = 1.1
# Kernels that oneDNN caches, one for each shape of a product. Its own limit is 1024. A micro-batch
# needs about 100, and the layers after the first use them again; a limit below that number would
# build them again in every layer.
NUM_KERNELS = 512
# Measured with bfloat16 (AMX): 0.6 MiB in the cache, and code that oneDNN never frees.
KERNEL_MIB = 1.1
KERNEL_SETTINGS = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "DNNL_PRIMITIVE_CACHE_CAPACITY")


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


def bound_kernel_cache() -> None:
    """Limit the kernels that oneDNN caches, unless the environment sets a limit.

    Rectangles of a micro-batch differ in shape from step to step, so the cache fills up within some
    steps. oneDNN reads the limit before its first kernel, so a later call has no effect.
    """
    if not any(name in os.environ for name in KERNEL_SETTINGS):
        os.environ[KERNEL_SETTINGS[0]] = str(NUM_KERNELS)


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


def _resident_mib() -> float:
    """Return this process's resident memory; 0 where it is unknown."""
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    # Not Linux.
    except OSError:
        return 0.0
    return int(pages) * os.sysconf("SC_PAGE_SIZE") / 2**20


class Holes:
    """Returns freed activations to the system where the next micro-batch would not fit into them.

    Gradients and cached kernels are allocated between activations, and stay. The freed memory
    between them is too short for the tensors of a larger micro-batch, and would add to its peak.
    Where micro-batches fit, the memory is used again: to map it anew takes some 3 % of an update.
    """

    def __init__(self) -> None:
        self._largest = 0
        # Resident MiB after the first micro-batch since memory was returned.
        self._expected = math.inf

    def prepare_for(self, num_tokens: int) -> None:
        """Return freed memory before a micro-batch that is the largest so far, or if resident
        memory has grown since memory was returned last."""
        resident = _resident_mib()
        if num_tokens > self._largest or resident > MUCH_GROWN * self._expected:
            return_freed_memory()
            self._largest, self._expected = max(num_tokens, self._largest), math.inf
        elif math.isinf(self._expected):
            self._expected = resident


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

    The CPU allocator, Triton and the capture of graphs raise a plain RuntimeError, which only its
    text identifies.
    """
    text = str(error)
    known = "DefaultCPUAllocator" in text or "out of memory" in text
    return isinstance(error, torch.OutOfMemoryError) or known
