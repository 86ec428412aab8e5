"""Triton kernels of a decoding step: norms, gates, rotary embedding and decoding attention.

Every sum has a fixed order and a fixed shape that does not depend on the number of rows or on the
extent of the step. A completion's bits are therefore independent of the rest of the batch.
Arithmetic is in float32. Results are rounded at the same points as in the modules, which gives the
learner's bits in bfloat16.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from assay.model.triton_jit import kernel, power_of_two

if TYPE_CHECKING:
    import triton.language as tl  # pyright: ignore[reportMissingImports]

Norm = tuple[Tensor, float]

# Number of tokens in one part of an attention sum.
# The parts of an attention sum run in parallel, and their results are combined in a fixed order.
# A part of two tiles keeps the latency of the attention sum low.
# Smaller parts are not used, because their partial sums would have more bytes than the keys and
# values.
SPLIT = 128
# Tokens of one tile: the tokens of one matrix product inside a part.
TILE = 64
# Prompts are stored with a length that is a multiple of this number of tokens.
PADDED = 64
# Minimum number of rows of a tensor core's matrix product, and minimum width of its inner axis.
LEAST = 16
# Number of elements that one program of an elementwise kernel processes.
CHUNK = 1024


@kernel()
def add_norm_kernel(
    hidden,
    added,
    weight,
    normed,
    epsilon,
    WIDTH: tl.constexpr,
    SIZE: tl.constexpr,
    HAS_ADDED: tl.constexpr,
):
    """hidden += added, rounded; normed = rms_norm(hidden) * weight. One program per row."""
    columns = tl.arange(0, SIZE)
    inside = columns < WIDTH
    at = tl.program_id(0).to(tl.int64) * WIDTH + columns
    total = tl.load(hidden + at, mask=inside, other=0.0).to(tl.float32)
    if HAS_ADDED:
        total += tl.load(added + at, mask=inside, other=0.0).to(tl.float32)
        rounded = total.to(hidden.dtype.element_ty)
        tl.store(hidden + at, rounded, mask=inside)
        total = rounded.to(tl.float32)
    factor = tl.rsqrt(tl.sum(total * total, 0) / WIDTH + epsilon)
    rounded = (total * factor).to(normed.dtype.element_ty)
    scale = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    result = rounded.to(tl.float32) * scale
    tl.store(normed + at, result.to(normed.dtype.element_ty), mask=inside)


@kernel()
def gate_kernel(gate_up, result, WIDTH: tl.constexpr, SIZE: tl.constexpr):
    """result = silu(gate) * up, for rows that hold gate and up."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * SIZE + tl.arange(0, SIZE)
    inside = columns < WIDTH
    gate = tl.load(gate_up + row * 2 * WIDTH + columns, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * WIDTH + WIDTH + columns, mask=inside, other=0.0)
    gated = (gate / (1.0 + tl.exp(-gate))).to(result.dtype.element_ty).to(tl.float32)
    gated = gated * up.to(tl.float32)
    tl.store(result + row * WIDTH + columns, gated.to(result.dtype.element_ty), mask=inside)


@kernel("slot_stride", "head_stride")
def rotate_kernel(
    fused,
    positions,
    prompt_lengths,
    cosine,
    sine,
    query_norm,
    key_norm,
    keys,
    values,
    slot_stride,
    head_stride,
    query_epsilon,
    key_epsilon,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    HEADS_SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    HALF: tl.constexpr,
    NORMED: tl.constexpr,
    AFTER_PROMPT: tl.constexpr,
):
    """Normalize and rotate the heads of one token: queries in place, keys and values into a store.

    Token p of slot s and head h is stored at s * slot_stride + h * head_stride + p * WIDTH. During
    decoding, p counts from the end of the slot's prompt.
    """
    slot = tl.program_id(0).to(tl.int64)
    kind = fused.dtype.element_ty
    position = tl.load(positions + slot)
    own = position
    if AFTER_PROMPT:
        own = tl.maximum(position - tl.load(prompt_lengths + slot), 0)
    half = tl.arange(0, HALF)
    in_half = half < WIDTH // 2
    head = tl.arange(0, HEADS_SIZE)
    is_query = (head < QUERIES)[:, None]
    number = tl.where(head < QUERIES + KEYS, head - QUERIES, head - QUERIES - KEYS)
    is_key = ((head >= QUERIES) & (head < QUERIES + KEYS))[:, None] & in_half[None, :]
    is_value = (head >= QUERIES + KEYS) & (head < QUERIES + 2 * KEYS)
    is_value = is_value[:, None] & in_half[None, :]
    inside = (head < QUERIES + 2 * KEYS)[:, None] & in_half[None, :]
    at = slot * ((QUERIES + 2 * KEYS) * WIDTH) + head[:, None] * WIDTH + half[None, :]
    first = tl.load(fused + at, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(fused + at + WIDTH // 2, mask=inside, other=0.0).to(tl.float32)
    target = slot * slot_stride + own * WIDTH + number[:, None] * head_stride + half[None, :]
    tl.store(values + target, first.to(kind), mask=is_value)
    tl.store(values + target + WIDTH // 2, second.to(kind), mask=is_value)
    if NORMED:
        epsilon = tl.where(head < QUERIES, query_epsilon, key_epsilon)
        squares = tl.sum(first * first, 1) + tl.sum(second * second, 1)
        factor = tl.rsqrt(squares / WIDTH + epsilon)[:, None]
        behind = half + WIDTH // 2
        of_query = tl.load(query_norm + half, mask=in_half, other=0.0).to(tl.float32)[None, :]
        of_key = tl.load(key_norm + half, mask=in_half, other=0.0).to(tl.float32)[None, :]
        first = (first * factor).to(kind).to(tl.float32)
        first = (first * tl.where(is_query, of_query, of_key)).to(kind).to(tl.float32)
        of_query = tl.load(query_norm + behind, mask=in_half, other=0.0).to(tl.float32)[None, :]
        of_key = tl.load(key_norm + behind, mask=in_half, other=0.0).to(tl.float32)[None, :]
        second = (second * factor).to(kind).to(tl.float32)
        second = (second * tl.where(is_query, of_query, of_key)).to(kind).to(tl.float32)
    angle = position * WIDTH + half
    cos = tl.load(cosine + angle, mask=in_half, other=0.0).to(tl.float32)[None, :]
    sin = tl.load(sine + angle, mask=in_half, other=0.0).to(tl.float32)[None, :]
    left = (first * cos).to(kind).to(tl.float32) + (second * sin).to(kind).to(tl.float32)
    cos = tl.load(cosine + angle + WIDTH // 2, mask=in_half, other=0.0).to(tl.float32)[None, :]
    sin = tl.load(sine + angle + WIDTH // 2, mask=in_half, other=0.0).to(tl.float32)[None, :]
    right = (second * cos).to(kind).to(tl.float32) + (first * sin).to(kind).to(tl.float32)
    tl.store(fused + at, left.to(kind), mask=is_query & inside)
    tl.store(fused + at + WIDTH // 2, right.to(kind), mask=is_query & inside)
    tl.store(keys + target, left.to(kind), mask=is_key)
    tl.store(keys + target + WIDTH // 2, right.to(kind), mask=is_key)


@kernel()
def _attend_part(
    query,
    keys,
    values,
    sums,
    marks,
    start,
    length,
    scale,
    QUERIES: tl.constexpr,
    QUERY_SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    WIDTH_SIZE: tl.constexpr,
    SPLIT: tl.constexpr,
    TILE: tl.constexpr,
    DOT: tl.constexpr,
):
    """Attend to tokens start to start + SPLIT of keys and values [length, WIDTH].

    Stores the weighted sum of values, and for each query the largest score and the sum of weights.
    """
    number = tl.arange(0, QUERY_SIZE)
    column = tl.arange(0, WIDTH_SIZE)
    token = tl.arange(0, TILE)
    inside = column < WIDTH
    top = tl.full((QUERY_SIZE,), float("-inf"), tl.float32)
    total = tl.zeros((QUERY_SIZE,), tl.float32)
    result = tl.zeros((QUERY_SIZE, WIDTH_SIZE), tl.float32)
    for tile in range(SPLIT // TILE):
        first = start + tile * TILE
        seen = first + token < length
        spots = (first + token)[:, None] * WIDTH + column[None, :]
        there = seen[:, None] & inside[None, :]
        key = tl.load(keys + spots, mask=there, other=0.0).to(DOT)
        value = tl.load(values + spots, mask=there, other=0.0).to(DOT)
        # Without "ieee", Triton would multiply float32 numbers with the precision of TF32.
        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        scores = tl.where(seen[None, :], scores, float("-inf"))
        # The maximum `higher` is never minus infinity, because the first tile contains a visible
        # token.
        higher = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp(scores - higher[:, None])
        factor = tl.exp(top - higher)
        total = total * factor + tl.sum(weights, 1)
        part = tl.dot(weights.to(DOT), value, input_precision="ieee")
        result = result * factor[:, None] + part
        top = higher
    real = number < QUERIES
    where = number[:, None] * WIDTH + column[None, :]
    tl.store(sums + where, result, mask=real[:, None] & inside[None, :])
    tl.store(marks + number * 2, top, mask=real)
    tl.store(marks + number * 2 + 1, total, mask=real)


@kernel("layer", "capacity", "prompt_splits", "num_splits")
def attend_kernel(
    fused,
    positions,
    prompts,
    prompt_lengths,
    keys,
    values,
    sums,
    marks,
    scale,
    layer,
    capacity,
    prompt_splits,
    num_splits,
    HEADS: tl.constexpr,
    QUERIES: tl.constexpr,
    QUERY_SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    WIDTH_SIZE: tl.constexpr,
    PADDED: tl.constexpr,
    SPLIT: tl.constexpr,
    TILE: tl.constexpr,
    DOT: tl.constexpr,
):
    """Attend the queries of one slot and key head to one part of the slot's tokens.

    The first ``prompt_splits`` parts cover the prompt, all other parts the slot's own tokens.
    A program whose part lies beyond the slot's tokens returns at once. prompts: address of each
    slot's prompt, [layers, 2, HEADS, length in multiples of PADDED, WIDTH]. keys, values: tensors
    of shape [slots, HEADS, capacity, WIDTH].
    """
    at = tl.program_id(0)
    split = tl.program_id(1)
    slot = at // HEADS
    number = tl.arange(0, QUERY_SIZE)
    column = tl.arange(0, WIDTH_SIZE)
    there = (number < QUERIES)[:, None] & (column < WIDTH)[None, :]
    row = fused + slot.to(tl.int64) * (HEADS * (QUERIES + 2) * WIDTH)
    spots = ((at % HEADS) * QUERIES + number)[:, None] * WIDTH + column[None, :]
    length = (tl.load(positions + slot) + 1).to(tl.int32)
    # The position is clamped, because an idle slot is at position 0 but still has the length of a
    # stale prompt.
    prompt = tl.minimum(tl.load(prompt_lengths + slot).to(tl.int32), length - 1)
    part = at.to(tl.int64) * num_splits + split
    sums += part * (QUERIES * WIDTH)
    marks += part * (QUERIES * 2)
    if split < prompt_splits:
        if split * SPLIT < prompt:
            query = tl.load(row + spots, mask=there, other=0.0).to(DOT)
            padded = (prompt + PADDED - 1) // PADDED * PADDED
            address = tl.multiple_of(tl.load(prompts + slot), 16)
            store = address.to(tl.pointer_type(fused.dtype.element_ty))
            store += (layer.to(tl.int64) * 2 * HEADS + at % HEADS) * padded * WIDTH
            behind = store + HEADS * padded * WIDTH
            _attend_part(query, store, behind, sums, marks, split * SPLIT, prompt, scale, QUERIES,
                         QUERY_SIZE, WIDTH, WIDTH_SIZE, SPLIT, TILE, DOT)  # fmt: skip
    else:
        own = length - prompt
        start = (split - prompt_splits) * SPLIT
        if start < own:
            query = tl.load(row + spots, mask=there, other=0.0).to(DOT)
            base = at.to(tl.int64) * capacity * WIDTH
            _attend_part(query, keys + base, values + base, sums, marks, start, own, scale, QUERIES,
                         QUERY_SIZE, WIDTH, WIDTH_SIZE, SPLIT, TILE, DOT)  # fmt: skip


@kernel("prompt_splits", "num_splits")
def combine_kernel(
    positions,
    prompt_lengths,
    sums,
    marks,
    result,
    prompt_splits,
    num_splits,
    HEADS: tl.constexpr,
    QUERIES: tl.constexpr,
    WIDTH: tl.constexpr,
    WIDTH_SIZE: tl.constexpr,
    SPLIT: tl.constexpr,
):
    """Combine the partial sums of one query head in a fixed order, starting with the parts of the
    prompt."""
    at = tl.program_id(0)
    query = tl.program_id(1)
    slot = at // HEADS
    column = tl.arange(0, WIDTH_SIZE)
    inside = column < WIDTH
    length = (tl.load(positions + slot) + 1).to(tl.int32)
    prompt = tl.minimum(tl.load(prompt_lengths + slot).to(tl.int32), length - 1)
    num_prompt = (prompt + SPLIT - 1) // SPLIT
    num_own = (length - prompt + SPLIT - 1) // SPLIT
    top = tl.full((1,), float("-inf"), tl.float32)
    weight = tl.zeros((1,), tl.float32)
    total = tl.zeros((WIDTH_SIZE,), tl.float32)
    number = 0
    while number < num_prompt + num_own:
        split = tl.where(number < num_prompt, number, prompt_splits + number - num_prompt)
        part = (at.to(tl.int64) * num_splits + split) * QUERIES + query
        mark = tl.load(marks + part * 2 + tl.zeros((1,), tl.int32))
        higher = tl.maximum(top, mark)
        factor = tl.exp(top - higher)
        share = tl.exp(mark - higher)
        weight = weight * factor + share * tl.load(marks + part * 2 + 1)
        some = tl.load(sums + part * WIDTH + column, mask=inside, other=0.0)
        total = total * factor + some * share
        top = higher
        number += 1
    where = (at.to(tl.int64) * QUERIES + query) * WIDTH + column
    tl.store(result + where, (total / weight).to(result.dtype.element_ty), mask=inside)


def add_norm(hidden: Tensor, added: Tensor | None, norm: Norm) -> Tensor:
    """Add ``added`` to ``hidden`` in place and return the root-mean-square norm of the sum."""
    weight, epsilon = norm
    normed = torch.empty_like(hidden)
    width = hidden.shape[1]
    size = power_of_two(width)
    add_norm_kernel(
        len(hidden),
        hidden,
        hidden if added is None else added,
        weight,
        normed,
        epsilon,
        WIDTH=width,
        SIZE=size,
        HAS_ADDED=added is not None,
        num_warps=min(max(size // 512, 1), 16),
    )
    return normed


def gated(gate_up: Tensor) -> Tensor:
    """Return silu(gate) * up.

    Each row of ``gate_up`` holds the gate projection, followed by the up projection.
    """
    rows, width = len(gate_up), gate_up.shape[1] // 2
    result = gate_up.new_empty(rows, width)
    grid = (rows, -(-width // CHUNK))
    gate_kernel(grid, gate_up, result, WIDTH=width, SIZE=CHUNK, num_warps=4)
    return result


@dataclass(frozen=True, eq=False)
class Heads:
    """The attention heads of one layer. norms: norms of queries and of keys, if any."""

    num_keys: int
    queries_per_key: int
    width: int
    norms: tuple[Norm, Norm] | None

    @property
    def num_queries(self) -> int:
        """Number of query heads."""
        return self.num_keys * self.queries_per_key


@dataclass(frozen=True, eq=False)
class Rows:
    """The slots of a step: position of each token, address and length of each prompt [S].

    prompt_splits: number of parts of `SPLIT` tokens that cover the longest prompt. num_splits:
    number of parts that cover the longest prompt and the slots' own tokens.
    """

    positions_S: Tensor
    prompts_S: Tensor
    lengths_S: Tensor
    prompt_splits: int
    num_splits: int


def rotate(
    heads: Heads,
    fused: Tensor,
    rotary: tuple[Tensor, Tensor],
    stores: tuple[Tensor, Tensor],
    positions: Tensor,
    lengths_S: Tensor | None = None,
) -> None:
    """Normalize and rotate fused queries and keys in place; write keys and values to ``stores``.

    stores: keys and values of a decoding step, [S, H, capacity, D], or of a prompt, [H, L, D].
    lengths_S: lengths of the slots' prompts in a decoding step; None: a prompt is read.
    """
    (query_norm, query_epsilon), (key_norm, key_epsilon) = heads.norms or ((fused, 0.0),) * 2
    num_heads = heads.num_queries + 2 * heads.num_keys
    rotate_kernel(
        len(fused),
        fused,
        positions,
        positions if lengths_S is None else lengths_S,
        *rotary,
        query_norm,
        key_norm,
        *stores,
        0 if lengths_S is None else stores[0].stride(0),
        stores[0].stride(-3),
        query_epsilon,
        key_epsilon,
        QUERIES=heads.num_queries,
        KEYS=heads.num_keys,
        HEADS_SIZE=power_of_two(num_heads),
        WIDTH=heads.width,
        HALF=power_of_two(heads.width // 2),
        NORMED=heads.norms is not None,
        AFTER_PROMPT=lengths_S is not None,
        num_warps=4 if num_heads * heads.width < 4096 else 8,
        # Fused multiply-adds would skip a rounding that the learner's modules do.
        enable_fp_fusion=False,
    )


def attend(
    heads: Heads,
    layer: int,
    fused: Tensor,
    stores: tuple[Tensor, Tensor],
    rows: Rows,
    scale: float,
) -> Tensor:
    """Attend rotated queries to each slot's prompt and own tokens; return [S, queries * D].

    stores: keys and values [S, H, capacity, D] of the slots' own tokens.
    """
    programs, queries, width = len(fused) * heads.num_keys, heads.queries_per_key, heads.width
    shape = (programs, rows.num_splits, queries)
    sums = torch.empty((*shape, width), dtype=torch.float32, device=fused.device)
    marks = torch.empty((*shape, 2), dtype=torch.float32, device=fused.device)
    result = fused.new_empty(len(fused), heads.num_queries * width)
    sizes = {
        "HEADS": heads.num_keys,
        "QUERIES": queries,
        "WIDTH": width,
        "WIDTH_SIZE": max(power_of_two(width), LEAST),
        "SPLIT": SPLIT,
    }
    attend_kernel(
        (programs, rows.num_splits),
        fused,
        rows.positions_S,
        rows.prompts_S,
        rows.lengths_S,
        *stores,
        sums,
        marks,
        scale,
        layer,
        stores[0].shape[2],
        rows.prompt_splits,
        rows.num_splits,
        QUERY_SIZE=max(power_of_two(queries), LEAST),
        PADDED=PADDED,
        TILE=TILE,
        DOT=dot_type(fused),
        num_warps=4,
        **sizes,
    )
    combine_kernel(
        (programs, queries),
        rows.positions_S,
        rows.lengths_S,
        sums,
        marks,
        result,
        rows.prompt_splits,
        rows.num_splits,
        num_warps=1,
        **sizes,
    )
    return result


def dot_type(fused: Tensor) -> Any:
    """Return the number type of matrix products: the tensors' own type, or float32 in Triton's
    interpreter."""
    import triton.language as tl  # pyright: ignore[reportMissingImports]

    # Triton's interpreter stores bfloat16 as bits, and would multiply the bits as integers.
    if fused.device.type == "cpu":
        return tl.float32
    return {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}.get(fused.dtype, tl.float32)
