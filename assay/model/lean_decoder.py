"""Forward and backward pass of the common decoder family for training, written without autograd.

With autograd, a Transformers module saves about thirty tensors per layer, and each tensor costs a
pass over memory. A lean layer is one autograd function that saves six tensors: its input, the
heads, the attention output, the residual between attention and MLP, and the gate and up
projections. The lean decoder's backward pass recomputes all tensors that a layer does not save. The
lean decoder reads the weights of the loaded model (`assay.model.family`). The tokens of all
rectangles share one matrix product per linear map. Low-rank adapters add their products to the
outputs of their linear maps, and save no tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from assay.model.accumulators import Accumulators
from assay.model.family import Adapter, Decoder, Layer
from assay.model.layouts import ModelInputs
from assay.model.operations import Heads, Operations, operations_of

ATTENDING = ("query", "key", "value")
"""Linear maps that are computed as one product, in the order of its columns."""


@dataclass(frozen=True, eq=False)
class Frame:
    """Rotary factors and options that all layers share in one pass. cos, signed_sin: rotary factors
    at the position of each token, [N, 1, D]."""

    operations: Operations
    segments: Any
    cos: Tensor
    signed_sin: Tensor
    width: int
    scale: float
    recompute: bool


def lean_hidden_states(
    decoder: Decoder,
    inputs: ModelInputs,
    recompute: bool = False,
    accumulators: Accumulators | None = None,
) -> Tensor:
    """Return the last-layer hidden state that predicts each completion token, [T, D], with
    gradient.

    recompute: save only the input of each layer, and recompute the layer in the backward pass.
    accumulators: tensors to which the gradient of the embedding is added in place.
    """
    tokens_N = torch.cat([rectangle.tokens.flatten() for rectangle in inputs.rectangles])
    positions_N = torch.cat([_positions(rectangle) for rectangle in inputs.rectangles])
    longest = max(rectangle.extent for rectangle in inputs.rectangles)
    cos, signed_sin = decoder.rotations(longest)
    operations = operations_of(decoder)
    frame = Frame(
        operations=operations,
        segments=operations.segments(inputs, decoder.embedding.dtype),
        cos=cos.index_select(0, positions_N)[:, None],
        signed_sin=signed_sin.index_select(0, positions_N)[:, None],
        width=decoder.width,
        scale=decoder.scale,
        recompute=recompute,
    )
    hidden_ND = _Embed.apply(decoder.embedding, tokens_N, decoder.padding_token, accumulators)  # pyright: ignore
    for layer in decoder.layers:
        hidden_ND = _LayerStep.apply(hidden_ND, frame, layer, *_parameters(layer))  # pyright: ignore
    hidden_TD = hidden_ND.index_select(0, inputs.predict_T)
    return _FinalNorm.apply(hidden_TD, *decoder.final_norm, operations)  # pyright: ignore


def _positions(rectangle: Any) -> Tensor:
    if rectangle.position_ids is not None:
        return rectangle.position_ids.flatten()
    num_rows, length = rectangle.tokens.shape
    return torch.arange(length, device=rectangle.tokens.device).repeat(num_rows)


@dataclass(slots=True, eq=False)
class _Saved:
    """Tensors that a layer saves for its backward pass, in addition to the layer's input.

    heads: [N, H + 2 H_kv, D]: queries, keys and values, after norm and rotation. raw: queries and
    keys before norm and rotation, if the model normalizes each head. lse: log-sum-exp of the
    attention scores, if the backward pass of the attention needs it. middle: the residual after
    attention.
    """

    heads: Tensor
    raw: Tensor | None
    attended: Tensor
    lse: Tensor | None
    middle: Tensor
    gate: Tensor
    up: Tensor

    def tensors(self) -> tuple[Tensor | None, ...]:
        return self.heads, self.raw, self.attended, self.lse, self.middle, self.gate, self.up


class _Embed(torch.autograd.Function):
    """The embedding lookup."""

    @staticmethod
    def forward(
        ctx: Any,
        weight: Tensor,
        tokens_N: Tensor,
        padding_token: int | None,
        accumulators: Accumulators | None,
    ) -> Tensor:
        ctx.save_for_backward(weight, tokens_N)
        ctx.padding_token, ctx.accumulators = padding_token, accumulators
        return F.embedding(tokens_N, weight)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        weight, tokens_N = ctx.saved_tensors
        (grad_ND,) = grads
        if ctx.padding_token is not None:
            grad_ND = grad_ND.masked_fill((tokens_N == ctx.padding_token)[:, None], 0.0)
        total = ctx.accumulators(weight) if ctx.accumulators else None
        if total is not None:
            total.index_add_(0, tokens_N, grad_ND.to(total.dtype))
            return None, None, None, None
        grad = torch.ops.aten.embedding_dense_backward(grad_ND, tokens_N, len(weight), -1, False)
        return grad, None, None, None


class _LayerStep(torch.autograd.Function):
    """One decoder layer."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, frame: Frame, layer: Layer, *parameters: Tensor) -> Tensor:
        out, saved = _layer_forward(x, frame, layer)
        ctx.save_for_backward(x, *(() if frame.recompute else saved.tensors()))
        ctx.frame, ctx.layer = frame, layer
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, *tensors = ctx.saved_tensors
        frame, layer = ctx.frame, ctx.layer
        saved = _layer_forward(x, frame, layer)[1] if frame.recompute else _Saved(*tensors)
        grad_x, found = _layer_backward(grads[0], x, saved, frame, layer)
        return grad_x, None, None, *(found.get(id(one)) for one in _parameters(layer))


class _FinalNorm(torch.autograd.Function):
    """The norm before the output head, computed only for positions that predict a token."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, epsilon: float, operations: Operations
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.epsilon, ctx.operations = epsilon, operations
        return operations.norm(x, (weight, epsilon))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        norm = (weight, ctx.epsilon)
        return *ctx.operations.norm_backward(grads[0], x, norm), None, None


def _layer_forward(x: Tensor, frame: Frame, layer: Layer) -> tuple[Tensor, _Saved]:
    do = frame.operations
    weight, bias = _stack(layer)
    normed = do.norm(x, layer.attention_norm)
    flat = F.linear(normed, weight, bias)
    sizes = _num_heads(layer, frame)
    _add_adapters(layer, ATTENDING, _columns(flat, sizes, frame), normed)
    heads = raw = flat.view(len(x), -1, frame.width)
    if layer.query_norm and layer.key_norm:
        query, key, value = _heads(raw, sizes)
        heads = torch.cat(
            [do.norm(query, layer.query_norm), do.norm(key, layer.key_norm), value], 1
        )
    do.rotate(heads[:, : sizes[0] + sizes[1]], frame.cos, frame.signed_sin)
    attended, lse = do.attend(frame.segments, _heads(heads, sizes), frame.scale)
    attended = attended.flatten(1)
    middle = F.linear(attended, *layer.output)
    _add_adapters(layer, ("output",), [middle], attended)
    middle += x
    normed = do.norm(middle, layer.mlp_norm)
    gate, up = F.linear(normed, *layer.gate), F.linear(normed, *layer.up)
    _add_adapters(layer, ("gate", "up"), [gate, up], normed)
    product = do.gated(gate, up)
    out = F.linear(product, *layer.down)
    _add_adapters(layer, ("down",), [out], product)
    out += middle
    return out, _Saved(heads, None if heads is raw else raw, attended, lse, middle, gate, up)


def _layer_backward(
    grad: Tensor, x: Tensor, saved: _Saved, frame: Frame, layer: Layer
) -> tuple[Tensor, dict[int, Tensor]]:
    """Return the gradient of the layer's input and those of the layer's parameters, by parameter
    id."""
    do = frame.operations
    found: dict[int, Tensor] = {}
    adapters = layer.adapters
    grad_product = grad @ layer.down[0]
    pulled = _pull(adapters.get("down"), grad, grad_product)
    product, grad_gate, grad_up = do.gated_backward(grad_product, saved.gate, saved.up)
    _map_backward(found, layer.down, grad, product)
    _adapter_backward(found, adapters.get("down"), grad, pulled, product)
    # The MLP's tensors are the largest of the layer: they are freed before the next products.
    del product, grad_product
    normed = do.norm(saved.middle, layer.mlp_norm)
    _map_backward(found, layer.gate, grad_gate, normed)
    _map_backward(found, layer.up, grad_up, normed)
    grad_normed = torch.mm(grad_up, layer.up[0]).addmm_(grad_gate, layer.gate[0])
    for name, part in (("gate", grad_gate), ("up", grad_up)):
        pulled = _pull(adapters.get(name), part, grad_normed)
        _adapter_backward(found, adapters.get(name), part, pulled, normed)
    grad_middle, found[id(layer.mlp_norm[0])] = do.norm_backward(
        grad_normed, saved.middle, layer.mlp_norm
    )
    grad_middle += grad
    grad_x, by_attention = _attention_backward(grad_middle, x, saved, frame, layer)
    return grad_x.add_(grad_middle), found | by_attention


def _attention_backward(
    grad: Tensor, x: Tensor, saved: _Saved, frame: Frame, layer: Layer
) -> tuple[Tensor, dict[int, Tensor]]:
    """Return the gradient of the attention block's input (before the norm), and those of the
    block's parameters, by parameter id."""
    do = frame.operations
    found: dict[int, Tensor] = {}
    sizes = _num_heads(layer, frame)
    _map_backward(found, layer.output, grad, saved.attended)
    grad_flat = grad @ layer.output[0]
    pulled = _pull(layer.adapters.get("output"), grad, grad_flat)
    _adapter_backward(found, layer.adapters.get("output"), grad, pulled, saved.attended)
    grad_attended = grad_flat.view(len(x), -1, frame.width)
    grad_heads = torch.empty_like(saved.heads)
    parts = _heads(grad_heads, sizes)
    attended = saved.attended.view_as(grad_attended), saved.lse
    heads = _heads(saved.heads, sizes)
    do.attend_backward(frame.segments, grad_attended, heads, attended, frame.scale, parts)
    do.rotate(grad_heads[:, : sizes[0] + sizes[1]], frame.cos, frame.signed_sin, back=True)
    if saved.raw is not None and layer.query_norm and layer.key_norm:
        norms = (layer.query_norm, layer.key_norm)
        # Only queries and keys have norms, so `zip` drops the third item, the values.
        for grad_part, raw_part, norm in zip(parts, _heads(saved.raw, sizes), norms, strict=False):
            grad_raw, found[id(norm[0])] = do.norm_backward(grad_part, raw_part, norm)
            grad_part.copy_(grad_raw)
    flat = grad_heads.flatten(1)
    weight, _ = _stack(layer)
    normed, grad_normed = do.norm(x, layer.attention_norm), flat @ weight
    columns = _columns(flat, sizes, frame)
    maps = (layer.query, layer.key, layer.value)
    # With adapters, the linear maps are frozen, so the weight gradients are not computed.
    if any(one[0].requires_grad for one in maps):
        grad_weight = flat.T @ normed
        grads = grad_weight.split([part.shape[1] for part in columns])
        found |= {id(one[0]): grad_part for one, grad_part in zip(maps, grads, strict=True)}
    for name, (_, bias), part in zip(ATTENDING, maps, columns, strict=True):
        if bias is not None and bias.requires_grad:
            found[id(bias)] = part.sum(0)
        pulled = _pull(layer.adapters.get(name), part, grad_normed)
        _adapter_backward(found, layer.adapters.get(name), part, pulled, normed)
    grad_x, found[id(layer.attention_norm[0])] = do.norm_backward(
        grad_normed, x, layer.attention_norm
    )
    return grad_x, found


def _add_adapters(layer: Layer, names: Sequence[str], totals: Sequence[Tensor], x: Tensor) -> None:
    """Add the products of the adapters for the input x to the outputs of their linear maps."""
    for name, total in zip(names, totals, strict=True):
        if (adapter := layer.adapters.get(name)) is not None:
            adapter.add(total, x)


def _pull(adapter: Adapter | None, grad: Tensor, into: Tensor) -> Tensor | None:
    """Add the gradient of an adapter's input to ``into``; return scale * grad up."""
    if adapter is None:
        return None
    pulled = (grad @ adapter.up.to(grad.dtype)).mul_(adapter.scale)
    into.addmm_(pulled, adapter.down.to(grad.dtype))
    return pulled


def _adapter_backward(
    found: dict[int, Tensor],
    adapter: Adapter | None,
    grad: Tensor,
    pulled: Tensor | None,
    given: Tensor,
) -> None:
    """Store the gradients of an adapter's two matrices; the product ``down x`` is recomputed."""
    if adapter is None or pulled is None:
        return
    down, up = adapter.down, adapter.up
    inner = given @ down.to(given.dtype).T
    found[id(up)] = (grad.T @ inner).mul_(adapter.scale).to(up.dtype)
    found[id(down)] = (pulled.T @ given).to(down.dtype)


def _map_backward(
    found: dict[int, Tensor], linear: tuple[Tensor, Tensor | None], grad: Tensor, given: Tensor
) -> None:
    """Store the gradients of a linear map's weight and bias."""
    weight, bias = linear
    if weight.requires_grad:
        found[id(weight)] = grad.T @ given
    if bias is not None and bias.requires_grad:
        found[id(bias)] = grad.sum(0)


def _stack(layer: Layer) -> tuple[Tensor, Tensor | None]:
    """Concatenate the linear maps of queries, keys and values."""
    maps = (layer.query, layer.key, layer.value)
    biases = [bias for _, bias in maps if bias is not None]
    bias = torch.cat(biases) if len(biases) == len(maps) else None
    return torch.cat([weight for weight, _ in maps]), bias


def _num_heads(layer: Layer, frame: Frame) -> list[int]:
    """Return the numbers of query, key and value heads."""
    return [len(one[0]) // frame.width for one in (layer.query, layer.key, layer.value)]


def _columns(flat: Tensor, sizes: list[int], frame: Frame) -> list[Tensor]:
    """Split one matrix into views of its columns for queries, keys and values."""
    return list(flat.split([count * frame.width for count in sizes], 1))


def _heads(flat: Tensor, sizes: list[int]) -> Heads:
    """Split a tensor of heads into queries, keys and values."""
    query, key, value = flat.split(sizes, 1)
    return query, key, value


def _parameters(layer: Layer) -> list[Tensor]:
    """Return the parameters of a layer in a fixed order."""
    found: list[Tensor] = [layer.attention_norm[0], layer.mlp_norm[0]]
    for norm in (layer.query_norm, layer.key_norm):
        if norm is not None:
            found.append(norm[0])
    for weight, bias in layer.maps:
        found.append(weight)
        if bias is not None:
            found.append(bias)
    for adapter in layer.adapters.values():
        found += (adapter.down, adapter.up)
    return found
