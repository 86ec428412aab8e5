"""Measure or compute the activation memory that a layer saves per token for its backward pass."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from assay.model.decoder import decoder_of
from assay.model.family import Decoder, NotLean

# Lengths in tokens of two forward passes whose activation memory is measured.
# The difference of the two measurements excludes memory that does not grow with the tokens.
SMALL, LARGE = 32, 96


def saved_bytes(model: Any, lean: bool = True) -> float:
    """Return the activation memory of one layer, in bytes per token.

    The lean decoder (`assay.model.lean_decoder`) saves the layer's input, the heads, the attention
    output, the residual after attention, and the gate and up projections. If the lean decoder does
    not support the model, two short forward passes measure the memory. lean: assume that training
    uses the lean decoder if it supports the model's family.
    """
    try:
        layer = Decoder.of(model).layers[0] if lean else None
    except NotLean:
        layer = None
    if layer is None:
        layers = model.config.get_text_config().num_hidden_layers
        return (_saved(model, LARGE) - _saved(model, SMALL)) / (LARGE - SMALL) / layers
    width = layer.output[0].shape[0]
    keys = layer.key[0].shape[0] + layer.value[0].shape[0]
    queries = layer.query[0].shape[0]
    heads = queries + keys
    # Models that normalize each head also save queries and keys before the norm.
    if layer.query_norm:
        heads *= 2
    numbers = 2 * width + heads + queries + 2 * layer.gate[0].shape[0]
    return numbers * layer.key[0].element_size()


def _saved(model: Any, num_tokens: int) -> float:
    """Return the bytes of activations that autograd saves in a forward pass of this many tokens."""
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        # Views of a tensor share the tensor's storage, so memory is counted once per storage.
        kept[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
        return tensor

    parameters = list(model.parameters())
    hooks: AbstractContextManager[Any] = torch.autograd.graph.saved_tensors_hooks(
        note, lambda tensor: tensor
    )
    tokens = torch.arange(num_tokens, device=parameters[0].device)[None]
    with torch.enable_grad(), hooks:
        output = decoder_of(model)(input_ids=tokens, use_cache=False).last_hidden_state
    own = {one.untyped_storage()._cdata for one in parameters}
    found = sum(size for address, size in kept.items() if address not in own)
    del output
    return found
