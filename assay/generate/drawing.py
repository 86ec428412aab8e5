"""Sampling in a decoding step, with one copy of the results to the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from assay.config import SamplingConfig
from assay.generate.captured import CapturedSampling
from assay.generate.sampler import sample

Draw: TypeAlias = Callable[[Tensor, Tensor], tuple[np.ndarray, np.ndarray, np.ndarray]]
"""Function of logits and uniforms that returns tokens, behavior and model log-probabilities."""


def draw_on(device: torch.device, sampling: SamplingConfig, steady: bool) -> Draw:
    """Return a function that samples one token per row and copies the tokens to the host.

    steady: whether every step writes its logits to the same memory, so sampling can be captured.
    """
    if device.type == "cpu":
        return lambda logits_SV, uniforms_S: _arrays(sample(logits_SV, uniforms_S, sampling))

    def draw(logits_SV: Tensor, uniforms_S: Tensor) -> Tensor:
        sampled = sample(logits_SV, uniforms_S, sampling)
        # All results go into one tensor, because each copy to the host waits for the device.
        # The tensor is float64, because float64 represents token ids and float32 log-probabilities
        # exactly.
        return torch.stack([tensor.double() for tensor in sampled])

    # Truncated sampling (top-k, top-p) reads values on the host, which a CUDA graph cannot do.
    steps = CapturedSampling(draw) if steady and not sampling.truncates else draw
    return lambda logits_SV, uniforms_S: _arrays(steps(logits_SV, uniforms_S).cpu().unbind())


def _arrays(values: Sequence[Tensor]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    tokens, behavior, model = (one.numpy() for one in values)
    return tokens, behavior, model
