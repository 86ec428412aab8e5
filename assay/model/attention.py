"""Attention over the rectangles of a micro-batch, with an explicit backward pass.

A rectangle is a padded [rows, length] block of rows of similar length (`assay.model.layouts`).
Queries, keys and values are flat tensors over the tokens of all rectangles. Each rectangle is
processed separately; its tokens attend to tokens of their own row and of their prompt. On a CPU,
attention uses explicit matrix products instead of a fused kernel. On a CPU in bfloat16, explicit
matrix products take a third of the time of torch's fused attention, whose backward pass is
optimized for long rows. Devices other than CPUs use torch's fused attention. Long rows are
processed in blocks of queries, so no mask over all pairs of tokens is allocated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from assay.model.determinism import strictly_fixed_order
from assay.model.layouts import ModelInputs, seen_by

SCORES_AT_ONCE = 2**21
"""Attention scores in memory at one time when products are explicit."""
MASK_AT_ONCE = 2**25
"""Elements of a mask in memory at one time when the fused attention is used."""

KEY_LENGTHS = 16
"""Maximum number of distinct key lengths over a row's query blocks. In bfloat16 the CPU library
compiles and caches a program per shape; one shape per block used hundreds of MiB."""

WRITTEN_OUT_ON = frozenset({"cpu"})
"""Device types that use explicit products."""


@dataclass(frozen=True, eq=False)
class Segment:
    """The position of one rectangle in the flat token axis, and the attention mask of the
    rectangle.

    prompt: the rectangle of prompts that the rows of this rectangle continue. parent_B: index in
    ``prompt`` of each row's prompt. prompt_length_B: number of tokens in the prompt of each row.
    bias: [B or 1, 1, L, K], prompt keys first; 0 for a visible key and -inf for a masked key.
    ``bias`` is None if the whole mask would be too large; each block of queries then computes its
    own part.
    """

    first: int
    num_rows: int
    length: int
    prompt: Segment | None = None
    parent_B: Tensor | None = None
    prompt_length_B: Tensor | None = None
    bias: Tensor | None = None

    @property
    def prompt_extent(self) -> int:
        """Number of positions of the padded prompts that these rows continue; 0 without such
        prompts."""
        return 0 if self.prompt is None else self.prompt.length

    def bias_of(self, queries: slice, num_keys: int, like: Tensor) -> Tensor:
        """Return the attention bias of a block of queries over the first ``num_keys`` keys, in the
        type of ``like``."""
        if self.bias is not None:
            return self.bias[:, :, queries, :num_keys]
        seen = seen_by(queries, self.prompt_length_B, self.prompt_extent, like.device)
        return _bias(F.pad(seen, (0, num_keys - seen.shape[3])), like.dtype)

    @property
    def tokens(self) -> slice:
        """The slice of this rectangle's tokens in the flat tensor."""
        return slice(self.first, self.first + self.num_rows * self.length)

    def heads(self, flat: Tensor) -> Tensor:
        """Return the tokens of this segment's B rows of length L, from a flat [N, H, D] tensor, as
        a contiguous [B, H, L, D] tensor."""
        return self.rows(flat).transpose(1, 2).contiguous()

    def rows(self, flat: Tensor) -> Tensor:
        """Return the tokens of this segment's B rows of length L, from a flat [N, H, D] tensor, as
        a [B, L, H, D] view."""
        return flat[self.tokens].view(self.num_rows, self.length, *flat.shape[1:])


def segments_of(inputs: ModelInputs, dtype: torch.dtype | None) -> list[Segment]:
    """Return one attention segment for each rectangle of ``inputs``.

    dtype: type of the attention scores and of the masks; None builds no masks.
    """
    segments: list[Segment] = []
    prompt: Segment | None = None
    first = 0
    for rectangle in inputs.rectangles:
        num_rows, length = rectangle.tokens.shape
        behind = prompt if rectangle.parent_B is not None else None
        lengths_B = rectangle.prompt_length_B
        size = (1 if lengths_B is None else num_rows) * length * rectangle.extent
        written_out = _is_written_out(rectangle.tokens)
        most = SCORES_AT_ONCE if written_out else MASK_AT_ONCE
        # A small mask is built once, and all layers share the mask.
        # The mask of a large rectangle would dominate memory: each block builds its part.
        held = size <= most and (written_out or lengths_B is not None)
        bias = _bias(rectangle.mask(), dtype) if held and dtype is not None else None
        segment = Segment(first, num_rows, length, behind, rectangle.parent_B, lengths_B, bias)
        segments.append(segment)
        first += num_rows * length
        if behind is None:
            prompt = segment
    return segments


def _bias(seen: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, -torch.inf)


def attend(
    segments: list[Segment], query: Tensor, key: Tensor, value: Tensor, scale: float
) -> Tensor:
    """Return softmax(scale query key^T + bias) value for every token, [N, H, D].

    query: [N, H, D]. key, value: [N, H_kv, D]; each key head serves H / H_kv query heads.
    """
    # The result must be contiguous, but `empty_like` would copy the strides of such a query.
    attended = query.new_empty(query.shape)
    for segment in segments:
        q, k, v = segment.heads(query), _keys(segment, key), _with_prompt(segment, value)
        product = _written_out if _is_written_out(q) else _fused
        for block, seen in _blocks(segment, q, k):
            bias = _bias_of(segment, block, seen, q)
            out = product(q[:, :, block], k[:, :, :seen], v[:, :, :seen], bias, scale)
            _put(segment, attended, out, block)
    return attended


def attend_backward(
    segments: list[Segment],
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    into: Sequence[Tensor],
) -> None:
    """Write the gradients of query, key and value into the three tensors ``into``.

    grad: gradient of the loss with respect to the result of `attend`. The gradients of a prompt's
    keys and values are summed over its completions in float32.
    """
    # In bfloat16, a sum of the gradients of many completions would lose the small terms.
    wide = torch.promote_types(key.dtype, torch.float32)
    grad_query, grad_key, grad_value = into
    from_branches: dict[int, tuple[Tensor, Tensor]] = {}
    # Rectangles are processed in reverse order: completions add to a prompt's gradients first.
    for segment in reversed(segments):
        q, k, v = segment.heads(query), _keys(segment, key), _with_prompt(segment, value)
        dq, dk, dv = _segment_backward(segment, segment.heads(grad), q, k, v, scale)
        _put(segment, grad_query, dq)
        if segment.prompt is not None and segment.parent_B is not None:
            extent = segment.prompt.length
            if segment.prompt.first not in from_branches:
                shape = (segment.prompt.num_rows, k.shape[1], extent, k.shape[3])
                zeros = (dk.new_zeros(shape, dtype=wide), dv.new_zeros(shape, dtype=wide))
                from_branches[segment.prompt.first] = zeros
            for total, part in zip(from_branches[segment.prompt.first], (dk, dv), strict=True):
                total.index_add_(0, segment.parent_B, part[:, :, :extent].to(wide))
            dk, dv = dk[:, :, extent:], dv[:, :, extent:]
        elif segment.first in from_branches:
            branch_dk, branch_dv = from_branches.pop(segment.first)
            dk, dv = branch_dk.add_(dk), branch_dv.add_(dv)
        _put(segment, grad_key, dk)
        _put(segment, grad_value, dv)


def _segment_backward(
    segment: Segment, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of a rectangle's queries, and of all keys and values that these queries
    attend to."""
    back = _written_out_backward if _is_written_out(q) else _fused_backward
    wide = torch.promote_types(k.dtype, torch.float32)
    dq, dk, dv = torch.empty_like(q), None, None
    for block, seen in _blocks(segment, q, k):
        seen_kv = k[:, :, :seen], v[:, :, :seen]
        bias = _bias_of(segment, block, seen, q)
        found = back(grad[:, :, block], q[:, :, block], *seen_kv, bias, scale)
        if block == slice(0, segment.length):
            return found
        dq[:, :, block], dk_seen, dv_seen = found
        # `_blocks` yields the last queries first, so the first block's gradients cover every key.
        if dk is None or dv is None:
            dk, dv = dk_seen.to(wide), dv_seen.to(wide)
        else:
            dk[:, :, :seen] += dk_seen
            dv[:, :, :seen] += dv_seen
    assert dk is not None and dv is not None, "a rectangle without tokens"
    return dq, dk, dv


def _blocks(segment: Segment, q: Tensor, k: Tensor) -> Iterator[tuple[slice, int]]:
    """Yield (block of queries, number of keys), starting with the last block of queries.

    The returned number of keys covers every key to which a query of the block attends.
    """
    extent, at_once = k.shape[2], segment.length
    if _is_written_out(q):
        at_once = SCORES_AT_ONCE // (segment.num_rows * q.shape[1] * extent)
    # Without a prompt, torch applies its own causal mask, so one block of queries is enough.
    elif segment.prompt is not None:
        at_once = MASK_AT_ONCE // (segment.num_rows * extent)
    num_blocks = -(-segment.length // max(1, at_once))
    size = -(-segment.length // num_blocks)
    # Key counts are rounded up to a multiple of `step`, so that oneDNN compiles fewer shapes.
    step = -(-segment.length // KEY_LENGTHS)
    for first in reversed(range(0, segment.length, size)):
        last = min(first + size, segment.length)
        own = min(-(-last // step) * step, segment.length)
        yield slice(first, last), extent - segment.length + own


def _bias_of(segment: Segment, block: slice, num_keys: int, q: Tensor) -> Tensor | None:
    """Return the attention bias of a block of queries; None selects torch's causal mask."""
    if segment.prompt is None and not _is_written_out(q):
        return None
    return segment.bias_of(block, num_keys, q)


def _fused(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    return F.scaled_dot_product_attention(
        q, k, v, bias, is_causal=bias is None, scale=scale, enable_gqa=True
    )


def _fused_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    with torch.enable_grad():
        q, k, v = (tensor.detach().requires_grad_() for tensor in (q, k, v))
        attended = _fused(q, k, v, bias, scale)
        with strictly_fixed_order():
            dq, dk, dv = torch.autograd.grad(attended, (q, k, v), grad)
    return dq, dk, dv


def _written_out(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    weights = _weights(_by_key_heads(q, k.shape[1]), k, bias, scale)
    return torch.bmm(weights, v.flatten(0, 1)).view(q.shape)


def _written_out_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    q_block, grad_block = (_by_key_heads(tensor, k.shape[1]) for tensor in (q, grad))
    weights = _weights(q_block, k, bias, scale)
    grad_weights = torch.bmm(grad_block, v.flatten(0, 1).transpose(1, 2))
    grad_scores = torch.ops.aten._softmax_backward_data(grad_weights, weights, -1, weights.dtype)
    keys = k.flatten(0, 1)
    dq = torch.baddbmm(q_block, grad_scores, keys, beta=0, alpha=scale)
    dk = torch.baddbmm(keys, grad_scores.transpose(1, 2), q_block, beta=0, alpha=scale)
    dv = torch.bmm(weights.transpose(1, 2), grad_block)
    return dq.view(q.shape), dk.view(k.shape), dv.view(v.shape)


def _weights(q_block: Tensor, k_seen: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """Return the attention weights, with the shape [B * H_kv, queries per key head, keys]."""
    num_rows, heads, seen, _ = k_seen.shape
    keys = k_seen.flatten(0, 1).transpose(1, 2)
    # `baddbmm` applies the scale within the matrix product, which saves a pass over the scores.
    scores = torch.baddbmm(q_block[:, :, :1], q_block, keys, beta=0, alpha=scale)
    assert bias is not None, "products that are written out have a mask"
    num_queries = bias.shape[2]
    scores.view(num_rows, heads, -1, num_queries, seen).add_(bias[:, :, None])
    if scores.dtype == torch.float64:
        return scores.softmax(-1)
    # On a CPU, the softmax of torch is faster in float32 than in bfloat16.
    return scores.softmax(-1, dtype=torch.float32).to(scores.dtype)


def _by_key_heads(heads: Tensor, num_key_heads: int) -> Tensor:
    """Reshape [B, H, L, D] to [B * H_kv, (H / H_kv) L, D]."""
    num_rows, _, _, width = heads.shape
    return heads.reshape(num_rows * num_key_heads, -1, width)


def _with_prompt(segment: Segment, flat: Tensor) -> Tensor:
    """Return the keys or values of each row's prompt, followed by those of the row itself, [B,
    H_kv, K, D]."""
    own = segment.heads(flat)
    if segment.prompt is None or segment.parent_B is None:
        return own
    prompt = segment.prompt.heads(flat).index_select(0, segment.parent_B)
    return torch.cat([prompt, own], dim=2)


def _keys(segment: Segment, flat: Tensor) -> Tensor:
    """Return the keys of the prompt and of the row; for explicit 16-bit products, the mean key of
    each row is subtracted.

    If the mean key is subtracted, all attention scores of a query q change by the same number. The
    softmax ignores a term that all scores share, and smaller scores have smaller rounding errors.
    With the mean key, Qwen2's large key biases doubled the error of a layer's output in bfloat16.
    """
    keys = _with_prompt(segment, flat)
    if keys.element_size() > 2 or not _is_written_out(keys):
        return keys
    return keys - keys.mean(2, keepdim=True, dtype=torch.float32).to(keys.dtype)


def _is_written_out(tensor: Tensor) -> bool:
    return tensor.device.type in WRITTEN_OUT_ON


def _put(segment: Segment, flat: Tensor, heads: Tensor, block: slice | None = None) -> None:
    """Write heads [B, H, L, D], or the heads of a block of queries, to the flat positions of the
    rectangle.
    """
    place = segment.rows(flat) if block is None else segment.rows(flat)[:, block]
    place.copy_(heads.transpose(1, 2))
