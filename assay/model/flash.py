"""Attention of packed rows by a GPU's fused flash kernels, without masks and without padding
between rows.

The first kernel call computes the attention of every row to its own tokens, under a causal mask. A
second call per rectangle computes the attention of completions to their prompts. The rows of a
group are adjacent, so the second kernel call treats a group as one sequence of queries over one
prompt. The outputs of both attention calls are combined by the log-sum-exp of their scores. torch's
general attention of completions to prompts would need a mask over all pairs of tokens. With grouped
key heads, torch has no fused kernel for a mask and allocates all scores in float32.

The backward kernel receives the combined output and log-sum-exp. The kernel's probabilities exp(S -
lse) are then those of the whole attention, so each call returns its exact share of the gradients
(Dao 2023, arXiv 2307.08691, algorithm 2).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from assay.model.determinism import strictly_fixed_order
from assay.model.layouts import ModelInputs, Rectangle
from assay.model.transfer import on_device

WIDTHS = (8, 192)
"""Widths of a head that the kernels accept: multiples of the first, up to the second. Wider heads
have no backward pass on consumer GPUs."""
LEAST_CAPABILITY = (8, 0)
"""The kernels need Ampere or newer."""

Lengths = tuple[Tensor, int]
"""Boundaries of sequences in a flat tensor (int32, from 0), and the longest sequence."""


@dataclass(frozen=True, eq=False)
class Branch:
    """The completion rows of one rectangle, which continue prompts.

    tokens: positions of the completion rows in the flat token axis. queries: boundaries of the
    query sequences, one sequence per prompt. prompt_K: positions of the prompt tokens in the flat
    token axis, without padding. keys: boundaries of the key sequences, one sequence per prompt.
    """

    tokens: slice
    queries: Lengths
    prompt_K: Tensor
    keys: Lengths


@dataclass(frozen=True, eq=False)
class FlashPlan:
    """Boundaries of all sequences in a micro-batch, in the format of the flash kernels. rows:
    boundaries of every row in every rectangle, including padding. branches: the completion rows,
    which continue prompts."""

    rows: Lengths
    branches: tuple[Branch, ...]

    @classmethod
    def of(cls, inputs: ModelInputs) -> FlashPlan:
        """Compute the sequence boundaries from values in host memory, so that no copy waits for the
        device.
        """
        device = inputs.rectangles[0].tokens.device
        lengths: list[np.ndarray] = []
        branches: list[Branch] = []
        first = first_prompt = 0
        for rectangle in inputs.rectangles:
            num_rows, length = rectangle.tokens.shape
            lengths.append(np.full(num_rows, length))
            if rectangle.parent_B is None:
                first_prompt = first
            else:
                branches.append(_branch(rectangle, first, first_prompt, device))
            first += num_rows * length
        return cls(_lengths(np.concatenate(lengths), device), tuple(branches))


def _branch(rectangle: Rectangle, first: int, first_prompt: int, device: torch.device) -> Branch:
    num_rows, length = rectangle.tokens.shape
    assert rectangle.prompts is not None, "a rectangle with parents names them in host memory"
    parent_B, prompt_length_B = rectangle.prompts
    begins_B = np.flatnonzero(np.diff(parent_B, prepend=-1))
    num_rows_G = np.diff(begins_B, append=num_rows)
    parent_G, prompt_G = parent_B[begins_B], prompt_length_B[begins_B]
    assert len(np.unique(parent_G)) == len(parent_G), "the rows of a prompt are neighbors"
    starts_G = first_prompt + parent_G * rectangle.prompt_extent
    offsets_K = np.arange(prompt_G.sum()) - np.repeat(np.cumsum(prompt_G) - prompt_G, prompt_G)
    return Branch(
        tokens=slice(first, first + num_rows * length),
        queries=_lengths(num_rows_G * length, device),
        prompt_K=on_device(np.repeat(starts_G, prompt_G) + offsets_K, device),
        keys=_lengths(prompt_G, device),
    )


def _lengths(lengths: np.ndarray, device: torch.device) -> Lengths:
    edges = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return on_device(edges, device), int(lengths.max())


def supports(weight: Tensor, width: int) -> bool:
    """Return whether the flash kernels accept heads of this width, for the type and device of the
    weight."""
    multiple, widest = WIDTHS
    return (
        weight.device.type == "cuda"
        and torch.version.cuda is not None
        and torch.cuda.get_device_capability(weight.device) >= LEAST_CAPABILITY
        and weight.dtype in (torch.bfloat16, torch.float16)
        and width % multiple == 0
        and width <= widest
    )


def attend(
    plan: FlashPlan, query: Tensor, key: Tensor, value: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """Return the attention output [N, H, D] and the log-sum-exp of each token's scores [H, N].

    query: [N, H, D]. key, value: [N, H_kv, D]; each key head serves H / H_kv query heads.
    """
    out, lse_HN = forward(query, key, value, plan.rows, plan.rows, True, scale)
    for branch in plan.branches:
        keys, values = key.index_select(0, branch.prompt_K), value.index_select(0, branch.prompt_K)
        part = branch.tokens
        out_prompt, lse_prompt = forward(
            query[part], keys, values, branch.queries, branch.keys, False, scale
        )
        _join(out[part], lse_HN[:, part], out_prompt, lse_prompt)
    return out, lse_HN


def attend_backward(
    plan: FlashPlan,
    grad: Tensor,
    heads: tuple[Tensor, Tensor, Tensor],
    attended: tuple[Tensor, Tensor],
    scale: float,
    into: tuple[Tensor, Tensor, Tensor],
) -> None:
    """Write the gradients of query, key and value into the three tensors ``into``.

    attended: the result of `attend`. The gradients of a prompt's keys and values are summed over
    its completions in float32.
    """
    query, key, value = heads
    out, lse_HN = attended
    grads = backward(grad, *heads, out, lse_HN, plan.rows, plan.rows, True, scale)
    grad_query, sums = grads[0], list(grads[1:])
    if plan.branches:
        # A prompt's gradients are sums over completions; 16-bit sums would lose small terms.
        sums = [one.float() for one in sums]
    for branch in plan.branches:
        part, index = branch.tokens, branch.prompt_K
        found = backward(
            grad[part],
            query[part],
            key.index_select(0, index),
            value.index_select(0, index),
            out[part],
            lse_HN[:, part].contiguous(),
            branch.queries,
            branch.keys,
            False,
            scale,
        )
        grad_query[part] += found[0]
        for total, one in zip(sums, found[1:], strict=True):
            # `index_add_` would add in any order, which changes the last bits of the sum.
            # The token positions of a branch are distinct, so plain additions cannot collide.
            total.index_copy_(0, index, total.index_select(0, index).add_(one))
    for target, one in zip(into, (grad_query, *sums), strict=True):
        target.copy_(one)


def _join(out: Tensor, lse_HN: Tensor, other: Tensor, other_lse_HN: Tensor) -> None:
    """Combine two partial attentions by their log-sum-exp; the result overwrites the first of
    them."""
    both_HN = torch.logaddexp(lse_HN, other_lse_HN)
    own, given = ((one - both_HN).exp_().T[:, :, None] for one in (lse_HN, other_lse_HN))
    out.copy_((out * own).addcmul_(other, given))
    lse_HN.copy_(both_HN)


def forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    queries: Lengths,
    keys: Lengths,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Call the forward flash kernel; return (output [N, H, D], log-sum-exp [H, N])."""
    out, lse_HN, *_ = torch.ops.aten._flash_attention_forward(
        query, key, value, queries[0], keys[0], queries[1], keys[1], 0.0, causal, False, scale=scale
    )
    return out, lse_HN


def backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse_HN: Tensor,
    queries: Lengths,
    keys: Lengths,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Call the backward flash kernel; return the gradients of query, key and value."""
    # The flash kernel needs a state of its dropout generator, although the dropout rate is 0.
    unused = torch.empty(0, dtype=torch.uint64, device=grad.device)
    with strictly_fixed_order():
        return torch.ops.aten._flash_attention_backward(
            *(grad, query, key, value, out, lse_HN, queries[0], keys[0], queries[1], keys[1]),
            *(0.0, causal, unused, unused),
            scale=scale,
        )
