"""Accumulate the gradients of vocabulary-sized weights in place instead of allocating a tensor for
each.

A tied embedding receives two gradients: one from the input and one from the output head. Autograd
allocates both gradients and their sum before the optimizer reads the sum. With a vocabulary of 50
000, these three tensors are larger than all activations. With an accumulator, the backward pass
adds the gradients of the input and of the output head to one existing float32 tensor.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Accumulators = Callable[[Tensor], Tensor | None]
"""Map a parameter to its float32 gradient accumulator, or to None if it has no accumulator."""

PIECE = 2**18
"""Number of gradient elements that one addition on a CPU converts to the accumulator's type."""


def add_in_pieces(total: Tensor, term: Tensor) -> None:
    """Add the tensor ``term`` to the tensor ``total`` a few rows at a time.

    On a CPU, adding tensors of two types makes torch copy the narrower one in the wider type.
    Adding a few rows at a time limits the size of this converted copy. GPUs convert each element
    within the addition, so no operand is copied.
    """
    if total.device.type != "cpu":
        total.add_(term)
        return
    rows = max(1, PIECE // max(1, total[0].numel()))
    for part, whole in zip(term.split(rows), total.split(rows), strict=True):
        whole.add_(part)


def add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add ``left @ right`` to ``total``, for tensors on CUDA.

    On CUDA, the product is allocated separately only if cuBLAS cannot add it to a tensor of
    ``total``'s type.
    """
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    # torch adds 16-bit products in float32 (`out_dtype`) on CUDA only, not on ROCm.
    elif torch.version.cuda and total.dtype == torch.float32 and left.element_size() == 2:
        torch.addmm(total, left, right, out_dtype=torch.float32, out=total)
    else:
        total.add_(left @ right)
