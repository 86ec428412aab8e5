"""Attention over long rows for models without a lean decoder, without a mask over all pairs of
tokens.

A full attention mask grows with the square of the row length, and stays allocated from the forward
to the backward pass. A *short mask* has only the visible positions of each row's prompt, [B, 1, 1,
prompt]. After the prompt positions, the keys are the row's own tokens, under causal attention. With
a short mask, the attention function of the model is called for a block of queries at a time. The
backward pass recomputes the mask and the scores of each block of queries.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface, AttentionMaskInterface

from assay.model.layouts import Rectangle, seen_by

MASK_HELD = 2**22
"""Elements of a mask that may be allocated for a whole pass, or for a block of queries."""

OURS = {"sdpa": "assay_sdpa", "eager": "assay_eager"}
"""Transformers' attention names, and the names of our versions that accept short masks."""


def takes_short_masks(decoder: nn.Module) -> bool:
    """Switch the attention of a model to a version that accepts short masks; return whether the
    model supports the switch.

    Short masks give the same results as full masks. Returns False if the model does not select its
    attention by name, as models that add a distance bias to the scores.
    """
    if not getattr(decoder, "_supports_attention_backend", False):
        return False
    configs = {id(c): c for module in decoder.modules() if (c := getattr(module, "config", None))}
    named = [c for c in configs.values() if getattr(c, "_attn_implementation", None)]
    kinds = {config._attn_implementation for config in named}
    if not kinds <= {*OURS, *OURS.values()}:
        return False
    if kinds & {"eager", OURS["eager"]} and _eager(decoder) is None:
        return False
    for config in named:
        name = config._attn_implementation
        config._attn_implementation = OURS.get(name, name)
    return True


def is_eager(decoder: Any) -> bool:
    """Return whether the model allocates an attention mask even for plain causal attention."""
    return decoder.config._attn_implementation in ("eager", OURS["eager"])


def short_mask(rectangle: Rectangle) -> Tensor:
    """Return which prompt positions are visible to each row, [B or 1, 1, 1, prompt]; prompt may be
    0.
    """
    device = rectangle.tokens.device
    column = torch.arange(rectangle.prompt_extent, device=device)
    if rectangle.prompt_length_B is None:
        return torch.ones(1, 1, 1, len(column), dtype=torch.bool, device=device)
    return (column < rectangle.prompt_length_B[:, None])[:, None, None]


def attend_by_blocks(
    name: str,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """Implement the attention interface of Transformers; short masks are processed by blocks of
    queries."""
    inner = AttentionInterface()["sdpa"] if name == "sdpa" else _eager(module)
    assert inner is not None, "takes_short_masks has looked"
    length, extent = query.shape[2], key.shape[2] - query.shape[2]
    # A full mask has one column per key; a short mask has only one column per prompt position.
    if attention_mask is None or attention_mask.shape[-1] != extent:
        return inner(module, query, key, value, attention_mask, **options)
    # Without a prompt, torch's fused attention applies its own causal mask.
    if name == "sdpa" and not extent:
        return inner(module, query, key, value, None, **options)
    prompt_length_B = attention_mask[:, 0, 0].sum(-1) if extent else None

    def attend(query: Tensor, key: Tensor, value: Tensor, first: int) -> Tensor:
        queries = slice(first, first + query.shape[2])
        seen = seen_by(queries, prompt_length_B, extent, query.device)
        bias = torch.zeros(seen.shape, dtype=query.dtype, device=query.device)
        return inner(module, query, key, value, bias.masked_fill_(~seen, -torch.inf), **options)[0]

    size = max(1, MASK_HELD // (len(attention_mask) * key.shape[2]))
    parts: list[Tensor] = []
    for first in range(0, length, size):
        seen = extent + min(first + size, length)
        heads = query[:, :, first : first + size], key[:, :, :seen], value[:, :, :seen]
        # Checkpointing frees the mask and scores of a block after its forward pass.
        # The backward pass recomputes the mask and scores.
        parts.append(checkpoint(attend, *heads, first, use_reentrant=False))
    return torch.cat(parts, dim=1), None


def _eager(module: nn.Module) -> Any:
    """Return the eager attention function from the module file of the model."""
    # Transformers does not register eager attention: each model's file defines a function.
    return getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)


for _name, _ours in OURS.items():
    AttentionInterface.register(_ours, partial(attend_by_blocks, _name))
    AttentionMaskInterface.register(_ours, AttentionMaskInterface()[_name])
