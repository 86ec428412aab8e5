"""Reuse freed memory, and raise out-of-memory errors that name the setting to lower."""

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

# Numbers of two `mallopt` parameters in glibc's malloc.h.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
# The thresholds are tried in order, because older glibc releases reject more than 32 MiB.
KEPT_BLOCK_MIB = (256, 32)
KEPT_MIB = 256
MUCH_MIB = 256
# Growth factor of resident memory at which freed activations are released to the system.
MUCH_GROWN = 1.1
# Maximum number of kernels in oneDNN's cache, which holds one kernel per product shape.
# oneDNN's default limit of 1024 cached kernels can occupy 1.1 GiB (1024 x `KERNEL_MIB`).
# A micro-batch needs about 100 kernels, and all layers share these kernels.
# With fewer than 100 cached kernels, every layer would compile its kernels again.
NUM_KERNELS = 512
# Memory of one cached kernel in MiB, measured with bfloat16 on AMX.
# The cache holds 0.6 MiB of each kernel; the remaining memory is code that oneDNN never frees.
KERNEL_MIB = 1.1
KERNEL_SETTINGS = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "DNNL_PRIMITIVE_CACHE_CAPACITY")


@cache
def keep_freed_memory() -> bool:
    """Make malloc keep freed memory for reuse; return whether the setting took effect.

    By default glibc returns every block above 32 MiB, and free memory at the end of the heap, to
    the system immediately. After a release, a new allocation maps and zeroes the memory page by
    page, which took as long as the arithmetic of some operations. The function `keep_freed_memory`
    raises glibc's two thresholds for returning memory to 256 MiB.

    The function has an effect only on Linux with glibc, and only if no environment variable sets a
    threshold (``GLIBC_TUNABLES``, ``MALLOC_TRIM_THRESHOLD_``, ``MALLOC_MMAP_THRESHOLD_``).
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
    # Setting the trim threshold alone would freeze glibc's mmap threshold at 128 KiB.
    # Blocks above the mmap threshold, such as optimizer state and gradients, stay outside the heap.
    # Inside the heap, freed blocks above the mmap threshold would leave holes that nothing else
    # fills.
    kept = any(mallopt(M_MMAP_THRESHOLD, mib << 20) for mib in KEPT_BLOCK_MIB)
    return kept and bool(mallopt(M_TRIM_THRESHOLD, KEPT_MIB << 20))


def bound_kernel_cache() -> None:
    """Limit the number of kernels that oneDNN caches, unless an environment variable sets a limit.

    The rectangles of a micro-batch differ in shape from step to step, so the kernel cache fills up
    within a few steps. oneDNN reads the limit before its first kernel, so a later call has no
    effect.
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
    """Release malloc's free heap memory to the system if it exceeds `MUCH_MIB`; return whether
    pages were released.

    Call this function between two phases of a step, so that memory that generation has freed does
    not add to the update's peak memory.
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
    """Return this process's resident memory in MiB; 0 if the system does not report it."""
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    # Only Linux has /proc/self/statm.
    except OSError:
        return 0.0
    return int(pages) * os.sysconf("SC_PAGE_SIZE") / 2**20


class Holes:
    """Releases freed activations to the system if the next micro-batch would not fit into the freed
    memory.

    Gradients and cached kernels stay allocated between the activations. The freed gaps between
    gradients and kernels are too small for a larger micro-batch's tensors, so the tensors would
    need new memory in addition to the gaps. If a micro-batch fits into the freed memory, the memory
    is reused, because mapping memory again takes about 3 % of an update.
    """

    def __init__(self) -> None:
        self._largest = 0
        # Resident MiB after the first micro-batch that follows a release; infinite until then.
        self._expected = math.inf

    def prepare_for(self, num_tokens: int) -> None:
        """Release freed memory if the micro-batch is the largest so far, or if resident memory has
        grown by the factor `MUCH_GROWN` since the last release."""
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
    # An inner `with` block has already named the setting to lower.
    except OutOfMemory:
        raise
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not _ran_out(error):
            raise
        reason = str(error).strip().split("\n")[0].split(". ")[0]
        raise OutOfMemory(f"memory ran out in {doing} ({reason}); lower {setting}") from error


def _ran_out(error: RuntimeError) -> bool:
    """Return whether an error reports that memory ran out.

    The CPU allocator, Triton and CUDA graph capture raise a plain RuntimeError. Only the text of
    the exception shows that memory ran out.
    """
    text = str(error)
    known = "DefaultCPUAllocator" in text or "out of memory" in text
    return isinstance(error, torch.OutOfMemoryError) or known
