"""Bytes to plain data; `values` says which. The bytes may be anything: only `Malformed` is raised."""

from __future__ import annotations

import struct
from array import array
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any, cast

from .values import (
    BYTES_A_VALUE,
    F64,
    I64,
    MAX_BYTES,
    MAX_DEPTH,
    MAX_DIGITS,
    MAX_EQUAL_HASHES,
    MAX_EXPONENT,
    MAX_FRACTION_BYTES,
    MAX_INT_BYTES,
    MAX_VALUES,
    TYPES,
    U32,
    Handle,
    Iterator,
    Malformed,
    Record,
    record,
)


class Decoder:
    """Read one message. ``handle(tag, handle)`` returns what stands for a handle; it may refuse."""

    def __init__(self, data: bytes, handle: Callable[[bytes, Handle], Any]) -> None:
        if len(data) > MAX_BYTES:
            raise Malformed("too many bytes")
        self.data, self.position, self.values = data, 0, 0
        self.handle = handle

    def charge(self, work: int) -> None:
        """Count work as so many values. Raises Malformed beyond what one message may cost."""
        self.values += work
        if self.values > MAX_VALUES:
            raise Malformed("too many values")

    def message(self) -> Any:
        """Return the value. Raises Malformed, and nothing else."""
        try:
            value = self.get(0)
        except Malformed:
            raise
        except Exception as error:  # bytes may be anything
            raise Malformed(f"{type(error).__name__}") from None
        if self.position != len(self.data):
            raise Malformed("more bytes than the value")
        return value

    def take(self, size: int) -> bytes:
        end = self.position + size
        if end > len(self.data):
            raise Malformed("fewer bytes than the value")
        taken = self.data[self.position : end]
        self.position = end
        return taken

    def count(self) -> int:
        return U32.unpack(self.take(4))[0]

    def block(self) -> bytes:
        data = self.take(self.count())
        if len(data) >= BYTES_A_VALUE:
            self.charge(len(data) // BYTES_A_VALUE)
        return data

    def text(self) -> str:
        data = self.block()
        try:
            return data.decode()
        except UnicodeDecodeError:  # lone surrogates: read one by one
            self.charge(len(data) // 32)
            return data.decode("utf-8", "surrogatepass")

    def get(self, depth: int) -> Any:
        self.values += 1
        if depth > MAX_DEPTH or self.values > MAX_VALUES:
            raise Malformed("too deep, or too many values")
        tag = self.take(1)
        if tag not in READERS:
            raise Malformed("an unknown tag")
        return READERS[tag](self, depth + 1)

    def expect(self, kind: type, depth: int) -> Any:
        value = self.get(depth)
        if type(value) is not kind:
            raise Malformed(f"not {kind.__name__}")
        return value

    def items(self, depth: int) -> list[Any]:
        count = self.count()
        if count > len(self.data) - self.position:
            raise Malformed("fewer bytes than the value")
        return [self.get(depth) for _ in range(count)]

    def pairs(self, depth: int) -> list[tuple[Any, Any]]:
        count = self.count()
        if count > len(self.data) - self.position:
            raise Malformed("fewer bytes than the value")
        pairs = [(self.get(depth), self.get(depth)) for _ in range(count)]
        self.distinct([key for key, _ in pairs])
        return pairs

    def distinct(self, keys: list[Any]) -> list[Any]:
        """Return ``keys``, unless so many have one hash that a set of them would take long to build.

        Two of one hash are compared, and two sets of sets by comparing each member with each: the
        square of their sizes is charged.
        """
        hashes = list(map(hash, keys))
        if len(set(hashes)) == len(keys):
            return keys
        groups: dict[int, list[Any]] = {}
        for number, key in zip(hashes, keys, strict=True):
            groups.setdefault(number, []).append(key)
        for group in groups.values():
            if len(group) > MAX_EQUAL_HASHES:
                raise Malformed("many keys of one hash")
            if len(group) > 1:
                self.charge(len(group) ** 2 * max(map(weight, group)) ** 2 // 2)
        return keys

    def integer(self) -> int:
        data = self.block()
        if len(data) > MAX_INT_BYTES:
            raise Malformed("too large an integer")
        self.charge(len(data) // 64)
        return int.from_bytes(data, "little", signed=True)


def weight(key: Any) -> int:
    """About how many values comparing a key looks at."""
    if isinstance(key, tuple | frozenset):
        return 1 + sum(map(weight, cast("tuple[Any, ...]", key)))
    if type(key) is int:
        return 1 + key.bit_length() // 512
    if type(key) is Decimal:
        return 1 + len(key.as_tuple().digits) // 64
    if type(key) is Fraction:
        return 1 + (key.numerator.bit_length() + key.denominator.bit_length()) // 256
    return 1 + len(key) // 4096 if isinstance(key, str | bytes) else 1


def _array(decoder: Decoder, _: int) -> Any:
    tag, code, data = decoder.take(1), decoder.take(1), decoder.block()
    if code not in (b"q", b"d"):
        raise Malformed("an unknown tag")
    values = array(code.decode())
    values.frombytes(data)
    decoder.charge(len(values) // 4)
    return SEQUENCE_OF[tag](decoder.distinct(values.tolist()) if tag in b"SZ" else values.tolist())


def _read_decimal(decoder: Decoder, _: int) -> Decimal:
    data = decoder.block()
    if len(data) > MAX_DIGITS + 30:
        raise Malformed("a Decimal of too many digits")
    decoder.charge(len(data) // 64)
    value = Decimal(data.decode("ascii"))
    _, digits, exponent = value.as_tuple()
    if len(digits) > MAX_DIGITS or (type(exponent) is int and abs(exponent) > MAX_EXPONENT):
        raise Malformed("a Decimal of too many digits")
    return value


def _read_fraction(decoder: Decoder, depth: int) -> Fraction:
    parts = [decoder.expect(int, depth) for _ in range(2)]
    if max(part.bit_length() for part in parts) > 8 * MAX_FRACTION_BYTES:
        raise Malformed("a Fraction of too many digits")
    decoder.charge((sum(part.bit_length() for part in parts) // 1024) ** 2)
    return Fraction(*parts)


def _read_moment(decoder: Decoder, _: int) -> Any:
    kind = {b"d": date, b"t": time, b"s": datetime}[decoder.take(1)]
    return kind.fromisoformat(decoder.block().decode("ascii"))


def _read_view(decoder: Decoder, depth: int) -> Any:
    kind = decoder.block()
    items = decoder.expect(list, depth)
    if kind == b"items":
        decoder.distinct([key for key, _ in items])
        return dict(items).items()
    if kind == b"keys":
        return dict.fromkeys(decoder.distinct(items)).keys()
    return dict(enumerate(items)).values()


def _read_record(decoder: Decoder, depth: int) -> Record:
    name = decoder.text()
    fields, values = decoder.expect(tuple, depth), decoder.expect(tuple, depth)
    if len(fields) != len(values) or not all(type(each) is str for each in fields):
        raise Malformed("fields that are not as many as the values")
    return record(name, fields, values)


def _read_iterator(decoder: Decoder, depth: int) -> Iterator:
    kind = decoder.text()
    complete = decoder.expect(bool, depth)
    return Iterator(kind, decoder.expect(list, depth), complete)


def _read_handle(tag: bytes) -> Callable[[Decoder, int], Any]:
    def read(decoder: Decoder, depth: int) -> Any:
        origin, id = I64.unpack(decoder.take(8))[0], I64.unpack(decoder.take(8))[0]
        callable = decoder.take(1) == b"\1"
        type_name, kind = decoder.expect(str, depth), decoder.expect(str, depth)
        return decoder.handle(tag, Handle(origin, id, type_name[:200], kind[:20], callable))

    return read


def _read_deque(decoder: Decoder, depth: int) -> deque[Any]:
    maxlen = decoder.get(depth)
    return deque(decoder.expect(list, depth), maxlen)


def _read_defaultdict(decoder: Decoder, depth: int) -> defaultdict[Any, Any]:
    factory = decoder.get(depth)
    if factory is not None and factory not in (int, float, list, dict, set, str, tuple, bool):
        factory = None
    return defaultdict(factory, decoder.expect(dict, depth))


def _counter(pairs: list[tuple[Any, Any]]) -> Counter[Any]:
    result: Counter[Any] = Counter()
    for key, value in pairs:
        result[key] = value
    return result


SEQUENCE_OF: dict[bytes, Callable[[Iterable[Any]], Any]] = {
    b"l": list,
    b"t": tuple,
    b"S": set,
    b"Z": frozenset,
}
READERS: dict[bytes, Callable[[Decoder, int], Any]] = {
    b"N": lambda _, __: None,
    b"T": lambda _, __: True,
    b"F": lambda _, __: False,
    b".": lambda _, __: Ellipsis,
    b"i": lambda decoder, _: I64.unpack(decoder.take(8))[0],
    b"I": lambda decoder, _: decoder.integer(),
    b"d": lambda decoder, _: F64.unpack(decoder.take(8))[0],
    b"c": lambda decoder, _: complex(*struct.unpack("<dd", decoder.take(16))),
    b"s": lambda decoder, _: decoder.text(),
    b"b": lambda decoder, _: decoder.block(),
    b"y": lambda decoder, _: bytearray(decoder.block()),
    b"l": Decoder.items,
    b"t": lambda decoder, depth: tuple(decoder.items(depth)),
    b"S": lambda decoder, depth: set(decoder.distinct(decoder.items(depth))),
    b"Z": lambda decoder, depth: frozenset(decoder.distinct(decoder.items(depth))),
    b"m": lambda decoder, depth: dict(decoder.pairs(depth)),
    b"C": lambda decoder, depth: _counter(decoder.pairs(depth)),
    b"O": lambda decoder, depth: OrderedDict(decoder.pairs(depth)),
    b"K": _read_defaultdict,
    b"q": _read_deque,
    b"j": lambda decoder, depth: slice(*decoder.items(depth)),
    b"r": lambda decoder, depth: range(*(decoder.expect(int, depth) for _ in range(3))),
    b"p": lambda decoder, depth: timedelta(*(decoder.expect(int, depth) for _ in range(3))),
    b"f": _read_fraction,
    b"e": _read_decimal,
    b"D": _read_moment,
    b"A": _array,
    b"R": _read_record,
    b"V": _read_view,
    b"X": _read_iterator,
    b"Y": lambda decoder, _: TYPES[decoder.block().decode()],
    b"H": _read_handle(b"H"),
    b"G": _read_handle(b"G"),
}


def decode(data: bytes, handle: Callable[[bytes, Handle], Any]) -> Any:
    """Return the value of ``data``. Raises Malformed, and nothing else."""
    return Decoder(data, handle).message()
