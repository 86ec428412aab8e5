"""Arrays and numbers of third-party packages as plain data (numpy, sympy).

An array is sent as its type, its shape and a flat list of its items. The worker decodes an array as
an `Array`, because it never imports these packages. If a sandboxed process has numpy, it decodes an
array as a numpy array. The process that runs tests therefore computes with its own numpy, which no
submission can change. Numbers of numpy and sympy are sent as Python's numbers.

The zygote loads this file without the package, so it imports the standard library only.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any, cast

from . import codec
from .values import Malformed

MAX_DIMENSIONS = 32
TYPE = re.compile(r"[<|](b1|[iu][1248]|f[248]|c8|c16|[US]\d{1,7}|O)")
KINDS: dict[str, type] = {
    "b": bool, "i": int, "u": int, "f": float, "c": complex, "U": str, "S": bytes,
}  # fmt: skip


class Array:
    """An array in the worker: numpy's name of its type (``<f8``), its shape, and its flat items."""

    __slots__ = ("dtype", "items", "shape")

    def __init__(self, dtype: str, shape: tuple[int, ...], items: list[Any]) -> None:
        self.dtype, self.shape, self.items = dtype, shape, items

    def tolist(self) -> Any:
        """Return an array's items as nested lists; for an array without dimensions, return the only
        item."""
        return _nested(self.items, self.shape)

    def __eq__(self, other: object) -> bool:
        """Return whether both arrays have one item each, and these two items are equal.

        In numpy, an array of several items has no truth value, so ``if a == b`` would raise for
        such arrays.
        """
        leaves = list(_leaves(other, MAX_DIMENSIONS))
        return len(self.items) == len(leaves) == 1 and bool(self.items[0] == leaves[0])

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"array({self.tolist()!r}, dtype={self.dtype!r})"


# Modules that import the codec from this module can send and receive arrays.
Decoder, encode = codec.Decoder, codec.encode


def _nested(items: list[Any], shape: tuple[int, ...]) -> Any:
    if len(shape) < 2:
        return list(items) if shape else items[0]
    step = math.prod(shape[1:])
    return [_nested(items[step * row : step * (row + 1)], shape[1:]) for row in range(shape[0])]


def _leaves(value: Any, depth: int) -> Iterator[Any]:
    """Yield at most two items of nested lists.

    Two items suffice to distinguish an array with one item from a larger array.
    """
    if isinstance(value, Array):
        yield from value.items[:2]
    elif isinstance(value, (list, tuple)) and depth:
        count = 0
        for each in cast("list[Any]", value)[:2]:
            for leaf in _leaves(each, depth - 1):
                yield leaf
                count += 1
                if count == 2:
                    return
    else:
        yield value


def _read(_: Any, parts: tuple[str, tuple[Any, ...], list[Any]]) -> Any:
    """Check and return an array that a message contains. Raises Malformed."""
    dtype, shape, items = parts
    if TYPE.fullmatch(dtype) is None or len(shape) > MAX_DIMENSIONS:
        raise Malformed("no type of an array")
    if not all(type(size) is int and size >= 0 for size in shape):
        raise Malformed("no shape")
    # The shape is checked, because even an array without items can have a huge shape, such as
    # (10**9, 0).
    if math.prod(max(1, size) for size in shape) > max(len(items), codec.MAX_VALUES):
        raise Malformed("a shape that is too large")
    if math.prod(shape) != len(items):
        raise Malformed("an array of another size than its shape")
    kind, size = dtype[1], int(dtype[2:] or 0)
    if kind != "O" and any(type(each) is not KINDS[kind] for each in items):
        raise Malformed("items of another type than the array's")
    if kind in "iu" and items:
        bits = 8 * size - (kind == "i")
        low = -(1 << bits) if kind == "i" else 0
        if min(items) < low or max(items) >= 1 << bits:
            raise Malformed("an integer that its type cannot hold")
    return _make(dtype, shape, items)


_make: Callable[[str, tuple[int, ...], list[Any]], Any] = Array
codec.BUILDERS[b"n"] = ((str, tuple, list), _read)
codec.EXACT[Array] = lambda encoder, value, depth: encoder.tagged(
    b"n", (value.dtype, value.shape, value.items), depth
)


def use_numpy(numpy: Any) -> type:
    """Send and receive numpy's arrays in this process, and return their type."""
    global _make

    def simpler(value: Any) -> tuple[str, tuple[int, ...], list[Any]]:
        array = numpy.asarray(value)
        # float128 has no Python type, and its layout depends on the machine.
        if array.dtype.kind == "f" and array.dtype.itemsize > 8:
            array = array.astype("<f8")
        elif array.dtype.kind == "c" and array.dtype.itemsize > 16:
            array = array.astype("<c16")
        dtype = array.dtype.newbyteorder("<").str
        return ("|O" if dtype[1] == "O" else dtype), array.shape, array.ravel().tolist()

    def put(encoder: codec.Encoder, value: Any, depth: int) -> None:
        # Arrays of dates and of records are sent as objects, by handle.
        if numpy.ndarray.__getattribute__(value, "dtype").kind in "biufcUSO":
            encoder.tagged(b"n", simpler(value), depth)
        else:
            encoder.handle(encoder.handle_of(value), depth)

    def make(dtype: str, shape: tuple[int, ...], items: list[Any]) -> Any:
        if dtype != "|O":
            return numpy.array(items, dtype=dtype).reshape(shape)
        # numpy.array would turn items that are lists into further dimensions.
        array = numpy.empty(len(items), dtype=object)
        for place, each in enumerate(items):
            array[place] = each
        return array.reshape(shape)

    _send(numpy.ndarray, put)
    for kind, plain in (
        (numpy.bool_, bool),
        (numpy.integer, int),
        (numpy.floating, float),
        (numpy.complexfloating, complex),
    ):
        _send(kind, _plain(plain))
    _make = make
    return numpy.ndarray


def use_sympy(sympy: Any) -> None:
    """Send sympy's numbers and truth values from this process as Python's numbers and booleans."""
    _send(sympy.Integer, _plain(int))
    _send(sympy.Rational, _plain(lambda value: Fraction(int(value.p), int(value.q))))
    _send(sympy.Float, _plain(float))
    _send(type(sympy.true), _plain(lambda _: True))
    _send(type(sympy.false), _plain(lambda _: False))


def _send(kind: type, put: codec.Put) -> None:
    """Encode the values of a class and of its subclasses by the function ``put``."""
    codec.BASES[kind] = codec.EXACT[kind] = put


def _plain(convert: Callable[[Any], Any]) -> codec.Put:
    return lambda encoder, value, depth: encoder.put(convert(value), depth)
