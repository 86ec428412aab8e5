"""Make malloc reuse freed memory, and raise out-of-memory errors that name the setting to lower."""

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

# Numbers of two parameters of `mallopt`, from glibc's malloc.h.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
# Older glibc releases reject thresholds above 32 MiB, so several thresholds are tried in order.
KEPT_BLOCK_MIB = (256, 32)
KEPT_MIB = 256
MUCH_MIB = 256
# Freed activations are released to the system if resident memory grows by this factor.
MUCH_GROWN = 1.1
# Maximum number of kernels in the cache of oneDNN, which has one kernel per matrix shape.
# oneDNN's default limit of 1024 cached kernels can occupy 1.1 GiB (1024 x `KERNEL_MIB`).
# A micro-batch needs about 100 kernels, and all layers share these kernels.
# If the cache had fewer than 100 kernels, every layer would compile its kernels again.
NUM_KERNELS = 512
# Memory of one cached oneDNN kernel in MiB, measured with bfloat16 on AMX.
# Only 0.6 MiB of a kernel are in the cache; the rest is code that oneDNN never frees.
KERNEL_MIB = 1.1
KERNEL_SETTINGS = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "DNNL_PRIMITIVE_CACHE_CAPACITY")


@cache
def keep_freed_memory() -> bool:
    """Make malloc keep freed memory for reuse; return whether glibc accepted the thresholds.

    By default, glibc immediately returns blocks above 32 MiB, and free memory at the end of the
    heap, to the system. After a return to the system, a new allocation maps and zeroes the memory
    page by page, which took as long as the arithmetic of some operations. The function
    `keep_freed_memory` raises both thresholds of glibc for returning memory to 256 MiB.

    The thresholds change only on Linux with glibc, and only if no environment variable sets them
    (``GLIBC_TUNABLES``, ``MALLOC_TRIM_THRESHOLD_``, ``MALLOC_MMAP_THRESHOLD_``).
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
    # If only the trim threshold were set, glibc would fix its mmap threshold at 128 KiB.
    # Blocks above the mmap threshold (optimizer state, gradients) stay outside the heap.
    # Inside the heap, such large blocks would leave holes after being freed that nothing fills.
    kept = any(mallopt(M_MMAP_THRESHOLD, mib << 20) for mib in KEPT_BLOCK_MIB)
    return kept and bool(mallopt(M_TRIM_THRESHOLD, KEPT_MIB << 20))


def bound_kernel_cache() -> None:
    """Limit the number of kernels that oneDNN caches, unless an environment variable sets a limit.

    The shapes of a micro-batch change from step to step, so oneDNN's kernel cache fills up within a
    few steps. oneDNN reads the limit before it compiles its first kernel, so a later call has no
    effect.
    """
    if not any(name in os.environ for name in KERNEL_SETTINGS):
        os.environ[KERNEL_SETTINGS[0]] = str(NUM_KERNELS)


class _Mallinfo(ctypes.Structure):
    """The struct mallinfo2 of glibc; ``fordblks`` is the free memory in the heap, in bytes."""

    _fields_ = (
        ("others", ctypes.c_size_t * 8),
        ("fordblks", ctypes.c_size_t),
        ("keepcost", ctypes.c_size_t),
    )


def return_freed_memory() -> bool:
    """Release malloc's free heap memory to the system if it is more than `MUCH_MIB`; return whether
    pages were released.

    Call this function between generation and update: memory that generation freed then does not add
    to the peak of the update.
    """
    if not keep_freed_memory():
        return False
    libc = ctypes.CDLL(None)
    try:
        libc.mallinfo2.restype = _Mallinfo
        if libc.mallinfo2().fordblks < MUCH_MIB << 20:
            return False
    except AttributeError:
        # glibc has the function mallinfo2 only since version 2.33.
        pass
    return bool(libc.malloc_trim(0))


def _resident_mib() -> float:
    """Return the resident memory of this process in MiB; 0 if the system does not report it."""
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    # Only Linux has /proc/self/statm.
    except OSError:
        return 0.0
    return int(pages) * os.sysconf("SC_PAGE_SIZE") / 2**20


class Holes:
    """Releases freed activations to the system if the next micro-batch would not fit into freed
    memory.

    Gradients and cached kernels stay allocated between the freed activations. The gaps between
    gradients and kernels are too small for the tensors of a larger micro-batch, which would need
    new memory in addition. For a micro-batch that fits into the freed memory, the memory is reused,
    because mapping memory again takes about 3 % of an update.
    """

    def __init__(self) -> None:
        self._largest = 0
        # Resident MiB after the first micro-batch since the last release; infinite before it.
        self._expected = math.inf

    def prepare_for(self, num_tokens: int) -> None:
        """Release freed memory if this micro-batch is the largest so far, or if resident memory has
        grown by the factor `MUCH_GROWN` since the last release."""
        resident = _resident_mib()
        if num_tokens > self._largest or resident > MUCH_GROWN * self._expected:
            return_freed_memory()
            self._largest, self._expected = max(num_tokens, self._largest), math.inf
        elif math.isinf(self._expected):
            self._expected = resident


@contextmanager
def out_of_memory_names(setting: str, doing: str = "the update") -> Iterator[None]:
    """Convert the out-of-memory error of any device to OutOfMemory, with a message that names
    ``setting``."""
    try:
        yield
    # A `with` block inside this one has already named the setting to lower.
    except OutOfMemory:
        raise
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not _ran_out(error):
            raise
        reason = str(error).strip().split("\n")[0].split(". ")[0]
        raise OutOfMemory(f"memory ran out in {doing} ({reason}); lower {setting}") from error


def _ran_out(error: RuntimeError) -> bool:
    """Return whether an exception reports that memory ran out.

    The CPU allocator, Triton and the capture of CUDA graphs raise a plain RuntimeError if memory
    runs out. Only the text of such a RuntimeError shows that memory ran out.
    """
    text = str(error)
    known = "DefaultCPUAllocator" in text or "out of memory" in text
    return isinstance(error, torch.OutOfMemoryError) or known
