"""The start-up probe: is a prompt that is computed once for its group the same as one that is
not?"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from assay.errors import ModelError, message
from assay.model.decoder import unwrap
from assay.model.family import hidden_tokens
from assay.model.logprobs import token_logprobs
from assay.model.packing import Batch, Layout

LAYOUTS: tuple[Layout, ...] = ("plain", "tree")
TOLERANCE = {torch.float32: 2e-4, torch.bfloat16: 0.25, torch.float16: 0.05}
"""Largest difference of a token's log-probability (nats) that a type's rounding explains."""


@dataclass(frozen=True, slots=True)
class LayoutChoice:
    """How batches are laid out, why, and what the probe saw.

    lean: the layers are computed by `assay.model.lean_decoder`, where the model is of its family.
    max_difference: of a token's log-probability between the layouts, in nats. tree_tokens,
    plain_tokens: what each layout would compute for a group of the configured shape.
    """

    layout: Layout
    lean: bool
    reason: str
    max_difference: float
    tree_tokens: int
    plain_tokens: int
    seconds: float


def probe_layouts(
    model: nn.Module,
    prompt_length: int,
    completion_length: int,
    group_size: int,
    layout: Layout | None = None,
    beside: nn.Module | None = None,
) -> LayoutChoice:
    """Score two small groups in both layouts on the loaded model, and choose for a typical group.

    Where the lean way through the layers is not the model's own, the modules are called; where the
    tree does not equal the plain layout, the plain one is taken; the reason says so.
    Otherwise the one with fewer multiplications is. The choice is a function of the shapes alone,
    never of a clock, so that a run repeats bit for bit. layout: force this one. beside: another
    model, which scores the same batches in the same way.

    Raises ModelError where the plain layout does not give what the model itself says.
    """
    started = time.perf_counter()
    models = [model] if beside is None else [model, beside]
    lean, note = prove_lean(*models)
    tree_tokens = prompt_length + group_size * completion_length
    plain_tokens = group_size * (prompt_length + completion_length)
    difference = 0.0
    if layout is not None:
        reason = f"{layout}, chosen beforehand"
    elif forbidden := next(filter(None, map(_hidden, models)), None):
        layout, reason = "plain", f"one row a completion: {forbidden}"
    else:
        found = [(measure_difference(one, lean), _limit(one)) for one in models]
        difference, limit = max(found, key=lambda one: one[0] / one[1])
        savings = _savings(model, prompt_length, completion_length, group_size)
        layout, reason = _choose(difference, limit, savings)
    seconds = time.perf_counter() - started
    reason = "; ".join(filter(None, [reason, note]))
    return LayoutChoice(layout, lean, reason, difference, tree_tokens, plain_tokens, seconds)


def prove_lean(*models: nn.Module) -> tuple[bool, str]:
    """Return whether the lean way through the layers is each model's own, and what to note where it
    is not.

    Raises ModelError where the plain layout does not give what the model itself says.
    """
    for model in models:
        check_head(model)
        difference = head_difference(model, lean=True)
        if not difference <= _limit(model):
            note = f"layers by their modules: the lean way differs by {difference:.2g} nats"
            return False, note
    return True, ""


def _hidden(model: nn.Module) -> str | None:
    return hidden_tokens(unwrap(model).config.get_text_config())


def _limit(model: nn.Module) -> float:
    return TOLERANCE.get(next(model.parameters()).dtype, 0.0)


def _choose(difference: float, limit: float, savings: float) -> tuple[Layout, str]:
    if not difference <= limit:
        found = f"differ from plain ones by {difference:.2g} nats (limit {limit:g})"
        if difference == float("inf"):
            found = "cannot be computed by this model"
        return "plain", f"one row a completion: shared prompts {found}"
    if savings <= 0:
        return "plain", "one row a completion: prompts are short beside completions"
    proof = f"proved equal within {difference:.1g} nats"
    return "tree", f"prompts are computed once a group ({proof}, {savings:.0%} less to compute)"


def _savings(model: Any, prompt: int, completion: int, group_size: int) -> float:
    """Return the share of a layer's multiplications that the tree saves.

    A token takes 12 D^2 in the layer's matrices; a pair of tokens 2 D in attention. Under a mask
    all pairs of a rectangle are computed, without one only the causal half.
    """
    width = getattr(unwrap(model).config.get_text_config(), "hidden_size", 1024)
    tree_pairs = prompt**2 + group_size * completion * (prompt + completion)
    plain_pairs = group_size * (prompt + completion) ** 2 / 2
    tree = 6 * width * (prompt + group_size * completion) + tree_pairs
    plain = 6 * width * group_size * (prompt + completion) + plain_pairs
    return 1 - tree / plain


def check_head(model: nn.Module) -> None:
    """Raise ModelError where log-probabilities are not those of the model's own logits."""
    difference = head_difference(model, lean=False)
    if not difference <= _limit(model):
        found = f"log-probabilities {difference:.2g} nats from its own logits"
        accepted = "a model whose logits are its output head's, scaled or capped"
        raise ModelError(message(type(unwrap(model)).__name__, found, accepted))


@torch.no_grad()
def head_difference(model: nn.Module, lean: bool) -> float:
    """Return the largest difference of a log-probability from the model's own logits, in nats."""
    batch = _small_batch(model)
    (part,) = batch.split(2**20, "plain", [0])
    scored = token_logprobs(model, part, temperature=1.0, layout="plain", lean=lean)
    length, prompt = int(batch.length_R[0]), batch.prompts[0].to(batch.device)
    row = torch.cat([prompt, batch.tokens_T[:length]])[None]
    logits_TV = model(input_ids=row, use_cache=False).logits[0, len(prompt) - 1 : -1].float()
    theirs_T = logits_TV.log_softmax(-1).gather(-1, batch.tokens_T[:length, None])[:, 0]
    return (scored.logprobs_T[:length] - theirs_T).abs().max().item()


@torch.no_grad()
def measure_difference(model: nn.Module, lean: bool = True) -> float:
    """Return the largest difference of a log-probability between the two layouts, in nats.

    Infinite where the model gives no number, or cannot continue from a shared prompt at all.
    """
    batch = _small_batch(model)
    stats: dict[Layout, Tensor] = {}
    for layout in LAYOUTS:
        (part,) = batch.split(2**20, layout)
        try:
            scored = token_logprobs(model, part, temperature=1.0, layout=layout, lean=lean)
        except Exception:  # a foreign model's forward, asked for what it may not know
            if layout == "plain":
                raise
            return float("inf")
        stats[layout] = torch.empty_like(scored.logprobs_T)
        stats[layout][part.token_index_T] = scored.logprobs_T
    difference = (stats["tree"] - stats["plain"]).abs().max().item()
    return difference if difference == difference else float("inf")


def _small_batch(model: nn.Module) -> Batch:
    """Two groups of two completions, all lengths different, of tokens that any model has."""
    device = next(model.parameters()).device
    vocabulary = model.get_input_embeddings().weight.shape[0]  # pyright: ignore
    lengths_R = torch.tensor([5, 8, 1, 6])
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
        versions_T=torch.zeros(num_tokens, dtype=torch.int64),
        group_R=torch.tensor([0, 0, 1, 1]),
        length_R=lengths_R,
        rewards_R=ones_R,
        scores_R=ones_R,
        judged_R=ones_R.bool(),
        correct_R=ones_R,
        truncated_R=torch.zeros(4, dtype=torch.bool),
    )
    return batch.to(device)
