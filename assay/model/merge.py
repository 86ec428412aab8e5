"""Merge several models of one shape by arithmetic on their weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from assay.errors import ModelError, message

MergeMethod = Literal["linear", "task_arithmetic", "slerp"]
Tensors = Mapping[str, Tensor]
PARALLEL = 0.9995
"""Cosine of two tensors above which slerp falls back to linear interpolation."""


def merge_tensors(
    models: Sequence[Tensors],
    weights: Sequence[float],
    method: MergeMethod,
    base: Tensors | None = None,
) -> dict[str, Tensor]:
    """Merge models in float32, and return the tensors in the types of the first model.

        The method linear is sum w_i theta_i / sum w_i (Wortsman et al., 2022, arXiv 2203.05482).
        The method task_arithmetic is base + sum w_i (theta_i - base) (Ilharco et al., 2023, arXiv
        2212.04089). The method slerp is, for each tensor, the point at the fraction w_2 / (w_1 +
        w_2) of the arc between two models (Shoemake 1985).

    Tensors that are not floating-point are copied from the first model.
    """
    merged: dict[str, Tensor] = {}
    for name, first in models[0].items():
        if not first.is_floating_point():
            merged[name] = first.clone()
            continue
        parts = [model[name].float() for model in models]
        if method == "slerp":
            found = _slerp(parts[0], parts[1], weights[1] / sum(weights))
        elif method == "task_arithmetic":
            assert base is not None
            origin = base[name].float()
            found = origin + _sum([part - origin for part in parts], weights)
        else:
            found = _sum(parts, weights) / sum(weights)
        merged[name] = found.to(first.dtype)
    return merged


def check_alike(models: Mapping[str, Tensors]) -> None:
    """Raise ModelError if two models differ in the names or shapes of their tensors. models: the
    tensors of each model, by name of the model."""
    (first_name, first), *others = models.items()
    shapes = {name: tensor.shape for name, tensor in first.items()}
    for other_name, other in others:
        theirs = {name: tensor.shape for name, tensor in other.items()}
        for name in sorted(shapes.keys() | theirs.keys()):
            one, two = shapes.get(name), theirs.get(name)
            if one != two:
                found = f"{name} {tuple(two) if two else 'missing'}"
                accepted = f"{tuple(one) if one else 'none'}, as in {first_name}"
                raise ModelError(message(f"merge {other_name}", found, accepted))


def _sum(parts: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    return torch.stack([part * weight for part, weight in zip(parts, weights, strict=True)]).sum(0)


def _slerp(first: Tensor, second: Tensor, share: float) -> Tensor:
    norms = first.norm() * second.norm()
    # A tensor of zeros has no direction, so it is interpolated linearly.
    cosine = (first * second).sum() / norms if norms else norms.new_ones(())
    # Slerp divides by the sine of the angle, which is 0 for parallel tensors.
    if cosine.abs() > PARALLEL:
        return torch.lerp(first, second, share)
    angle = cosine.arccos()
    weights = ((1 - share) * angle).sin(), (share * angle).sin()
    return (weights[0] * first + weights[1] * second) / angle.sin()
