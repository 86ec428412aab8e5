"""Models with fake parameters, which have sizes, type and device but no memory, for estimates
before loading."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from assay.config import LoraConfig
from assay.errors import ModelError, cause
from assay.model.adapters import add_adapter


def skeleton(config: Any, dtype: torch.dtype, device: str, lora: LoraConfig | None = None) -> Any:
    """Build the model of a Transformers configuration, with fake tensors as weights.

    lora: adapters to add. Raises ModelError if Transformers cannot build the model without weights,
    and MissingExtra if the model needs peft for its adapters.
    """
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
    from transformers import AutoModelForCausalLM

    try:
        with torch.device("meta"):
            model: Any = AutoModelForCausalLM.from_config(config, dtype=dtype)
    except Exception as error:  # Third-party model code may raise any exception.
        raise ModelError(f"the model's shape cannot be read ({cause(error)})") from error
    model = model.eval() if lora is None else add_adapter(model, lora, seed=0)
    mode, place = FakeTensorMode(allow_non_fake_inputs=True), torch.device(device)

    def fake(tensor: Tensor) -> Tensor:
        return FakeTensor(mode, tensor.to("meta"), place)

    # A tied head and embedding must remain one parameter, so that estimates count them once.
    known: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, own in module._parameters.items():
            if own is not None and id(own) not in known:
                known[id(own)] = nn.Parameter(fake(own.data), own.requires_grad)
            module._parameters[name] = None if own is None else known[id(own)]
        for name, buffer in module._buffers.items():
            module._buffers[name] = None if buffer is None else fake(buffer)
    return model
