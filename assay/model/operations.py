"""The small operations of a decoder layer, forward and backward: as tensor operations, in C
(``layer.c``) on a CPU, or as Triton kernels on CUDA."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from assay.model import flash, layer_kernels, triton_jit
from assay.model.attention import Segment, attend, attend_backward, segments_of
from assay.model.compiled import LANES, build
from assay.model.family import Decoder, NotLean, rotate
from assay.model.layouts import ModelInputs

SOURCE = Path(__file__).with_name("layer.c")
BLOCK = 64
"""Rows whose contributions to a weight's gradient form one partial sum; must equal
``layer.c``'s."""

Norm = tuple[Tensor, float]
Heads = tuple[Tensor, Tensor, Tensor]
"""Queries [N, H, D], keys and values [N, H_kv, D], or their gradients."""
Attended = tuple[Tensor, Tensor | None]
"""Attention output [N, H, D], and the log-sum-exp of each token's scores [H, N] or None."""


class Operations:
    """Layer operations that call torch's tensor functions, for any device and type."""

    def segments(self, inputs: ModelInputs, dtype: torch.dtype) -> Any:
        """Return the positions of all rows in the flat token axis, in the format that the method
        `attend` expects."""
        return segments_of(inputs, dtype)

    def norm(self, x: Tensor, norm: Norm) -> Tensor:
        """Apply a root-mean-square norm over the last axis, rounded as the model's modules do."""
        weight, epsilon = norm
        wide, scale = _widened(x, epsilon)
        return wide.mul_(scale).to(x.dtype).mul_(weight)

    def norm_backward(self, grad: Tensor, x: Tensor, norm: Norm) -> tuple[Tensor, Tensor]:
        """Return the gradients of the input and the weight of a root-mean-square norm.

        The input's gradient is r (g - n mean(g n)), with n = x r, r = (mean x^2 + epsilon)^(-1/2),
        and g the gradient of n.
        """
        weight, epsilon = norm
        wide, scale = _widened(x, epsilon)
        normed = wide.mul_(scale)
        wide_weight = weight.to(wide.dtype)
        wide_grad = grad.to(wide.dtype, copy=True)
        product = wide_grad * normed
        grad_weight = product.flatten(0, -2).sum(0)
        overlap = (product @ wide_weight).div_(x.shape[-1]).unsqueeze(-1)
        grad_x = wide_grad.mul_(wide_weight).addcmul_(normed, overlap, value=-1).mul_(scale)
        return grad_x.to(x.dtype), grad_weight.to(weight.dtype)

    def gated(self, gate: Tensor, up: Tensor) -> Tensor:
        """Return silu(gate) * up."""
        return F.silu(gate).mul_(up)

    def gated_backward(self, grad: Tensor, gate: Tensor, up: Tensor) -> Heads:
        """Return silu(gate) * up, and the gradients of gate and up; ``grad`` is overwritten."""
        activated = F.silu(gate)
        product = activated * up
        grad_up = activated.mul_(grad)
        return product, torch.ops.aten.silu_backward(grad.mul_(up), gate), grad_up

    def rotate(self, heads: Tensor, cos: Tensor, signed_sin: Tensor, back: bool = False) -> None:
        """Apply the rotary embedding in place to heads [N, H, D]. back: apply the inverse
        rotation."""
        heads.copy_(rotate(heads, cos, -signed_sin if back else signed_sin))

    def attend(self, segments: Any, heads: Heads, scale: float) -> Attended:
        """Return the attention output of each token, [N, H, D], and, if the backward pass needs it,
        the log-sum-exp of the scores, [H, N]."""
        return attend(segments, *heads, scale), None

    def attend_backward(
        self,
        segments: Any,
        grad: Tensor,
        heads: Heads,
        attended: Attended,
        scale: float,
        into: Heads,
    ) -> None:
        """Write the gradients of the heads into the three tensors ``into``.

        grad: the output's gradient. attended: the result of `attend`.
        """
        attend_backward(segments, grad, *heads, scale, into)


class FlashOperations(Operations):
    """Layer operations by torch's tensor functions on a GPU, with torch's flash attention
    (`assay.model.flash`).
    """

    def segments(self, inputs: ModelInputs, dtype: torch.dtype) -> Any:
        return flash.FlashPlan.of(inputs)

    def attend(self, segments: Any, heads: Heads, scale: float) -> Attended:
        return flash.attend(segments, *heads, scale)

    def attend_backward(
        self,
        segments: Any,
        grad: Tensor,
        heads: Heads,
        attended: Attended,
        scale: float,
        into: Heads,
    ) -> None:
        out, lse_HN = attended
        assert lse_HN is not None, "the forward pass returned it"
        flash.attend_backward(segments, grad, heads, (out, lse_HN), scale, into)


class CompiledOperations(Operations):
    """Layer operations in C for a CPU; the attention in C is for float32 only, and allocates no
    mask.
    """

    def __init__(self, functions: ctypes.CDLL) -> None:
        self._functions = functions

    def segments(self, inputs: ModelInputs, dtype: torch.dtype) -> Any:
        return segments_of(inputs, None if dtype == torch.float32 else dtype)

    def norm(self, x: Tensor, norm: Norm) -> Tensor:
        weight, epsilon = norm
        x = x.contiguous()
        out = torch.empty_like(x)
        size = x.shape[-1]
        self._functions.norm(*_at(x, weight), epsilon, x.numel() // size, size, *_at(out))
        return out

    def norm_backward(self, grad: Tensor, x: Tensor, norm: Norm) -> tuple[Tensor, Tensor]:
        weight, epsilon = norm
        grad, x = grad.contiguous(), x.contiguous()
        size = x.shape[-1]
        rows = x.numel() // size
        grad_x, grad_weight = (
            torch.empty_like(x),
            x.new_empty(-(-rows // BLOCK), size, dtype=torch.float32),
        )
        self._functions.norm_backward(
            *_at(grad, x, weight), epsilon, rows, size, *_at(grad_x, grad_weight)
        )
        return grad_x, grad_weight.sum(0).to(weight.dtype)

    def gated(self, gate: Tensor, up: Tensor) -> Tensor:
        out = torch.empty_like(gate)
        self._functions.gated(*_at(gate, up), gate.numel(), *_at(out))
        return out

    def gated_backward(self, grad: Tensor, gate: Tensor, up: Tensor) -> Heads:
        product, grad_up = torch.empty_like(gate), torch.empty_like(gate)
        self._functions.gated_backward(*_at(grad, gate, up), gate.numel(), *_at(product, grad_up))
        return product, grad, grad_up

    def rotate(self, heads: Tensor, cos: Tensor, signed_sin: Tensor, back: bool = False) -> None:
        rows, count, width = heads.shape
        self._functions.rotate(
            *(*_at(heads), rows, count, width, heads.stride(0), *_at(cos, signed_sin)),
            -1.0 if back else 1.0,
        )

    def attend(self, segments: Any, heads: Heads, scale: float) -> Attended:
        if heads[0].dtype != torch.float32:
            return super().attend(segments, heads, scale)
        attended = heads[0].new_empty(heads[0].shape)
        for segment in segments:
            shape = _Shape.of(segment, heads, scale)
            behind = _at(segment.parent_B, segment.prompt_length_B)
            self._functions.attend(ctypes.byref(shape), *_at(*heads), *behind, *_at(attended))
        return attended, None

    def attend_backward(
        self,
        segments: Any,
        grad: Tensor,
        heads: Heads,
        attended: Attended,
        scale: float,
        into: Heads,
    ) -> None:
        if grad.dtype != torch.float32:
            return super().attend_backward(segments, grad, heads, attended, scale, into)
        grad = grad.contiguous()
        totals: dict[int, Tensor] = {}
        for segment in reversed(segments):
            shape = _Shape.of(segment, heads, scale)
            sizes = (2, segment.num_rows, shape.heads, segment.prompt_extent, shape.width)
            # Gradients of the prompt keys and values of each row; the sum per prompt follows below.
            given = grad.new_empty(sizes)
            self._functions.attend_backward(
                *(ctypes.byref(shape), *_at(grad, *heads)),
                *_at(segment.parent_B, segment.prompt_length_B, *into, given[0], given[1]),
            )
            if segment.prompt is not None and segment.parent_B is not None:
                none = given.new_zeros(2, segment.prompt.num_rows, *sizes[2:])
                total = totals.setdefault(segment.prompt.first, none)
                total.index_add_(1, segment.parent_B, given)
            elif segment.first in totals:
                for flat, total in zip(into[1:], totals.pop(segment.first), strict=True):
                    segment.rows(flat).add_(total.transpose(1, 2))


class TritonOperations(Operations):
    """Layer operations as one Triton kernel each, on CUDA; subclasses choose the attention."""

    def norm(self, x: Tensor, norm: Norm) -> Tensor:
        return layer_kernels.norm(x, norm)

    def norm_backward(self, grad: Tensor, x: Tensor, norm: Norm) -> tuple[Tensor, Tensor]:
        return layer_kernels.norm_backward(grad, x, norm)

    def gated(self, gate: Tensor, up: Tensor) -> Tensor:
        return layer_kernels.gated(gate, up)

    def gated_backward(self, grad: Tensor, gate: Tensor, up: Tensor) -> Heads:
        return layer_kernels.gated_backward(grad, gate, up)

    def rotate(self, heads: Tensor, cos: Tensor, signed_sin: Tensor, back: bool = False) -> None:
        layer_kernels.rotate(heads, cos, signed_sin, back)


class TritonFlashOperations(TritonOperations, FlashOperations):
    """Layer operations as the kernels of `TritonOperations`, with torch's flash attention."""


class _Shape(ctypes.Structure):
    """One rectangle of rows, in the layout of the struct that ``layer.c`` defines."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("heads", "queries", "width", "rows", "length")),
        *((name, ctypes.c_int64) for name in ("first", "prompt_first", "extent")),
        *((name, ctypes.c_int64) for name in ("query_stride", "key_stride")),
        ("scale", ctypes.c_double),
    )

    @classmethod
    def of(cls, segment: Segment, heads: Heads, scale: float) -> _Shape:
        query, key, _ = heads
        count, prompt = key.shape[1], segment.prompt
        return cls(
            *(count, query.shape[1] // count, key.shape[2], segment.num_rows, segment.length),
            *(segment.first, 0 if prompt is None else prompt.first, segment.prompt_extent),
            *(query.stride(0), key.stride(0), scale),
        )


def operations_of(decoder: Decoder) -> Operations:
    """Return C or Triton operations if they support this model and machine, or else tensor
    operations."""
    weight = decoder.embedding
    norms = [decoder.final_norm]
    sizes = {weight.shape[1]}
    for layer in decoder.layers:
        sizes.add(len(layer.gate[0]))
        each = (layer.attention_norm, layer.mlp_norm, layer.query_norm, layer.key_norm)
        norms += [norm for norm in each if norm]
    # The C code processes whole vector registers, so row sizes must be multiples of a register.
    fits = not decoder.width % (2 * LANES) and not any(size % LANES for size in sizes)
    tensors = [weight, *(norm[0] for norm in norms)]
    plain = all(one.dtype == weight.dtype and one.is_contiguous() for one in tensors)
    if weight.device.type == "cpu" and plain and fits and (built := functions(weight.dtype)):
        return CompiledOperations(built)
    fused = plain and triton_jit.takes(weight)
    if flash.supports(weight, decoder.width):
        return TritonFlashOperations() if fused else FlashOperations()
    return TritonOperations() if fused else Operations()


@cache
def functions(dtype: torch.dtype) -> ctypes.CDLL | None:
    """Compile and load ``layer.c`` for a tensor type; return None if that fails."""
    try:
        found = build(SOURCE, dtype)
    except NotLean:
        return None
    number, pointer, real = ctypes.c_int64, ctypes.c_void_p, ctypes.c_double
    found.norm.argtypes = (pointer, pointer, real, number, number, pointer)
    found.norm_backward.argtypes = (*[pointer] * 3, real, number, number, pointer, pointer)
    found.gated.argtypes = (pointer, pointer, number, pointer)
    found.gated_backward.argtypes = (*[pointer] * 3, number, pointer, pointer)
    found.rotate.argtypes = (pointer, *[number] * 4, pointer, pointer, real)
    if dtype == torch.float32:
        found.attend.argtypes = (pointer,) * 7
        found.attend_backward.argtypes = (pointer,) * 12
    return found


def _at(*tensors: Tensor | None) -> list[int | None]:
    return [None if tensor is None else tensor.data_ptr() for tensor in tensors]


def _widened(x: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """Return a copy of x in float32 or a wider type, and the factor (mean x^2 + epsilon)^(-1/2) of
    each row.
    """
    wide = x.to(torch.promote_types(x.dtype, torch.float32), copy=True)
    # `vector_norm` does not allocate a tensor of squares.
    scale = torch.linalg.vector_norm(wide, dim=-1, keepdim=True).square_()
    return wide, scale.div_(x.shape[-1]).add_(epsilon).rsqrt_()
