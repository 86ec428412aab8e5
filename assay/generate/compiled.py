"""The lean decoder with compiled small operations: norms, gates and decoding attention in C.

`assay.model.compiled` builds ``decode_step.c``. Decoding attention reads only the tokens of its own
slot, and siblings read one shared copy of their prompt. Without a C compiler, this decoder raises
NotLean, and the engine uses the lean decoder with tensor operations.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

from assay.generate.compiled_cache import CompiledCache
from assay.generate.lean import Attend, LeanForward, Norm
from assay.host.machine import c_compiler
from assay.model.compiled import KINDS, LANES, build
from assay.model.family import Layer, NotLean

SOURCE = Path(__file__).with_name("decode_step.c")


@cache
def library(dtype: torch.dtype) -> ctypes.CDLL:
    """Compile and load the C functions for a tensor type. Raises NotLean if the build fails."""
    found = build(SOURCE, dtype)
    number, pointer = ctypes.c_int64, ctypes.c_void_p
    found.add_norm.argtypes = (pointer, pointer, pointer, ctypes.c_double, number, number, pointer)
    found.silu_product.argtypes = (pointer, number, number, pointer)
    found.attend.argtypes = (pointer, number, *[pointer] * 7)
    return found


class _Layer(ctypes.Structure):
    """A decoder layer's pointers, in the memory layout of the struct in ``decode_step.c``."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("heads", "queries", "width", "capacity", "reach")),
        *((name, ctypes.c_double) for name in ("scale", "query_epsilon", "key_epsilon")),
        *((name, ctypes.c_void_p) for name in ("query_norm", "key_norm", "cosine", "sine")),
    )


class CompiledForward(LeanForward):
    """Decoding with the parameters of a Llama-like model; all operations except matrix products are
    in C."""

    name = "compiled"

    def __init__(self, model: nn.Module, packed: bool = False) -> None:
        super().__init__(model, packed)
        weight, width = self._decoder.embedding, self._decoder.width
        # The C code processes whole vectors of LANES numbers, also in the rotation of half a head.
        sizes = {len(layer.gate[0]) for layer in self._decoder.layers} | {weight.shape[1]}
        if weight.device.type != "cpu" or width % (2 * LANES) or any(n % LANES for n in sizes):
            raise NotLean(f"no compiled step on {weight.device.type} for heads of {width} numbers")
        for norm in self._norms():
            if norm[0].dtype != weight.dtype or not norm[0].is_contiguous():
                raise NotLean("a norm of another type than its embedding")
        if c_compiler() is None or weight.dtype not in KINDS:
            raise NotLean(f"no C compiler (cc), or no compiled functions for {weight.dtype}")
        heads = [len(layer.key[0]) // width for layer in self._decoder.layers]
        self.cache = CompiledCache(heads, width, weight.dtype)
        self._shapes: list[_Layer] = []
        self._shapes_of: tuple[int, ...] = ()

    def refresh(self, num_rows: int) -> None:
        """Read the live model's parameters again, and build the functions before the first step."""
        super().refresh(num_rows)
        self._functions = library(self._decoder.embedding.dtype)
        self._shapes_of = ()

    def _shape_of(self, layer: Layer) -> _Layer:
        width, scale = self._decoder.width, self._decoder.scale
        heads, queries = len(layer.key[0]) // width, len(layer.query[0]) // len(layer.key[0])
        norms = (layer.query_norm, layer.key_norm)
        return _Layer(
            *(heads, queries, width, self.cache.capacity, len(self._cos_KD)),
            *(scale, *(norm[1] if norm else 0.0 for norm in norms)),
            *(norm[0].data_ptr() if norm else None for norm in norms),
            *(self._cos_KD.data_ptr(), self._sin_KD.data_ptr()),
        )

    def _add_norm(self, hidden: Tensor, added: Tensor | None, norm: Norm) -> Tensor:
        """Add ``added`` to ``hidden`` in place and return the root-mean-square norm of the sum."""
        weight, epsilon = norm
        normed = torch.empty_like(hidden)
        self._functions.add_norm(
            hidden.data_ptr(),
            None if added is None else added.data_ptr(),
            weight.data_ptr(),
            epsilon,
            *hidden.shape,
            normed.data_ptr(),
        )
        return normed

    def _gated(self, gate_up: Tensor) -> Tensor:
        """Return silu(gate) * up.

        Each row of ``gate_up`` holds the gate projection, followed by the up projection.
        """
        rows, both = gate_up.shape
        result = gate_up.new_empty(rows, both // 2)
        self._functions.silu_product(gate_up.data_ptr(), rows, both // 2, result.data_ptr())
        return result

    def _step_attention(self, positions_S: Tensor) -> Attend:
        """Return the attention function of a step, a C function that rotates queries and keys,
        stores keys and values, and attends."""
        # The C structs of the layers contain addresses, so they are rebuilt when the cache moves.
        if self._shapes_of != (memory := self.memory()):
            layers = self._decoder.layers
            self._shapes, self._shapes_of = [self._shape_of(layer) for layer in layers], memory
        positions = self.cache.positions_S.data_ptr()

        def attend(index: int, layer: Layer, fused: Tensor) -> Tensor:
            shape, rows = self._shapes[index], fused.shape[0]
            result = fused.new_empty(rows, shape.heads * shape.queries * shape.width)
            addresses = [part.data_ptr() for part in (*self.cache.stores(index), result)]
            outside = self._functions.attend(
                ctypes.byref(shape), rows, fused.data_ptr(), positions, *addresses
            )
            assert not outside, "a position beyond the allocated cache"
            return result

        return attend

    def _norms(self) -> Iterator[Norm]:
        yield self._decoder.final_norm
        for layer in self._decoder.layers:
            norms = (layer.attention_norm, layer.mlp_norm, layer.query_norm, layer.key_norm)
            yield from (norm for norm in norms if norm)
