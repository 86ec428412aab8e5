"""Plain data to bytes; `values` says which. Hostile objects may be met: none of their methods is trusted."""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

from .values import (
    BYTES_A_VALUE,
    F64,
    I64,
    MAX_BYTES,
    MAX_DEPTH,
    MAX_DIGITS,
    MAX_EXPONENT,
    MAX_FRACTION_BYTES,
    MAX_INT_BYTES,
    MAX_ITEMS,
    MAX_VALUES,
    NAMES,
    SEQUENCES,
    U32,
    VIEWS,
    Handle,
    Iterator,
    Record,
    Unsupported,
)


class Encoder:
    """Write one message. ``opaque(value)`` returns the tag and the Handle of any other object."""

    def __init__(self, opaque: Callable[[Any], tuple[bytes, Handle]]) -> None:
        self.opaque = opaque
        self.parts: list[bytes] = []
        self.size = self.values = 0

    def message(self, value: Any) -> bytes:
        """Return the bytes of ``value``. Raises Unsupported."""
        self.put(value, 0)
        return b"".join(self.parts)

    def write(self, *parts: bytes) -> None:
        self.size += sum(map(len, parts))
        if self.size > MAX_BYTES:
            raise Unsupported(f"more than {MAX_BYTES} bytes")
        self.parts.extend(parts)

    def charge(self, work: int) -> None:
        """Count what reading it will cost, as the decoder does."""
        self.values += work
        if self.values > MAX_VALUES:
            raise Unsupported(f"more than {MAX_VALUES} values, or what takes as long to read")

    def block(self, tag: bytes, data: bytes) -> None:
        if len(data) >= BYTES_A_VALUE:
            self.charge(len(data) // BYTES_A_VALUE)
        self.write(tag, U32.pack(len(data)), data)

    def text(self, tag: bytes, text: str) -> None:
        try:
            data = str.encode(text)
        except UnicodeEncodeError:  # lone surrogates: they are read one by one
            data = str.encode(text, "utf-8", "surrogatepass")
            self.charge(len(data) // 32)
        self.block(tag, data)

    def put(self, value: Any, depth: int) -> None:
        self.values += 1
        if self.values > MAX_VALUES:
            raise Unsupported(f"more than {MAX_VALUES} values")
        if depth > MAX_DEPTH:
            raise Unsupported(f"deeper than {MAX_DEPTH}")
        kind = type(value)
        if value is None or value is True or value is False or value is Ellipsis:
            self.write({None: b"N", True: b"T", False: b"F"}.get(value, b"."))
        elif kind in SCALARS:
            SCALARS[kind](self, value)
        elif kind in COLLECTIONS:
            COLLECTIONS[kind](self, value, depth + 1)
        else:
            self.other(value, kind, depth)

    def other(self, value: Any, kind: type, depth: int) -> None:
        """Write what is of no known exact type: a type, a view, an iterator, a subclass, a handle."""
        lineage = type.__dict__["__mro__"].__get__(kind)
        if type in lineage and value in NAMES:
            self.text(b"Y", NAMES[value])
        elif kind is Handle:
            self.handle(*self.opaque(value))
        elif kind in VIEWS:
            self.text(b"V", VIEWS[kind])
            self.items(b"l", list(value), depth + 1)
        elif Record in lineage or (tuple in lineage and _fields_of(kind) is not None):
            self.record(value, kind, depth + 1)
        elif kind is Iterator:
            self.iterator(value.kind, value.items[value.position :], value.complete, depth + 1)
        elif (base := next((each for each in lineage if each in BASES), None)) is not None:
            BASES[base](self, value, depth)
        elif _is_iterator(value, kind, lineage):
            self.consume(value, kind, depth + 1)
        else:
            self.handle(*self.opaque(value))

    def handle(self, tag: bytes, handle: Handle) -> None:
        self.write(
            tag, I64.pack(handle.origin), I64.pack(handle.id), b"\1" if handle.callable else b"\0"
        )
        self.text(b"s", handle.type_name[:200])
        self.text(b"s", handle.kind[:20])

    def integer(self, value: int) -> None:
        if -(2**63) <= value < 2**63:
            self.write(b"i", I64.pack(value))
            return
        length = value.bit_length() // 8 + 1
        if length > MAX_INT_BYTES:
            raise Unsupported(f"an integer of more than {MAX_INT_BYTES} bytes")
        self.charge(length // 64)
        self.block(b"I", value.to_bytes(length, "little", signed=True))

    def items(self, tag: bytes, items: Iterable[Any], depth: int) -> None:
        values = list(items)
        if len(values) > 16 and self.packed(tag, values):
            return
        self.write(tag, U32.pack(len(values)))
        for value in values:
            self.put(value, depth)

    def packed(self, tag: bytes, values: list[Any]) -> bool:
        """Write many small ints, or many floats, at once: eight bytes each."""
        kinds = set(map(type, values))
        if kinds == {int} and min(values) >= -(2**63) and max(values) < 2**63:
            data = array("q", values).tobytes()
        elif kinds == {float}:
            data = array("d", values).tobytes()
        else:
            return False
        self.charge(len(values) // 4)
        self.block(b"A" + tag + (b"q" if kinds == {int} else b"d"), data)
        return True

    def pairs(self, tag: bytes, pairs: Iterable[tuple[Any, Any]], depth: int) -> None:
        flat = list(pairs)
        self.write(tag, U32.pack(len(flat)))
        for key, value in flat:
            self.put(key, depth)
            self.put(value, depth)

    def record(self, value: Any, kind: type, depth: int) -> None:
        fields = value._fields if kind is Record else _fields_of(kind) or ()
        self.text(b"R", value.type_name if kind is Record else kind.__name__)
        self.items(b"t", fields, depth)
        self.items(b"t", tuple.__iter__(value), depth)

    def iterator(self, kind: str, items: list[Any], complete: bool, depth: int) -> None:
        self.text(b"X", kind)
        self.write(b"T" if complete else b"F")
        self.items(b"l", items, depth)

    def consume(self, value: Any, kind: type, depth: int) -> None:
        items: list[Any] = []
        complete = False
        for item in value:
            if len(items) >= MAX_ITEMS:
                break
            items.append(item)
        else:
            complete = True
        self.iterator(kind.__name__, items, complete, depth)


def _fields_of(kind: type) -> tuple[str, ...] | None:
    fields = kind.__dict__.get("_fields")
    if type(fields) is tuple and all(type(each) is str for each in fields):
        return fields
    return None


def _is_iterator(value: Any, kind: type, lineage: tuple[type, ...]) -> bool:
    """A built-in iterator or generator; an object with __next__ of the submission stays a handle."""
    return hasattr(kind, "__next__") and kind.__module__ in ("builtins", "itertools", "collections")


def _decimal(encoder: Encoder, value: Decimal) -> None:
    _, digits, exponent = value.as_tuple()
    if len(digits) > MAX_DIGITS or (type(exponent) is int and abs(exponent) > MAX_EXPONENT):
        raise Unsupported("a Decimal of too many digits")
    encoder.charge((len(digits) + 30) // 64)
    encoder.text(b"e", str(value))


def _fraction(encoder: Encoder, value: Fraction) -> None:
    sizes = (value.numerator.bit_length(), value.denominator.bit_length())
    if max(sizes) > 8 * MAX_FRACTION_BYTES:
        raise Unsupported("a Fraction of too many digits")
    encoder.charge(2 + (sum(sizes) // 1024) ** 2)
    encoder.write(b"f")
    encoder.integer(value.numerator)
    encoder.integer(value.denominator)


def _moment(tag: bytes) -> Callable[[Encoder, Any], None]:
    def write(encoder: Encoder, value: Any) -> None:
        zone = getattr(value, "tzinfo", None)
        if zone is not None and type(zone).__module__ != "datetime":
            encoder.handle(*encoder.opaque(value))
        else:
            encoder.text(b"D" + tag, value.isoformat())

    return write


def _timedelta(encoder: Encoder, value: timedelta) -> None:
    encoder.write(b"p")
    for part in (value.days, value.seconds, value.microseconds):
        encoder.integer(part)


def _complex(encoder: Encoder, value: complex) -> None:
    encoder.write(b"c", F64.pack(value.real), F64.pack(value.imag))


def _range(encoder: Encoder, value: range) -> None:
    encoder.write(b"r")
    for part in (value.start, value.stop, value.step):
        encoder.integer(part)


def _sequence(tag: bytes, base: Any) -> Callable[[Encoder, Any, int], None]:
    return lambda encoder, value, depth: encoder.items(tag, base.__iter__(value), depth)


def _dictionary(tag: bytes, base: Any) -> Callable[[Encoder, Any, int], None]:
    return lambda encoder, value, depth: encoder.pairs(tag, base.items(value), depth)


def _deeper(write: Callable[[Encoder, Any, int], None]) -> Callable[[Encoder, Any, int], None]:
    return lambda encoder, value, depth: write(encoder, value, depth + 1)


def _deque(encoder: Encoder, value: deque[Any], depth: int) -> None:
    encoder.write(b"q")
    encoder.put(value.maxlen, depth)
    encoder.items(b"l", deque.__iter__(value), depth)


def _defaultdict(encoder: Encoder, value: defaultdict[Any, Any], depth: int) -> None:
    factory: Any = value.default_factory
    encoder.write(b"K")
    encoder.put(factory if isinstance(factory, type) and factory in NAMES else None, depth)
    encoder.pairs(b"m", dict.items(value), depth)


def _slice(encoder: Encoder, value: slice, depth: int) -> None:
    encoder.items(b"j", (value.start, value.stop, value.step), depth)


SCALARS: dict[type, Callable[[Encoder, Any], None]] = {
    int: Encoder.integer,
    float: lambda encoder, value: encoder.write(b"d", F64.pack(value)),
    complex: _complex,
    str: lambda encoder, value: encoder.text(b"s", value),
    bytes: lambda encoder, value: encoder.block(b"b", value),
    bytearray: lambda encoder, value: encoder.block(b"y", bytes(value)),
    range: _range,
    Decimal: _decimal,
    Fraction: _fraction,
    date: _moment(b"d"),
    time: _moment(b"t"),
    datetime: _moment(b"s"),
    timedelta: _timedelta,
}
COLLECTIONS: dict[type, Callable[[Encoder, Any, int], None]] = {
    **{base: _sequence(tag, base) for base, tag in SEQUENCES.items()},
    dict: _dictionary(b"m", dict),
    Counter: _dictionary(b"C", dict),
    OrderedDict: _dictionary(b"O", OrderedDict),
    defaultdict: _defaultdict,
    deque: _deque,
    slice: _slice,
}
# A subclass arrives as its plain base value: unbound methods of the base read it, none of its own.
BASES: dict[type, Callable[[Encoder, Any, int], None]] = {
    int: lambda encoder, value, _: encoder.integer(int.__pos__(value)),
    float: lambda encoder, value, _: encoder.write(b"d", F64.pack(float.__pos__(value))),
    complex: lambda encoder, value, _: _complex(encoder, complex.__pos__(value)),
    str: lambda encoder, value, _: encoder.text(b"s", value),
    bytes: lambda encoder, value, _: encoder.block(b"b", bytes.__getitem__(value, slice(None))),
    bytearray: lambda encoder, value, _: encoder.block(b"y", bytes(bytearray.copy(value))),
    **{base: _deeper(write) for base, write in COLLECTIONS.items() if base is not slice},
}


def encode(value: Any, opaque: Callable[[Any], tuple[bytes, Handle]]) -> bytes:
    """Return the bytes of ``value``. Raises Unsupported."""
    return Encoder(opaque).message(value)
