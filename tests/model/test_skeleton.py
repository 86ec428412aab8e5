"""A model without weights is estimated as the loaded one is."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from assay.config import LoraConfig, parse
from assay.model.adapters import add_adapter
from assay.model.family import is_lean
from assay.model.skeleton import skeleton
from assay.plan.memory import plan_memory
from assay.testing import tiny_model


@pytest.mark.parametrize("lean", [True, False])
@pytest.mark.parametrize("lora", [None, LoraConfig(rank=4)])
def test_a_skeleton_has_the_memory_plan_of_the_model(lora: LoraConfig | None, lean: bool) -> None:
    tree = {"model": {"path": "m"}, "data": {"train": ["t"]}, "rl": {}}
    model: Any = tiny_model()
    if lora is not None:
        model = add_adapter(model, lora, seed=0)
    made = skeleton(tiny_model().config, torch.float32, "cpu", lora)
    assert is_lean(made) and is_lean(model)
    plans = [
        plan_memory(parse(tree), one, 20, False, libraries_mib=0, lean=lean)
        for one in (model, made)
    ]
    assert plans[0].parts["activations"] > 0
    assert plans[1].parts == pytest.approx(plans[0].parts)


def test_a_skeleton_has_the_type_and_device_it_is_asked_for() -> None:
    made = skeleton(tiny_model().config, torch.bfloat16, "cuda")
    found = {(one.dtype, one.device.type) for one in made.parameters()}
    assert found == {(torch.bfloat16, "cuda")}
