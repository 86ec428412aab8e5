"""Encode and decode the plain data sent between a worker and a sandboxed process.

The codec uses neither pickle nor eval. An encoded value is a tag of one byte and the value's parts,
so decoding any bytes creates only the types in these tables. Most types are sent as a tag before a
simpler value: a set is a list of its members, a Fraction is two integers. Encoding calls no method
of an object, which can be hostile. Decoding raises only `Malformed`. Encoder and decoder limit the
size, the depth and the number of values. The digits of numbers and the keys of equal hash are
limited too, because long numbers and equal hashes are slow to read. The zygote loads this file
without the package, so it imports the standard library only.

Values of the types in `EXACT` are sent as themselves. Built-in types, exception classes and
collection types are sent by name. An object of a subclass that a submission defined is sent as a
plain value of the base type. A namedtuple is sent as a `Record`, a tuple with field names and the
name of its type. Iterators (generators, map, zip, itertools) are read up to `MAX_ITEMS` and decoded
as `Iterator`. All other objects, functions and classes are sent as a `Handle`. A handle of the kind
"data" includes the object's attributes.

An object that occurs twice in a message is decoded as two equal objects. A datetime's `fold` is
lost. A decoded range can be longer than any list, so it must not be iterated.
"""

from __future__ import annotations

import struct
from array import array
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from itertools import islice
from types import EllipsisType, NoneType
from typing import Any, cast

from .values import (
    FACTORIES,
    KINDS,
    MAX_DIGITS,
    MOMENTS,
    NAMES,
    TYPES,
    Handle,
    Iterator,
    Malformed,
    Record,
    Unsupported,
    are_names,
    record,
    small_decimal,
    small_parts,
)

# Limits of one message.
MAX_BYTES = 8 * 2**20
MAX_VALUES = 250_000
# Number of bytes of text that take about as long to read as one value.
BYTES_A_VALUE = 256
MAX_DEPTH = 150
# 78,000 decimal digits: comparing a longer integer with a Decimal is slow.
MAX_INT_BYTES = 2**15
# Maximum number of items read from an iterator, because an iterator can be endless.
MAX_ITEMS = 10_000
# Maximum number of keys with the same hash; Python compares such keys with each other.
MAX_EQUAL_HASHES = 32
PACKED_FROM = 17  # From this number of items on, small ints or floats are packed.
U32, I64, F64 = map(struct.Struct, ("<I", "<q", "<d"))
# `__mro__` is read from the type itself, because a submission's metaclass can redefine `__mro__`.
MRO = type.__dict__["__mro__"].__get__
VIEWS = {type({}.keys()): "keys", type({}.values()): "values", type({}.items()): "items"}
Put = Callable[["Encoder", Any, int], None]
ITERATORS = ("builtins", "itertools", "collections")  # All other iterators are sent as handles.


class Encoder:
    """Encodes one message. ``handle_of(value)`` returns the Handle of a value that is not plain."""

    def __init__(self, handle_of: Callable[[Any], Handle]) -> None:
        self.handle_of = handle_of
        self.parts: list[bytes] = []
        self.size = self.values = 0
        self.sent: set[tuple[int, int]] = set()  # keys of `states`
        self.states: list[Handle] = []  # Handles of objects that are sent with their attributes.
        self.hashed = 0  # Number of sets and dict keys that enclose the current value.
        self.in_state = False

    def message(self, value: Any) -> bytes:
        """Encode the attributes of the value's objects, then ``value``. Raises Unsupported."""
        self.put(value, 0)
        if not self.states:
            return b"".join(self.parts)
        value_parts, self.parts, self.in_state = self.parts, [], True
        for handle in self.states:  # It grows, because attributes can contain further objects.
            self.handle(handle, 0)
            self.put(handle.state, 1)
        return b"".join((b"B", U32.pack(len(self.states)), *self.parts, *value_parts))

    def write(self, *parts: bytes) -> None:
        self.size += sum(map(len, parts))
        if self.size > MAX_BYTES:
            raise Unsupported(f"more than {MAX_BYTES} bytes")
        self.parts.extend(parts)

    def block(self, tag: bytes, data: bytes) -> None:
        self.write(tag, U32.pack(len(data)), data)

    def put(self, value: Any, depth: int) -> None:
        self.values += 1
        if self.values > MAX_VALUES:
            raise Unsupported(f"more than {MAX_VALUES} values")
        if depth > MAX_DEPTH:
            raise Unsupported(f"deeper than {MAX_DEPTH}")
        kind = type(value)
        if kind in EXACT:
            EXACT[kind](self, value, depth + 1)
            return
        lineage = MRO(kind)
        base = next((each for each in lineage if each in BASES), None)
        if type in lineage and value in NAMES:
            self.tagged(b"Y", NAMES[value], depth)
        elif base is tuple and (fields := _fields_of(kind)) is not None:
            self.tagged(b"R", (kind.__name__, fields, (*tuple.__iter__(value),)), depth)
        elif base is not None:
            EXACT[base](self, value, depth + 1)
        elif hasattr(kind, "__next__") and kind.__module__ in ITERATORS:
            items = [*islice(value, MAX_ITEMS + 1)]
            complete = len(items) <= MAX_ITEMS
            self.tagged(b"X", (kind.__name__, items[:MAX_ITEMS], complete), depth)
        else:
            self.handle(self.handle_of(value), depth)

    def tagged(self, tag: bytes, value: Any, depth: int) -> None:
        self.write(tag)
        self.hashed += tag in b"SZ"
        self.put(value, depth + 1)
        self.hashed -= tag in b"SZ"

    def handle(self, handle: Handle, depth: int) -> None:
        parts = (handle.origin, handle.id, handle.hash, handle.kind, handle.names)
        self.tagged(b"H", parts, depth)
        if handle.kind == "data":
            if self.hashed and self.in_state and handle.hash is not None:
                # A set needs the hash of an object before the object's attributes have arrived.
                raise Unsupported("objects whose attributes hold sets, or keys, of such objects")
            if handle.key not in self.sent:
                self.sent.add(handle.key)
                self.states.append(handle)

    def text(self, text: str) -> None:
        try:
            data = str.encode(text)
        except UnicodeEncodeError:  # strict UTF-8 rejects unpaired surrogates
            data = str.encode(text, "utf-8", "surrogatepass")
        self.block(b"s", data)

    def integer(self, value: int) -> None:
        if -(2**63) <= value < 2**63:
            self.write(b"i", I64.pack(value))
            return
        length = value.bit_length() // 8 + 1
        if length > MAX_INT_BYTES:
            raise Unsupported(f"an integer of more than {MAX_INT_BYTES} bytes")
        self.block(b"I", value.to_bytes(length, "little", signed=True))

    def items(self, tag: bytes, items: Iterable[Any], depth: int) -> None:
        values = list(items)
        if len(values) >= PACKED_FROM and tag == b"l" and self.packed(values):
            return
        self.write(tag, U32.pack(len(values)))
        for value in values:
            self.put(value, depth)

    def packed(self, values: list[Any]) -> bool:
        """Encode small ints or floats with eight bytes each. Return False for other values."""
        kinds = set(map(type, values))
        if kinds == {int} and min(values) >= -(2**63) and max(values) < 2**63:
            code = "q"
        elif kinds == {float}:
            code = "d"
        else:
            return False
        self.values += len(values) // 4
        self.block(b"A" + code.encode(), array(code, values).tobytes())
        return True

    def pairs(self, pairs: Iterable[tuple[Any, Any]], depth: int) -> None:
        flat = list(pairs)
        self.write(b"m", U32.pack(len(flat)))
        for key, value in flat:
            self.hashed += 1
            self.put(key, depth)
            self.hashed -= 1
            self.put(value, depth)


def _fields_of(kind: type) -> tuple[str, ...] | None:
    fields = kind.__dict__.get("_fields")
    if type(fields) is tuple and all(type(each) is str for each in fields):
        return fields
    return None


def _moment(encoder: Encoder, value: Any, depth: int) -> None:
    zone = getattr(value, "tzinfo", None)
    if zone is not None and type(zone).__module__ != "datetime":
        encoder.handle(encoder.handle_of(value), depth)
    else:
        encoder.tagged(b"D", (type(value).__name__, value.isoformat()), depth)


def _factory(factory: Any) -> Any:
    return factory if any(factory is each for each in FACTORIES) else None


def _as(tag: bytes, simpler: Callable[[Any], Any]) -> Put:
    """Return an encoder that writes a tag and a simpler value."""
    return lambda encoder, value, depth: encoder.tagged(tag, simpler(value), depth)


# Types that a submission can subclass. Unbound methods of the base class read such values.
BASES: dict[type, Put] = {
    int: lambda encoder, value, _: encoder.integer(int.__pos__(value)),
    float: lambda encoder, value, _: encoder.write(b"d", F64.pack(float.__pos__(value))),
    complex: _as(b"c", lambda value: ((+complex.__pos__(value)).real, complex.__pos__(value).imag)),
    str: lambda encoder, value, _: encoder.text(value),
    bytes: lambda encoder, value, _: encoder.block(b"b", bytes.__getitem__(value, slice(None))),
    bytearray: _as(b"y", lambda value: bytes(bytearray.copy(value))),
    list: lambda encoder, value, depth: encoder.items(b"l", list.__iter__(value), depth),
    tuple: lambda encoder, value, depth: encoder.items(b"t", tuple.__iter__(value), depth),
    set: _as(b"S", lambda value: [*set.__iter__(value)]),
    frozenset: _as(b"Z", lambda value: [*frozenset.__iter__(value)]),
    dict: lambda encoder, value, depth: encoder.pairs(dict.items(value), depth),
    Counter: _as(b"C", lambda value: dict(dict.items(value))),
    OrderedDict: _as(b"O", lambda value: dict(OrderedDict.items(value))),
    defaultdict: _as(
        b"K", lambda value: (_factory(value.default_factory), dict(dict.items(value)))
    ),
    deque: _as(b"q", lambda value: (value.maxlen, [*deque.__iter__(value)])),
}
EXACT: dict[type, Put] = BASES | {
    NoneType: lambda encoder, _, __: encoder.write(b"N"),
    bool: lambda encoder, value, _: encoder.write(b"T" if value else b"F"),
    EllipsisType: lambda encoder, _, __: encoder.write(b"."),
    slice: _as(b"j", lambda value: (value.start, value.stop, value.step)),
    range: _as(b"r", lambda value: (value.start, value.stop, value.step)),
    timedelta: _as(b"p", lambda value: (value.days, value.seconds, value.microseconds)),
    Decimal: _as(b"e", lambda value: str(small_decimal(value))),
    Fraction: _as(b"f", lambda value: small_parts((value.numerator, value.denominator))),
    **dict.fromkeys(MOMENTS.values(), _moment),
    **{kind: _as(b"V", lambda value, name=name: (name, [*value])) for kind, name in VIEWS.items()},
    Record: _as(b"R", lambda value: (value.type_name, value._fields, (*value,))),
    Iterator: _as(b"X", lambda value: (value.kind, value.items[value.position :], value.complete)),
    Handle: lambda encoder, value, depth: encoder.handle(encoder.handle_of(value), depth),
}


class Decoder:
    """Decodes one message.

    stand_in: function that returns the stand-in for a handle, or raises to refuse the handle.
    fill: function that is called with each handle whose attributes have been read.
    """

    def __init__(
        self,
        data: bytes,
        stand_in: Callable[[Handle], Any],
        fill: Callable[[Handle], None] | None = None,
    ) -> None:
        if len(data) > MAX_BYTES:
            raise Malformed("too many bytes")
        self.data, self.position, self.values = data, 0, 0
        self.stand_in, self.fill = stand_in, fill
        self.handles: dict[tuple[int, int], Handle] = {}
        self.latest: Handle | None = None

    def message(self) -> Any:
        """Return the value that the message encodes. Raises only Malformed."""
        try:
            if self.data[:1] == b"B":
                self.take(1)
                for _ in range(self.count()):
                    self.object()
            value = self.get(0)
        except Malformed:
            raise
        except Exception as error:  # the bytes can contain anything
            raise Malformed(f"{type(error).__name__}") from None
        if self.position != len(self.data):
            raise Malformed("more bytes than the value")
        return value

    def object(self) -> None:
        """Read the attributes of one object from the message."""
        self.latest = None
        self.get(0)
        handle, state = self.latest, self.get(1)
        if handle is None or handle.kind != "data" or type(state) is not dict:
            raise Malformed("attributes of nothing")
        handle.state = cast("dict[str, Any]", state)
        if not all(type(name) is str for name in handle.state):
            raise Malformed("attributes that have no names")
        if self.fill is not None:
            self.fill(handle)

    def charge(self, work: int) -> None:
        """Count decoding work in units of one value. Raises Malformed above the message limit."""
        self.values += work
        if self.values > MAX_VALUES:
            raise Malformed("too many values")

    def take(self, size: int) -> bytes:
        end = self.position + size
        if end > len(self.data):
            raise Malformed("fewer bytes than the value")
        taken = self.data[self.position : end]
        self.position = end
        return taken

    def count(self) -> int:
        return U32.unpack(self.take(4))[0]

    def length(self) -> int:
        if (count := self.count()) > len(self.data) - self.position:
            raise Malformed("fewer bytes than the value")
        return count

    def block(self) -> bytes:
        data = self.take(self.count())
        if len(data) >= BYTES_A_VALUE:
            self.charge(len(data) // BYTES_A_VALUE)
        return data

    def text(self) -> str:
        data = self.block()
        try:
            return data.decode()
        except UnicodeDecodeError:  # Unpaired surrogates take a slow path, so they are charged.
            self.charge(len(data) // 32)
            return data.decode("utf-8", "surrogatepass")

    def get(self, depth: int) -> Any:
        self.values += 1
        if depth > MAX_DEPTH or self.values > MAX_VALUES:
            raise Malformed("too deep, or too many values")
        tag = self.take(1)
        if tag in READERS:
            return READERS[tag](self, depth + 1)
        kinds, build = BUILDERS[tag]  # `message` reports the KeyError of an unknown tag.
        value = self.get(depth + 1)
        parts, wanted = (value, kinds) if type(kinds) is tuple else ((value,), (kinds,))
        if type(parts) is not tuple or len(parts) != len(wanted):
            raise Malformed("other parts than its tag has")
        if any(one is not type(part) for part, one in zip(parts, wanted, strict=True) if one):
            raise Malformed("parts of other types than its tag has")
        return build(self, value)

    def items(self, depth: int) -> list[Any]:
        return [self.get(depth) for _ in range(self.length())]

    def pairs(self, depth: int) -> dict[Any, Any]:
        pairs = [(self.get(depth), self.get(depth)) for _ in range(self.length())]
        self.distinct([key for key, _ in pairs])
        return dict(pairs)

    def distinct(self, keys: list[Any]) -> list[Any]:
        """Return ``keys``. Raises Malformed if equal hashes make a set of these keys slow.

        Python compares keys of equal hash with each other, and nested sets member by member, so the
        decoder charges the square of the sizes.
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

    def array(self) -> list[Any]:
        code, data = self.take(1), self.block()
        if code not in (b"q", b"d"):
            raise Malformed("an unknown tag")
        values = array(code.decode())
        values.frombytes(data)
        self.charge(len(values) // 4)
        return values.tolist()

    def handle(self, parts: tuple[Any, ...]) -> Any:
        origin, id, hash, kind, names = parts
        if type(hash) not in (int, NoneType) or kind not in KINDS or not are_names(names):
            raise Malformed("no handle")
        handle = Handle(origin, id, kind, names, hash)
        self.latest = self.handles.setdefault(handle.key, handle)
        return self.stand_in(self.latest)


def weight(key: Any) -> int:
    """Return the approximate number of values that the comparison of a key reads."""
    if isinstance(key, tuple | frozenset):
        return 1 + sum(map(weight, cast("tuple[Any, ...]", key)))
    if type(key) is int:
        return 1 + key.bit_length() // 512
    if type(key) is Decimal:
        return 1 + len(key.as_tuple().digits) // 64
    if type(key) is Fraction:
        return 1 + (key.numerator.bit_length() + key.denominator.bit_length()) // 256
    return 1 + len(key) // 4096 if isinstance(key, str | bytes) else 1


def _read_decimal(decoder: Decoder, text: str) -> Decimal:
    if len(text) > MAX_DIGITS + 30 or not text.isascii():
        raise Malformed("a Decimal of too many digits")
    decoder.charge(len(text) // 64)
    return small_decimal(Decimal(text))


def _read_fraction(decoder: Decoder, parts: tuple[int, int]) -> Fraction:
    decoder.charge((sum(part.bit_length() for part in small_parts(parts)) // 1024) ** 2)
    return Fraction(*parts)


def _read_view(decoder: Decoder, parts: tuple[str, list[Any]]) -> Any:
    kind, items = parts
    if kind == "items":
        decoder.distinct([key for key, _ in items])
        return dict(items).items()
    if kind == "keys":
        return dict.fromkeys(decoder.distinct(items)).keys()
    return dict(enumerate(items)).values()


def _read_record(_: Decoder, parts: tuple[str, tuple[Any, ...], tuple[Any, ...]]) -> Record:
    name, fields, values = parts
    if len(fields) != len(values) or not all(type(each) is str for each in fields):
        raise Malformed("fields that are not as many as the values")
    return record(name, fields, values)


def _read_counter(_: Decoder, items: dict[Any, Any]) -> Counter[Any]:
    result: Counter[Any] = Counter()
    # Counter.update would add counts, and fail for values that are no numbers.
    dict.update(result, items)
    return result


READERS: dict[bytes, Callable[[Decoder, int], Any]] = {
    b"N": lambda _, __: None,
    b"T": lambda _, __: True,
    b"F": lambda _, __: False,
    b".": lambda _, __: Ellipsis,
    b"i": lambda decoder, _: I64.unpack(decoder.take(8))[0],
    b"I": lambda decoder, _: decoder.integer(),
    b"d": lambda decoder, _: F64.unpack(decoder.take(8))[0],
    b"s": lambda decoder, _: decoder.text(),
    b"b": lambda decoder, _: decoder.block(),
    b"A": lambda decoder, _: decoder.array(),
    b"l": Decoder.items,
    b"t": lambda decoder, depth: tuple(decoder.items(depth)),
    b"m": Decoder.pairs,
}
# Values are (type of the value after the tag, constructor), keyed by tag.
# A tuple of types describes the parts of a tuple. None accepts any type.
BUILDERS: dict[bytes, tuple[Any, Callable[[Decoder, Any], Any]]] = {
    b"c": ((float, float), lambda _, parts: complex(*parts)),
    b"y": (bytes, lambda _, data: bytearray(data)),
    b"S": (list, lambda decoder, items: set(decoder.distinct(items))),
    b"Z": (list, lambda decoder, items: frozenset(decoder.distinct(items))),
    b"C": (dict, _read_counter),
    b"O": (dict, lambda _, items: OrderedDict(items)),
    b"K": ((None, dict), lambda _, parts: defaultdict(FACTORIES.get(parts[0]), parts[1])),
    b"q": ((None, list), lambda _, parts: deque(parts[1], parts[0])),
    b"j": ((None, None, None), lambda _, parts: slice(*parts)),
    b"r": ((int, int, int), lambda _, parts: range(*parts)),
    b"p": ((int, int, int), lambda _, parts: timedelta(*parts)),
    b"f": ((int, int), _read_fraction),
    b"e": (str, _read_decimal),
    b"D": ((str, str), lambda _, parts: MOMENTS[parts[0]].fromisoformat(parts[1])),
    b"R": ((str, tuple, tuple), _read_record),
    b"V": ((str, list), _read_view),
    b"X": ((str, list, bool), lambda _, parts: Iterator(*parts)),
    b"Y": (str, lambda _, name: TYPES[name]),
    b"H": ((int, int, None, str, tuple), Decoder.handle),
}


def encode(value: Any, handle_of: Callable[[Any], Handle]) -> bytes:
    """Return the encoded bytes of ``value``. Raises Unsupported."""
    return Encoder(handle_of).message(value)
