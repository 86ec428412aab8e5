"""Triton kernels that import Triton only at their first launch.

PyTorch builds for CUDA install Triton, whereas other PyTorch builds do not. Without Triton, a
module of kernels must still be importable, so kernels are plain functions until their first launch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    import triton.language as tl  # pyright: ignore[reportMissingImports]

DTYPES = frozenset({torch.float32, torch.bfloat16, torch.float16})
"""Types of the tensors that kernels read and write. All arithmetic is in float32."""


class Kernel:
    """A Triton kernel.

    Calling a kernel object launches a grid of programs; other kernels may also call the object.

    varying: names of integer arguments whose value differs between most calls. Triton compiles a
    separate kernel if an integer argument is 1 or a multiple of 16. For arguments in ``varying``,
    Triton compiles no separate kernels.
    """

    def __init__(self, function: Callable[..., None], varying: tuple[str, ...]) -> None:
        self.function = function
        self.varying = varying

    @cached_property
    def compiled(self) -> Any:
        """The kernel function, as Triton compiles it or as Triton's interpreter runs it."""
        import triton  # pyright: ignore[reportMissingImports]

        return triton.jit(self.source, do_not_specialize=list(self.varying))

    @property
    def source(self) -> Callable[..., None]:
        """The kernel function, with Triton's language as the global name ``tl``."""
        import triton.language  # pyright: ignore[reportMissingImports]

        module = self.function.__globals__
        module["tl"] = triton.language
        # Triton finds the kernels that a kernel calls by their global names.
        for name in self.function.__code__.co_names:
            if isinstance(inner := module.get(name), Kernel):
                module[name] = inner.compiled
        return self.function

    def __call__(
        self, grid: int | tuple[int, ...], *arguments: Tensor | float | None, **sizes: Any
    ) -> None:
        """Launch the kernel.

        grid: number of programs along each axis. sizes: compile-time constants of the kernel, and
        options of Triton.
        """
        grid = grid if isinstance(grid, tuple) else (grid,)
        device = next(one.device for one in arguments if isinstance(one, Tensor))
        # CUDA rejects an empty grid, so a kernel with an empty grid is not launched.
        if not all(grid):
            return
        # Triton launches on the current device, so the tensors' device becomes the current device.
        if device.type == "cuda" and device.index != torch.cuda.current_device():
            with torch.cuda.device(device):
                self.compiled[grid](*arguments, **sizes)
        else:
            self.compiled[grid](*arguments, **sizes)


def kernel(*varying: str) -> Callable[[Callable[..., None]], Kernel]:
    """Return a decorator that converts a function to a `Kernel`."""
    return lambda function: Kernel(function, varying)


LEAST_CAPABILITY = (8, 0)
"""Older devices have no bfloat16."""


@kernel()
def probe_kernel(out, SIZE: tl.constexpr):
    tl.store(out + tl.arange(0, SIZE), tl.arange(0, SIZE) + 1.0)


@cache
def fault_on(device: int) -> str | None:
    """Return the reason why kernels do not compile or run on a CUDA device; None if they work."""
    if torch.version.cuda is None:
        return "PyTorch is not built for CUDA"
    if torch.cuda.get_device_capability(device) < LEAST_CAPABILITY:
        return "the device is older than compute capability 8.0"
    found = torch.zeros(4, device=f"cuda:{device}")
    try:
        probe_kernel(1, found, SIZE=4)
    except Exception as error:  # Triton calls a C compiler, which may raise any exception.
        return str(error).strip().split("\n")[0]
    return None if found.tolist() == [1.0, 2.0, 3.0, 4.0] else "a kernel writes wrong numbers"


def takes(*tensors: Tensor) -> bool:
    """Return whether kernels can process these tensors: on CUDA, and all of one type in
    `DTYPES`."""
    first = tensors[0]
    same = all((one.device, one.dtype) == (first.device, first.dtype) for one in tensors)
    return same and first.is_cuda and first.dtype in DTYPES and fault_on(first.device.index) is None


def power_of_two(number: int) -> int:
    """Return the smallest power of two that is at least ``number``. Triton requires blocks whose
    sizes are powers of two."""
    return 1 << max(0, number - 1).bit_length()
