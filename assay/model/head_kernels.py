"""Statistics and gradient of the output head, as Triton kernels on raw logits [B, V].

The tensor operations of the output head make float32 copies of the logits, and about ten passes
over memory. The Triton kernels of the output head make two passes: one reads the logits, one
overwrites the logits with their gradient. The raw logits are the only tensor of shape [B, V].
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from assay.model.triton_jit import kernel, power_of_two

if TYPE_CHECKING:
    import triton.language as tl  # pyright: ignore[reportMissingImports]

BLOCK = 4096
"""Logits that a program holds at one time: 16 for each thread of eight warps."""
NUM_WARPS = 8


@kernel()
def statistics_kernel(
    raw,
    tokens,
    logprobs,
    entropy,
    normalizer,
    factor,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    start = raw + row * COLUMNS
    # The kernel computes an online softmax, with m the largest scaled logit z so far.
    # `total` sums exp(z - m); `slope` sums exp(z - m) (z - m), which gives the entropy.
    # The maximum m starts at a finite number, because -inf would make the first products NaN.
    highest = -3.0e38
    total = tl.zeros([BLOCK], dtype=tl.float32)
    slope = tl.zeros([BLOCK], dtype=tl.float32)
    for first in range(0, COLUMNS, BLOCK):
        column = first + tl.arange(0, BLOCK)
        given = tl.load(start + column, mask=column < COLUMNS, other=-float("inf"))
        scaled = given.to(tl.float32) * factor
        before = highest
        highest = tl.maximum(before, tl.max(scaled, 0))
        shrink = tl.exp(before - highest)
        shifted = scaled - highest
        share = tl.exp(shifted)
        # x exp(x) tends to 0 as x falls, but the product of -inf and 0 would be NaN.
        product = tl.where(share > 0.0, shifted, 0.0) * share
        slope = (slope + total * (before - highest)) * shrink + product
        total = total * shrink + share
    weight = tl.sum(total, 0)
    spread = tl.log(weight)
    found = highest + spread
    token = tl.load(tokens + row)
    chosen = tl.load(start + token).to(tl.float32) * factor
    tl.store(normalizer + row, found)
    tl.store(entropy + row, spread - tl.sum(slope, 0) / weight)
    tl.store(logprobs + row, chosen - found)


@kernel()
def gradient_kernel(
    raw,
    tokens,
    normalizer,
    entropy,
    gains,
    entropy_gains,
    factor,
    COLUMNS: tl.constexpr,
    HAS_ENTROPY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    blocks: tl.constexpr = (COLUMNS + BLOCK - 1) // BLOCK
    row = (tl.program_id(0) // blocks).to(tl.int64)
    column = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    place = raw + row * COLUMNS + column
    inside = column < COLUMNS
    scaled = tl.load(place, mask=inside, other=0.0).to(tl.float32) * factor
    gain = tl.load(gains + row)
    surprise = scaled - tl.load(normalizer + row)
    share = tl.exp(surprise)
    pull = share * gain
    if HAS_ENTROPY:
        surprise = tl.where(share > 0.0, surprise + tl.load(entropy + row), 0.0)
        pull = (surprise * tl.load(entropy_gains + row) + gain) * share
    found = tl.where(column == tl.load(tokens + row), gain - pull, -pull)
    tl.store(place, found * factor, mask=inside)


def statistics(raw_BV: Tensor, tokens_B: Tensor, factor: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return log p(token), the entropy of p, and the logarithm of p's normalizer, [B] float32.

    p = softmax(factor raw).
    """
    size, columns = raw_BV.shape
    found_NB = raw_BV.new_empty((3, size), dtype=torch.float32)
    logprobs_B, entropy_B, normalizer_B = found_NB.unbind()
    block = min(BLOCK, power_of_two(columns))
    statistics_kernel(
        *(size, raw_BV, tokens_B, logprobs_B, entropy_B, normalizer_B, factor),
        **{"COLUMNS": columns, "BLOCK": block, "num_warps": NUM_WARPS},
    )
    return logprobs_B, entropy_B, normalizer_B


def write_gradient(
    raw_BV: Tensor,
    tokens_B: Tensor,
    normalizer_B: Tensor,
    entropy_B: Tensor,
    gain_B: Tensor,
    entropy_gain_B: Tensor | None,
    factor: float,
) -> None:
    """Overwrite raw logits with the gradient of a loss.

    gain_B, entropy_gain_B: gradients of the loss by log p(token) and by the entropy, in float32.
    The kernels use the same equation as the tensor operations in `assay.model.head`.
    """
    size, columns = raw_BV.shape
    block = min(BLOCK, power_of_two(columns))
    blocks = -(-columns // block)
    entropy_gains = gain_B if entropy_gain_B is None else entropy_gain_B
    gradient_kernel(
        *(size * blocks, raw_BV, tokens_B, normalizer_B, entropy_B, gain_B, entropy_gains, factor),
        **{"COLUMNS": columns, "HAS_ENTROPY": entropy_gain_B is not None},
        **{"BLOCK": block, "num_warps": NUM_WARPS},
    )
