"""The small operations of a decoder layer as Triton kernels, each with one launch and one pass over
memory.

The arithmetic is in float32. The kernels round results at the same points as the tensor operations
of `assay.model.operations`. No Triton kernel here adds atomically, so results repeat bit for bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from assay.model.triton_jit import kernel, power_of_two

if TYPE_CHECKING:
    import triton.language as tl  # pyright: ignore[reportMissingImports]

Norm = tuple[Tensor, float]

TILE = 2048
"""Elements of several short rows that one program holds: 16 for each thread of four warps."""
STEPS = 8
"""Tiles whose contributions to a norm weight's gradient form one partial sum. A fixed number, so
that the sum does not depend on the device."""
GATED_BLOCK = 1024


@kernel("rows")
def norm_kernel(
    x,
    weight,
    out,
    rows,
    heads,
    token_stride,
    head_stride,
    epsilon,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
    ROWS: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, PADDED)
    inside = (row < rows)[:, None] & (column < SIZE)[None, :]
    start = (row // heads).to(tl.int64) * token_stride + (row % heads) * head_stride
    given = tl.load(x + start[:, None] + column[None, :], mask=inside, other=0.0).to(tl.float32)
    factor = tl.load(weight + column, mask=column < SIZE, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(given * given, 1) / SIZE + epsilon)
    # Transformers rounds the normalized values to the model's type before it applies the weight.
    normed = (given * scale[:, None]).to(out.dtype.element_ty).to(tl.float32)
    place = row.to(tl.int64)[:, None] * SIZE + column[None, :]
    tl.store(out + place, normed * factor[None, :], mask=inside)


@kernel("rows")
def norm_backward_kernel(
    grad,
    x,
    weight,
    grad_x,
    parts,
    rows,
    heads,
    grad_token_stride,
    grad_head_stride,
    token_stride,
    head_stride,
    epsilon,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
    ROWS: tl.constexpr,
    STEPS: tl.constexpr,
):
    program = tl.program_id(0)
    column = tl.arange(0, PADDED)
    factor = tl.load(weight + column, mask=column < SIZE, other=0.0).to(tl.float32)
    total = tl.zeros([ROWS, PADDED], dtype=tl.float32)
    for step in range(STEPS):
        row = (program * STEPS + step) * ROWS + tl.arange(0, ROWS)
        inside = (row < rows)[:, None] & (column < SIZE)[None, :]
        token, head = (row // heads).to(tl.int64), row % heads
        start = token * token_stride + head * head_stride
        given = tl.load(x + start[:, None] + column[None, :], mask=inside, other=0.0)
        start = token * grad_token_stride + head * grad_head_stride
        pull = tl.load(grad + start[:, None] + column[None, :], mask=inside, other=0.0)
        given, pull = given.to(tl.float32), pull.to(tl.float32)
        scale = tl.rsqrt(tl.sum(given * given, 1) / SIZE + epsilon)
        normed = given * scale[:, None]
        total += pull * normed
        pull = pull * factor[None, :]
        overlap = tl.sum(pull * normed, 1) / SIZE
        found = (pull - normed * overlap[:, None]) * scale[:, None]
        place = row.to(tl.int64)[:, None] * SIZE + column[None, :]
        tl.store(grad_x + place, found, mask=inside)
    # Each program stores a partial sum, because atomic additions would have no fixed order.
    tl.store(parts + program * SIZE + column, tl.sum(total, 0), mask=column < SIZE)


@kernel()
def gated_kernel(gate, up, out, count, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    x = tl.load(gate + place, mask=inside, other=0.0).to(tl.float32)
    # Like torch, the kernel rounds silu(gate) to the type of the tensors before the product.
    activated = (x / (1.0 + tl.exp(-x))).to(out.dtype.element_ty).to(tl.float32)
    factor = tl.load(up + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + place, activated * factor, mask=inside)


@kernel()
def gated_backward_kernel(grad, gate, up, product, grad_up, count, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    kind = grad.dtype.element_ty
    x = tl.load(gate + place, mask=inside, other=0.0).to(tl.float32)
    factor = tl.load(up + place, mask=inside, other=0.0).to(tl.float32)
    pull = tl.load(grad + place, mask=inside, other=0.0).to(tl.float32)
    share = 1.0 / (1.0 + tl.exp(-x))
    activated = (x * share).to(kind).to(tl.float32)
    tl.store(product + place, activated * factor, mask=inside)
    tl.store(grad_up + place, activated * pull, mask=inside)
    pull = (pull * factor).to(kind).to(tl.float32)
    tl.store(grad + place, pull * share * (1.0 + x * (1.0 - share)), mask=inside)


@kernel("rows")
def rotate_kernel(
    flat,
    cos,
    signed_sin,
    rows,
    heads,
    token_stride,
    head_stride,
    sign,
    HALF: tl.constexpr,
    PADDED: tl.constexpr,
    ROWS: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, PADDED)
    inside = (row < rows)[:, None] & (column < HALF)[None, :]
    kind = flat.dtype.element_ty
    token = (row // heads).to(tl.int64)
    start = token * token_stride + (row % heads) * head_stride
    place = start[:, None] + column[None, :]
    angle = (token * (2 * HALF))[:, None] + column[None, :]
    first = tl.load(flat + place, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(flat + place + HALF, mask=inside, other=0.0).to(tl.float32)
    own = tl.load(cos + angle, mask=inside, other=0.0).to(tl.float32)
    other = tl.load(signed_sin + angle, mask=inside, other=0.0).to(tl.float32) * sign
    # As in torch, the two products of the rotary embedding are rounded before their sum.
    turned = (first * own).to(kind).to(tl.float32) + (second * other).to(kind).to(tl.float32)
    tl.store(flat + place, turned, mask=inside)
    own = tl.load(cos + angle + HALF, mask=inside, other=0.0).to(tl.float32)
    other = tl.load(signed_sin + angle + HALF, mask=inside, other=0.0).to(tl.float32) * sign
    turned = (second * own).to(kind).to(tl.float32) + (first * other).to(kind).to(tl.float32)
    tl.store(flat + place + HALF, turned, mask=inside)


def norm(x: Tensor, norm: Norm) -> Tensor:
    """Return a root-mean-square norm over the last axis of [N, D] or [N, H, D]; the result is
    contiguous."""
    weight, epsilon = norm
    x, *strides = _by_rows(x)
    size, rows, heads = x.shape[-1], *_rows(x)
    out = x.new_empty(x.shape)
    tile = _tile(size)
    grid = -(-rows // tile["ROWS"])
    norm_kernel(grid, x, weight, out, rows, heads, *strides, epsilon, SIZE=size, **tile)
    return out


def norm_backward(grad: Tensor, x: Tensor, norm: Norm) -> tuple[Tensor, Tensor]:
    """Return the gradients of a norm's input and weight."""
    weight, epsilon = norm
    grad, *grad_strides = _by_rows(grad)
    x, *strides = _by_rows(x)
    size, rows, heads = x.shape[-1], *_rows(x)
    grad_x, tile = x.new_empty(x.shape), _tile(size)
    grid = -(-rows // (tile["ROWS"] * STEPS))
    parts = x.new_empty(grid, size, dtype=torch.float32)
    tensors = (grad, x, weight, grad_x, parts)
    counts = (rows, heads, *grad_strides, *strides)
    norm_backward_kernel(grid, *tensors, *counts, epsilon, SIZE=size, STEPS=STEPS, **tile)
    return grad_x, parts.sum(0).to(weight.dtype)


def gated(gate: Tensor, up: Tensor) -> Tensor:
    """Return silu(gate) * up."""
    gate, up = gate.contiguous(), up.contiguous()
    out = torch.empty_like(gate)
    grid = -(-gate.numel() // GATED_BLOCK)
    gated_kernel(grid, gate, up, out, gate.numel(), BLOCK=GATED_BLOCK)
    return out


def gated_backward(grad: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return silu(gate) * up and the gradients of gate and up; ``grad`` is overwritten with the
    gradient of gate."""
    grad, gate, up = grad.contiguous(), gate.contiguous(), up.contiguous()
    product, grad_up = torch.empty_like(gate), torch.empty_like(gate)
    grid = -(-gate.numel() // GATED_BLOCK)
    tensors = (grad, gate, up, product, grad_up)
    gated_backward_kernel(grid, *tensors, gate.numel(), BLOCK=GATED_BLOCK)
    return product, grad, grad_up


def rotate(heads: Tensor, cos: Tensor, signed_sin: Tensor, back: bool = False) -> None:
    """Apply the rotary embedding in place to heads [N, H, D] whose last axis is contiguous."""
    count, half = heads.shape[1], heads.shape[2] // 2
    rows, padded = len(heads) * count, power_of_two(half)
    at_once = max(1, TILE // padded)
    rotate_kernel(
        *(-(-rows // at_once), heads, cos.contiguous(), signed_sin.contiguous(), rows, count),
        *(heads.stride(0), heads.stride(1), -1.0 if back else 1.0),
        # Fused multiply-adds would skip the rounding of a product, so they are off.
        **{"HALF": half, "PADDED": padded, "ROWS": at_once, "enable_fp_fusion": False},
    )


def _by_rows(x: Tensor) -> tuple[Tensor, int, int]:
    """Return a tensor whose last axis is contiguous, and its strides for tokens and heads."""
    if x.stride(-1) != 1:
        x = x.contiguous()
    return x, x.stride(0), x.stride(1) if x.dim() == 3 else 0


def _rows(x: Tensor) -> tuple[int, int]:
    """Return the number of vectors along the last axis, and the number of vectors (heads) per
    token.
    """
    heads = x.shape[1] if x.dim() == 3 else 1
    return len(x) * heads, heads


def _tile(size: int) -> dict[str, int]:
    """Return the padded row size, the rows per block and the number of warps of a kernel
    program."""
    padded = power_of_two(size)
    rows = max(1, TILE // padded)
    return {"PADDED": padded, "ROWS": rows, "num_warps": min(16, max(4, padded // 1024))}
