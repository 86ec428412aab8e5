"""Copies to a device: the CPU's are the values themselves."""

from __future__ import annotations

import numpy as np
import torch

from assay.model.transfer import on_device


def test_values_for_the_cpu_are_not_copied() -> None:
    values = np.arange(3)
    tensor = on_device(values, "cpu")
    values[0] = 7
    assert tensor.tolist() == [7, 1, 2]
    assert on_device(tensor, torch.device("cpu")) is tensor
