"""Less memory for more time: recomputed activations."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch.utils.checkpoint
from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer

from assay.errors import ModelError, message


class RecomputedActivations:
    """Within the context a Transformers model keeps only each layer's input for the backward pass.

    Transformers recomputes in layers in training mode only, so the layers themselves, not their
    children (whose dropout stays off), are in training mode meanwhile. Outside the context the
    model is as it was: its layers would refuse the cache that generation needs.
    """

    def __init__(self, model: nn.Module) -> None:
        layers = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
        if not layers:
            found = f"{type(model).__name__}, which has no layer that can"
            raise ModelError(message("model.activation_checkpointing", found, "false"))
        self._layers: list[Any] = list(layers)
        for layer in self._layers:
            recompute = partial(torch.utils.checkpoint.checkpoint, use_reentrant=False)
            layer._gradient_checkpointing_func = recompute

    def __enter__(self) -> None:
        self._switch(True)

    def __exit__(self, *_: object) -> None:
        self._switch(False)

    def _switch(self, on: bool) -> None:
        for layer in self._layers:
            layer.gradient_checkpointing = layer.training = on
