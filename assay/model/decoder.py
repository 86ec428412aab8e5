"""Hidden states of a model at the positions that predict completion tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache
from transformers.modeling_layers import GradientCheckpointingLayer

from assay.errors import ModelError, message
from assay.model import long_rows
from assay.model.accumulators import Accumulators
from assay.model.family import Decoder, NotLean, hidden_tokens, unwrap
from assay.model.layouts import ModelInputs, Rectangle
from assay.model.lean_decoder import lean_hidden_states


def decoder_of(model: nn.Module) -> Any:
    """Return a causal model's decoder, without the output head."""
    inner = unwrap(model)
    decoder = inner.get_decoder()
    if decoder is None or decoder is inner:
        decoder = inner.base_model
    if decoder is inner:
        # For Llama 4, `base_model_prefix` is not the attribute that holds the decoder.
        decoder = getattr(inner, "model", inner)
    if decoder is inner:
        found = "no decoder beneath its output head"
        raise ModelError(message(type(inner).__name__, found, "a causal model of Transformers"))
    return decoder


def hidden_states(
    model: nn.Module,
    inputs: ModelInputs,
    lean: bool = True,
    accumulators: Accumulators | None = None,
) -> Tensor:
    """Return the last-layer hidden state that predicts each completion token, [T, D], with
    gradient.

    lean: use `lean_hidden_states` if it supports the model's family. For a model family without a
    lean decoder, the model's own modules run. accumulators: see `lean_hidden_states`.
    """
    if lean and inputs.rectangles:
        try:
            family = Decoder.of(model)
        except NotLean:
            pass
        else:
            return lean_hidden_states(family, inputs, _recomputes(model), accumulators)
    return module_hidden_states(model, inputs)


def module_hidden_states(model: nn.Module, inputs: ModelInputs) -> Tensor:
    """Compute `hidden_states` with the model's own modules."""
    decoder = decoder_of(model)
    states: list[Tensor] = []
    prompts = PromptCache()
    if any(rectangle.parent_B is not None for rectangle in inputs.rectangles):
        _let_caches_through(decoder)
    for rectangle in inputs.rectangles:
        if rectangle.parent_B is not None:
            cache = BranchCache(prompts, rectangle.parent_B)
        else:
            cache = prompts = PromptCache()
        options = _options(rectangle, cache, decoder)
        output = decoder(input_ids=rectangle.tokens, use_cache=False, **options)
        states.append(output.last_hidden_state.flatten(0, 1))
    hidden = states[0] if len(states) == 1 else torch.cat(states)
    return hidden.index_select(0, inputs.predict_T)


def _recomputes(model: nn.Module) -> bool:
    """Return whether activation checkpointing is enabled."""
    return any(
        layer.training and layer.gradient_checkpointing
        for layer in model.modules()
        if isinstance(layer, GradientCheckpointingLayer)
    )


def _options(rectangle: Rectangle, cache: Cache, decoder: Any) -> dict[str, Any]:
    """Return the keyword arguments of a model call. If the full attention mask would be large,
    `long_rows` computes the mask in blocks from a short description."""
    num_masks, length = rectangle.tokens.shape
    if rectangle.prompt_length_B is None:
        num_masks = 1
    is_long = num_masks * length * rectangle.extent > long_rows.MASK_HELD
    options: dict[str, Any] = {"past_key_values": cache}
    # No later model call continues these rows, so their keys and values are not kept in a cache.
    if rectangle.parent_B is None and not rectangle.is_prompts:
        if not is_long or not long_rows.is_eager(decoder) or hidden_tokens(decoder.config):
            return {}
        options = {}
    if is_long and long_rows.takes_short_masks(decoder):
        options["attention_mask"] = long_rows.short_mask(rectangle)
    elif options:
        seen = rectangle.mask()
        mask = torch.zeros(seen.shape, dtype=next(decoder.parameters()).dtype, device=seen.device)
        # Every attention function in Transformers adds a float mask to the attention scores.
        options["attention_mask"] = mask.masked_fill_(~seen, -torch.inf)
    if rectangle.position_ids is not None:
        options["position_ids"] = rectangle.position_ids
    return options


class PromptCache(Cache):
    """Records the keys and values of prompts, [P, H, L, D], when each layer computes them.

    If activation checkpointing recomputes a layer, the second recording replaces the first with
    equal tensors.
    """

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.kept: dict[int, tuple[Tensor, Tensor]] = {}

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Record the keys and values of a layer, and return them."""
        self.kept[layer_idx] = (key_states, value_states)
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return 0, because no token precedes a prompt."""
        return 0


class BranchCache(Cache):
    """A cache that puts the keys and values of each row's prompt before those of the row; gradients
    flow to both."""

    def __init__(self, prompts: PromptCache, parent_B: Tensor) -> None:
        super().__init__(layers=[])
        self.kept = prompts.kept
        self.parent_B = parent_B

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Return the keys and values of a layer, [B, H, prompt + own, D]."""
        prompt_keys, prompt_values = self.kept[layer_idx]
        return self._behind(prompt_keys, key_states), self._behind(prompt_values, value_states)

    def _behind(self, prompt: Tensor, own: Tensor) -> Tensor:
        if len(prompt) == 1:
            # `expand` returns a view of a single prompt; `index_select` would copy it.
            return torch.cat([prompt.expand(len(own), -1, -1, -1), own], dim=2)
        return torch.cat([prompt.index_select(0, self.parent_B), own], dim=2)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the number of prompt positions, including padding."""
        return self.kept[layer_idx][0].shape[2] if self.kept else 0


def _let_caches_through(decoder: nn.Module) -> None:
    """Stop Transformers from dropping the caches of prompts in checkpointed layers."""
    # Transformers drops caches in checkpointed layers, because a recomputation would append twice.
    # `PromptCache` and `BranchCache` tolerate recomputation.
    for layer in decoder.modules():
        if isinstance(layer, GradientCheckpointingLayer):
            layer._can_checkpoint_with_cache = True
