"""A model's shape without its weights: parameters that have sizes, a type and a device, and take
no memory. Estimates are made of it before anything is loaded."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from assay.config import LoraConfig
from assay.errors import ModelError, cause
from assay.model.adapters import add_adapter


def skeleton(config: Any, dtype: torch.dtype, device: str, lora: LoraConfig | None = None) -> Any:
    """Return the model of a Transformers configuration, with fake tensors for weights.

    lora: the adapters around it. Raises ModelError where Transformers cannot build the model
    without its weights, MissingExtra for adapters without peft.
    """
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
    from transformers import AutoModelForCausalLM

    try:
        with torch.device("meta"):
            model: Any = AutoModelForCausalLM.from_config(config, dtype=dtype)
    except Exception as error:  # foreign code builds a foreign model: told in one line
        raise ModelError(f"the model's shape cannot be read ({cause(error)})") from error
    model = model.eval() if lora is None else add_adapter(model, lora, seed=0)
    mode, place = FakeTensorMode(allow_non_fake_inputs=True), torch.device(device)

    def fake(tensor: Tensor) -> Tensor:
        return FakeTensor(mode, tensor.to("meta"), place)

    known: dict[int, nn.Parameter] = {}  # a tied head is the embedding
    for module in model.modules():
        for name, own in module._parameters.items():
            if own is not None and id(own) not in known:
                known[id(own)] = nn.Parameter(fake(own.data), own.requires_grad)
            module._parameters[name] = None if own is None else known[id(own)]
        for name, buffer in module._buffers.items():
            module._buffers[name] = None if buffer is None else fake(buffer)
    return model
