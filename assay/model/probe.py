"""The start-up probe: is a prompt that is computed once for its group the same as one that is not?"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from assay.model.logprobs import token_logprobs
from assay.model.packing import Batch, Layout

TOLERANCE = {torch.float32: 2e-4, torch.bfloat16: 0.25, torch.float16: 0.05}
"""Largest difference of a token's log-probability (nats) that a type's rounding explains."""


@dataclass(frozen=True, slots=True)
class LayoutChoice:
    """How batches are laid out, why, and what the probe saw.

    max_difference: of a token's log-probability between the layouts, in nats. tree_tokens,
    plain_tokens: what each layout would compute for a group of the configured shape.
    """

    layout: Layout
    reason: str
    max_difference: float
    tree_tokens: int
    plain_tokens: int
    seconds: float


def probe_layouts(
    model: nn.Module, prompt_length: int, completion_length: int, group_size: int
) -> LayoutChoice:
    """Score two small groups in both layouts on the loaded model, and choose for a typical group.

    Where the tree does not equal the plain layout, the plain one is taken and the reason says so.
    Otherwise the cheaper one for the shape is: a tree of G completions is one sequence, whose dense
    attention grows with its length squared. The choice is a function of the shapes alone, never of
    a clock, so that a run repeats bit for bit.
    """
    started = time.perf_counter()
    difference = measure_difference(model)
    dtype = next(model.parameters()).dtype
    limit = TOLERANCE.get(dtype, 0.0)
    tree_tokens = prompt_length + group_size * completion_length
    plain_tokens = group_size * (prompt_length + completion_length)
    width = getattr(model.config.get_text_config(), "hidden_size", 1024)  # pyright: ignore
    layout: Layout = "tree"
    if not difference <= limit:
        layout = "plain"
        reason = f"shared prompts differ from plain ones by {difference:.2g} nats (limit {limit:g})"
        reason += ": falling back to one row a completion"
    elif _cost(tree_tokens, tree_tokens, width) >= _cost(
        plain_tokens, prompt_length + completion_length, width
    ):
        layout = "plain"
        reason = "prompts are short beside completions: one row a completion is cheaper"
    else:
        reason = f"prompts are computed once a group (proved equal within {difference:.1g} nats)"
    seconds = time.perf_counter() - started
    return LayoutChoice(layout, reason, difference, tree_tokens, plain_tokens, seconds)


def _cost(num_tokens: int, extent: int, width: int) -> float:
    """Multiplications of a layer, up to a factor: 12 D^2 a token in its matrices, 2 D a pair in attention."""
    return num_tokens * (12 * width + 2 * extent)


@torch.no_grad()
def measure_difference(model: nn.Module) -> float:
    """Return the largest difference of a log-probability between the two layouts, in nats."""
    batch = _small_batch(model)
    stats = {}
    for layout in ("plain", "tree"):
        (part,) = batch.split(2**20, layout)
        scored = token_logprobs(model, part, temperature=1.0, layout=layout)
        stats[layout] = torch.empty_like(scored.logprobs_T)
        stats[layout][part.token_index_T] = scored.logprobs_T
    difference = (stats["tree"] - stats["plain"]).abs().max().item()
    return difference if difference == difference else float("inf")


def _small_batch(model: nn.Module) -> Batch:
    """Two groups of two completions, all lengths different, of tokens that any model has."""
    device = next(model.parameters()).device
    vocabulary = model.get_input_embeddings().weight.shape[0]  # pyright: ignore
    lengths_R = torch.tensor([5, 8, 3, 6])
    num_tokens = int(lengths_R.sum())

    def tokens(count: int, start: int) -> Tensor:
        return (torch.arange(count) * 37 + start * 11 + 1) % vocabulary

    ones_R = torch.ones(4)
    nothing_T = torch.zeros(num_tokens)
    batch = Batch(
        prompts=(tokens(7, 1), tokens(4, 2)),
        tokens_T=tokens(num_tokens, 3),
        row_T=torch.repeat_interleave(torch.arange(4), lengths_R),
        sampled_T=torch.ones(num_tokens, dtype=torch.bool),
        think_T=torch.zeros(num_tokens, dtype=torch.bool),
        behavior_logprobs_T=nothing_T,
        model_logprobs_T=nothing_T,
        group_R=torch.tensor([0, 0, 1, 1]),
        length_R=lengths_R,
        rewards_R=ones_R,
        judged_R=ones_R.bool(),
        correct_R=ones_R,
        truncated_R=torch.zeros(4, dtype=torch.bool),
        policy_version_R=torch.zeros(4, dtype=torch.long),
    )
    return batch.to(device)
