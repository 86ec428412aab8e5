"""An AdamW step as one Triton kernel: join the halves of each weight, step, and split the weight
again."""

# pyright: basic
# Triton interprets the annotations of kernel arguments, so they cannot be Python types.

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from assay.model.triton_jit import kernel, takes

if TYPE_CHECKING:
    import triton.language as tl  # pyright: ignore[reportMissingImports]

BLOCK = 1024


@kernel()
def adamw_kernel(
    parameter,
    rest,
    gradient,
    exp_avg,
    exp_avg_sq,
    count,
    scale,
    decay,
    beta1,
    share1,
    beta2,
    share2,
    step_size,
    correction,
    epsilon,
    HALVES: tl.constexpr,
    MASTER: tl.constexpr,
    BLOCK: tl.constexpr,
):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    if HALVES:
        upper = tl.load(parameter + place, mask=inside, other=0).to(tl.int32)
        lower = tl.load(rest + place, mask=inside, other=0).to(tl.int32)
        weights = ((upper << 16) + lower).to(tl.float32, bitcast=True)
    elif MASTER:
        weights = tl.load(rest + place, mask=inside, other=0.0)
    else:
        weights = tl.load(parameter + place, mask=inside, other=0.0)
    pull = tl.load(gradient + place, mask=inside, other=0.0) * scale
    first = tl.load(exp_avg + place, mask=inside, other=0.0)
    second = tl.load(exp_avg_sq + place, mask=inside, other=0.0)
    weights -= weights * decay
    first = first * beta1 + pull * share1
    second = second * beta2 + pull * pull * share2
    # Division and square root are rounded correctly, as in torch; Triton's operators approximate.
    size = tl.div_rn(tl.sqrt_rn(second), correction) + epsilon
    weights -= tl.div_rn(first * step_size, size)
    tl.store(exp_avg + place, first, mask=inside)
    tl.store(exp_avg_sq + place, second, mask=inside)
    if HALVES:
        bits = weights.to(tl.int32, bitcast=True)
        # Ties are rounded away from zero, as in `assay.learn.halves`.
        tl.store(parameter + place, ((bits + 32768) >> 16).to(tl.int16), mask=inside)
        tl.store(rest + place, bits.to(tl.int16), mask=inside)
    elif MASTER:
        tl.store(rest + place, weights, mask=inside)
        tl.store(parameter + place, weights, mask=inside)
    else:
        tl.store(parameter + place, weights, mask=inside)


def can_step(tensors: Mapping[str, Tensor]) -> bool:
    """Return whether the kernel can step a parameter: it must be contiguous on CUDA, with float32
    moments.
    """
    wide = (tensors["gradient"], tensors["exp_avg"], tensors["exp_avg_sq"])
    plain = all(one.is_contiguous() for one in tensors.values())
    return plain and takes(tensors["parameter"]) and wide[0].dtype == torch.float32 and takes(*wide)


def step(
    tensors: Mapping[str, Tensor], num_steps: int, settings: Mapping[str, Any], scale: float
) -> None:
    """Step one parameter in place; the gradient is multiplied by ``scale`` on the fly and not
    changed.

    tensors, settings: as in `assay.learn.adamw`. num_steps: number of this step, starting at 1.
    """
    parameter, halves = tensors["parameter"], "lower" in tensors
    rest = tensors.get("lower", tensors.get("master", parameter))
    rate, beta1, beta2 = settings["lr"], settings["beta1"], settings["beta2"]
    count = parameter.numel()
    # The kernel reads the weights as integers, because it joins and splits their bits.
    bits = parameter.view(torch.int16) if halves else parameter
    adamw_kernel(
        -(-count // BLOCK),
        *(bits, rest, tensors["gradient"], tensors["exp_avg"], tensors["exp_avg_sq"], count),
        *(scale, rate * settings["weight_decay"], beta1, 1 - beta1, beta2, 1 - beta2),
        *(rate / (1 - beta1**num_steps), math.sqrt(1 - beta2**num_steps), settings["eps"]),
        **{"HALVES": halves, "MASTER": "master" in tensors, "BLOCK": BLOCK},
    )
