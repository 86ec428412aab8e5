"""What a layer keeps of each token for its backward pass."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from assay.model.decoder import decoder_of
from assay.model.family import Decoder, NotLean

SMALL, LARGE = 32, 96  # tokens of two passes: what does not grow with them cancels


def kept_bytes(model: Any, lean: bool = True) -> float:
    """Return the bytes a token that a layer keeps for its backward pass.

    The lean way keeps the layer's input, heads, what attention gave, the residual after it, gate
    and up (`assay.model.lean_decoder`). What modules keep is measured on two short passes through
    all layers. lean: go the lean way where the model is of its family.
    """
    try:
        layer = Decoder.of(model).layers[0] if lean else None
    except NotLean:
        layer = None
    if layer is None:
        layers = model.config.get_text_config().num_hidden_layers
        return (_kept(model, LARGE) - _kept(model, SMALL)) / (LARGE - SMALL) / layers
    width = layer.output[0].shape[0]
    keys = layer.key[0].shape[0] + layer.value[0].shape[0]
    queries = layer.query[0].shape[0]
    heads = queries + keys
    if layer.query_norm:  # before the norms too
        heads *= 2
    numbers = 2 * width + heads + queries + 2 * layer.gate[0].shape[0]
    return numbers * layer.key[0].element_size()


def _kept(model: Any, num_tokens: int) -> float:
    """Return the bytes of all tensors that autograd keeps of one row, weights left out."""
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
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
