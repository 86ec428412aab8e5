"""Whitening: shift and scale over a whole batch."""

from __future__ import annotations

import torch
from torch import Tensor

VARIANCE_EPSILON = 1e-8


def whiten(values_T: Tensor, mask_T: Tensor, *, shift: bool = True) -> Tensor:
    """Return (v - mean) / sqrt(var + 1e-8) over the masked-in values, [T] float64; 0 elsewhere.

    Without ``shift`` the mean is added back: only deviations from it are scaled (Ziegler et al.
    2019, as their code whitens rewards). var is the sample variance, sum (v - mean)^2 / (n - 1).
    Equal values have deviations of exactly 0.
    """
    chosen_N = values_T[mask_T].double()
    if len(chosen_N) == 0:
        return torch.zeros_like(values_T, dtype=torch.float64)
    lowest = chosen_N.min()
    above_N = chosen_N - lowest  # exact zeros where all are equal
    deviation_N = above_N - above_N.mean()
    variance = deviation_N.square().sum() / max(1, len(chosen_N) - 1)
    whitened_N = deviation_N * (variance + VARIANCE_EPSILON).rsqrt()
    if not shift:
        whitened_N = whitened_N + (lowest + above_N.mean())
    whitened_T = torch.zeros_like(values_T, dtype=torch.float64)
    whitened_T[mask_T] = whitened_N
    return whitened_T
