"""The linear maps of a decoding step: live parameters, or packed or stacked copies.

Adapters of live maps, and adapters in narrow types, are computed separately. In packed float32
maps, the adapters are merged into the weights. On a CPU a step multiplies a few rows with every
weight, and the library reorders the weight's memory for each product. Packing the weights once per
generation (query, key and value as one map, gate and up as another) avoids the reordering of each
product. Packed copies are as large as the weights and do not see updates, so they are reused only
while the weights are unchanged.

On a GPU the maps with the same input are stacked once per generation, which halves the number of
products of a step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from assay.generate.memory import default_kv_mib
from assay.model.family import Adapter, Decoder, Layer, NotLean

# Weight and bias.
Map = tuple[Tensor, Tensor | None]
_Make: TypeAlias = "Callable[[Sequence[Map], Sequence[Adapter | None]], Product]"


class Live:
    """Live linear maps that read the same input; the outputs are concatenated."""

    def __init__(self, maps: Sequence[Map], adapters: Sequence[Adapter | None] = ()) -> None:
        self._maps = tuple(maps)
        self._adapters = tuple(adapters) or (None,) * len(self._maps)

    def __call__(self, rows: Tensor) -> Tensor:
        """Apply every map to rows [n, D] and concatenate the outputs."""
        results = [F.linear(rows, *one) for one in self._maps]
        for result, adapter in zip(results, self._adapters, strict=True):
            if adapter is not None:
                adapter.add(result, rows)
        return results[0] if len(results) == 1 else torch.cat(results, -1)


class Packed:
    """Linear maps that read the same input, packed as one weight in oneDNN's memory layout.

    adapters: low-rank adapters, which are computed separately.
    """

    def __init__(
        self, maps: Sequence[Map], num_rows: int, adapters: Sequence[Adapter | None] = ()
    ) -> None:
        kernels: Any = torch.ops.mkldnn
        weight = torch.cat([weight for weight, _ in maps]) if len(maps) > 1 else maps[0][0]
        self._weight = kernels._reorder_linear_weight(weight.detach(), num_rows)
        self._bias = _joined_bias(maps)
        self._product = kernels._linear_pointwise
        self._sizes = [len(weight) for weight, _ in maps]
        self._adapters = tuple(adapters)

    def __call__(self, rows: Tensor) -> Tensor:
        """Apply every map to rows [n, D] and concatenate the outputs."""
        found = self._product(rows, self._weight, self._bias, "none", [], "")
        if any(self._adapters):
            parts = found.split(self._sizes, -1)
            for part, adapter in zip(parts, self._adapters, strict=True):
                if adapter is not None:
                    adapter.add(part, rows)
        return found


class Stacked:
    """Linear maps that read the same input, stacked to one weight, so that one product replaces
    several.

    adapters: low-rank adapters, which are computed separately.
    """

    def __init__(self, maps: Sequence[Map], adapters: Sequence[Adapter | None]) -> None:
        self._weight = torch.cat([weight.detach() for weight, _ in maps])
        self._bias = _joined_bias(maps)
        self._sizes = [len(weight) for weight, _ in maps]
        self._adapters = tuple(adapters)

    def __call__(self, rows: Tensor) -> Tensor:
        """Apply every map to rows [n, D] and concatenate the outputs."""
        found = F.linear(rows, self._weight, self._bias)
        if any(self._adapters):
            parts = found.split(self._sizes, -1)
            for part, adapter in zip(parts, self._adapters, strict=True):
                if adapter is not None:
                    adapter.add(part, rows)
        return found


Product: TypeAlias = Live | Packed | Stacked


@dataclass(frozen=True, slots=True, eq=False)
class LayerProducts:
    """The linear maps of one layer.

    Linear maps that read the same input are combined to one map.
    """

    query_key_value: Product
    output: Product
    gate_up: Product
    down: Product


@dataclass(frozen=True, slots=True, eq=False)
class Products:
    """The linear maps of a whole model."""

    layers: tuple[LayerProducts, ...]
    head: Product

    @classmethod
    def of(cls, decoder: Decoder, packed_for: int = 0) -> Products:
        """Return the live linear maps, or copies packed for ``packed_for`` rows. Raises NotLean if
        this device and type have no packed products, or if the packed copies are too large.
        """
        if packed_for:
            packed_mib(decoder)
        return cls._by(decoder, partial(_product, packed_for=packed_for))

    @classmethod
    def stacked(cls, decoder: Decoder) -> Products:
        """Return stacked copies of the linear maps that read the same input, and all other maps as
        live maps.

        Raises NotLean if the copies are too large.
        """
        stacked_mib(decoder)
        return cls._by(decoder, _stacked_product)

    @classmethod
    def _by(cls, decoder: Decoder, make: _Make) -> Products:
        def product(layer: Layer, *names: str) -> Product:
            maps: list[Map] = [getattr(layer, name) for name in names]
            return make(maps, [layer.adapters.get(name) for name in names])

        return cls(
            layers=tuple(
                LayerProducts(
                    query_key_value=product(layer, "query", "key", "value"),
                    output=product(layer, "output"),
                    gate_up=product(layer, "gate", "up"),
                    down=product(layer, "down"),
                )
                for layer in decoder.layers
            ),
            head=make([decoder.head], [None]),
        )


def _stacked_product(maps: Sequence[Map], adapters: Sequence[Adapter | None]) -> Product:
    return Live(maps, adapters) if len(maps) == 1 else Stacked(maps, adapters)


def _product(maps: Sequence[Map], adapters: Sequence[Adapter | None], packed_for: int) -> Product:
    if not packed_for:
        return Live(maps, adapters)
    if maps[0][0].element_size() < torch.float32.itemsize:
        # In a narrow type, merging rounds small adapter changes away.
        # In bfloat16, for example, a weight of 1 cannot change by less than 0.004.
        # With adapters merged in bfloat16, the sampled policy could equal the base model.
        return Packed(maps, packed_for, adapters)
    whole = [
        (weight if adapter is None else adapter.merged(weight), bias)
        for (weight, bias), adapter in zip(maps, adapters, strict=True)
    ]
    return Packed(whole, packed_for)


def can_pack(weight: Tensor) -> bool:
    """Return whether this torch build and CPU support packed weights of this type."""
    kernels: Any = torch.ops.mkldnn
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    # Both oneDNN operations are private to torch, so a torch build may lack the operations.
    if not hasattr(kernels, "_reorder_linear_weight") or not hasattr(kernels, "_linear_pointwise"):
        return False
    if weight.dtype == torch.bfloat16:
        return bool(kernels._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32


def packed_mib(decoder: Decoder) -> float:
    """Return the size of packed copies of all linear maps in MiB. Raises NotLean if this device and
    type have no packed products, or if the copies are too large.
    """
    if not can_pack(decoder.embedding):
        raise NotLean("no packed products for this device and type")
    size = sum(weight.numel() * weight.element_size() for weight, _ in _maps(decoder)) / 2**20
    if size > default_kv_mib(decoder.embedding.device):
        raise NotLean(f"packed products would take {size:.0f} MiB, over a quarter of all memory")
    return size


def stacked_mib(decoder: Decoder, most_mib: float | None = None) -> float:
    """Return the size of stacked copies of the linear maps that read the same input, in MiB.

    Raises NotLean above ``most_mib``. most_mib None: a quarter of the device's memory.
    """
    together = [
        one
        for layer in decoder.layers
        for one in (layer.query, layer.key, layer.value, layer.gate, layer.up)
    ]
    size = sum(weight.numel() * weight.element_size() for weight, _ in together) / 2**20
    if size > (most_mib or default_kv_mib(decoder.embedding.device)):
        raise NotLean(f"stacked products would take {size:.0f} MiB, over a quarter of all memory")
    return size


def _maps(decoder: Decoder) -> tuple[Map, ...]:
    return (decoder.head, *(one for layer in decoder.layers for one in layer.maps))


def fingerprint(decoder: Decoder) -> tuple[object, ...]:
    """Return a key that changes with any packed weight: address, shape and integer sum of each.

    Computing the fingerprint reads all weights, which is about twenty times faster than packing the
    weights.
    """
    # The fingerprint uses integer sums, which detect a change of one weight's last bit;
    # floating-point sums would round it away.
    parts = [part for one in _maps(decoder) for part in one if part is not None]
    adapters = [one for layer in decoder.layers for one in layer.adapters.values()]
    parts += [part for one in adapters for part in (one.down, one.up)]
    return (*map(_mark, parts), *(one.scale for one in adapters))


def _mark(tensor: Tensor) -> object:
    if not tensor.is_contiguous():
        # For such a tensor the key is a new object, which equals no other object, so the maps are
        # packed again.
        return object()
    size = tensor.shape[-1] * tensor.element_size()
    kinds = (torch.int64, torch.int32, torch.int16, torch.int8)
    kind = next(kind for kind in kinds if size % kind.itemsize == 0)
    return tensor.data_ptr(), tuple(tensor.shape), int(tensor.detach().view(kind).sum())


def _joined_bias(maps: Sequence[Map]) -> Tensor | None:
    if all(bias is None for _, bias in maps):
        return None
    parts = [weight.new_zeros(len(weight)) if bias is None else bias for weight, bias in maps]
    return torch.cat([part.detach() for part in parts])
