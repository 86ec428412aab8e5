"""Triton kernels that import Triton at their first launch.

PyTorch for CUDA installs Triton, and other builds do not. A module of kernels must therefore load
without it: the kernels are plain functions until they are launched.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor

DTYPES = frozenset({torch.float32, torch.bfloat16, torch.float16})
"""Types of the tensors that kernels read and write. All arithmetic is in float32."""


class Kernel:
    """A Triton kernel. Calling it launches ``grid`` programs.

    varying: integer arguments that differ between most calls. Triton compiles a kernel again for
    an integer argument that is 1 or a multiple of 16, and these are excluded.
    """

    def __init__(self, function: Callable[..., None], varying: tuple[str, ...]) -> None:
        self.function = function
        self.varying = varying

    @cached_property
    def compiled(self) -> Any:
        """The function as Triton compiles it, or as its interpreter runs it."""
        import triton  # pyright: ignore[reportMissingImports]

        return triton.jit(self.source, do_not_specialize=list(self.varying))

    @property
    def source(self) -> Callable[..., None]:
        """The function, which finds Triton's language under the name ``tl``."""
        import triton.language  # pyright: ignore[reportMissingImports]

        inspect.unwrap(self.function).__globals__["tl"] = triton.language
        return self.function

    def __call__(self, grid: int, *arguments: Tensor | float | None, **sizes: Any) -> None:
        """Launch the kernel. sizes: its compile-time constants, and Triton's options."""
        device = next(one.device for one in arguments if isinstance(one, Tensor))
        if not grid:
            return
        # Triton launches on the current device, whatever the device of the tensors.
        if device.type == "cuda" and device.index != torch.cuda.current_device():
            with torch.cuda.device(device):
                self.compiled[(grid,)](*arguments, **sizes)
        else:
            self.compiled[(grid,)](*arguments, **sizes)


def kernel(*varying: str) -> Callable[[Callable[..., None]], Kernel]:
    """Return a decorator that makes a `Kernel` of a function."""
    return lambda function: Kernel(function, varying)


@cache
def has_triton() -> bool:
    """Return whether Triton is installed."""
    try:
        import triton  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ImportError:
        return False
    return True


def takes(*tensors: Tensor) -> bool:
    """Return whether kernels can run on these tensors: on CUDA, of one type in `DTYPES`."""
    first = tensors[0]
    same = all((one.device, one.dtype) == (first.device, first.dtype) for one in tensors)
    return same and first.is_cuda and first.dtype in DTYPES and has_triton()


def power_of_two(number: int) -> int:
    """Return the smallest power of two that is at least ``number``, the size of a block of a
    kernel."""
    return 1 << max(0, number - 1).bit_length()
