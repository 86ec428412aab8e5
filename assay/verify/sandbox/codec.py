"""Typed plain data as bytes, in both directions between a worker and a sandboxed process.

Not pickle and not eval: a value is a tag of one byte and its parts, so decoding builds only the types
of the table below, whatever the bytes are. Both sides bound the size, the depth and the number of
values, and the decoder also what can make the reader slow later: the digits of numbers, and keys of
equal hash. The zygote loads this file without the package, so it imports the standard library only.

    exact types   None bool int float complex str bytes bytearray list tuple set frozenset dict range slice
                  deque Counter OrderedDict defaultdict Decimal Fraction date time datetime timedelta Ellipsis
    by name       built-in types and exceptions, the collections above
    subclasses    of int, float, complex, str, bytes: the plain base value; of list, set, dict ...: likewise; a
                  namedtuple is a `Record`: a tuple that also has its fields and its type's name
    views         dict keys, values and items arrive as such
    iterators     generators, map, zip, itertools ...: consumed up to `MAX_ITEMS` into an `Iterator`
    all else      functions, classes, objects of classes of the submission: an opaque `Handle`
"""

from __future__ import annotations

import struct
from array import array
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

MAX_BYTES = 8 * 2**20  # of one message
MAX_VALUES = 400_000  # in one message
MAX_DEPTH = 150
MAX_INT_BYTES = 2**17  # 315,000 decimal digits
MAX_EXPONENT = 20_000  # of a Decimal: it may become an int somewhere
MAX_DIGITS = 20_000  # of a Decimal
MAX_ITEMS = 10_000  # taken from an iterator
MAX_EQUAL_HASHES = 32  # keys of one set or dict: each costs a comparison with all the others

EXCEPTIONS: dict[str, type[BaseException]] = {
    each.__name__: each
    for each in vars(__import__("builtins")).values()
    if isinstance(each, type) and issubclass(each, BaseException)
}
TYPES: dict[str, type] = {
    each.__name__: each
    for each in (
        *(int, float, complex, bool, str, bytes, bytearray, list, tuple, set, frozenset, dict),
        *(range, slice, object, type, type(None), enumerate, zip, map, filter, reversed),
        *(memoryview, property, staticmethod, classmethod, super),
        *(Counter, OrderedDict, defaultdict, deque, Decimal, Fraction),
        *(date, time, datetime, timedelta),
    )
} | EXCEPTIONS
NAMES = {each: name for name, each in TYPES.items()}
VIEWS = {type({}.keys()): "keys", type({}.values()): "values", type({}.items()): "items"}


class Malformed(ValueError):
    """Bytes that no encoder of this module wrote, or more of them than allowed."""


class Unsupported(ValueError):
    """A value that cannot travel: too large, too deep, or of a kind that may not."""


class Handle:
    """An opaque object inside a sandboxed process: it can be passed back to where it lives.

    origin: number of its session; id: its number there; kind: function, class or object.
    """

    __slots__ = ("callable", "id", "kind", "origin", "type_name")

    def __init__(self, origin: int, id: int, type_name: str, kind: str, callable: bool) -> None:
        self.origin, self.id = origin, id
        self.type_name, self.kind, self.callable = type_name, kind, callable

    def __eq__(self, other: object) -> bool:
        return type(other) is Handle and (self.origin, self.id) == (other.origin, other.id)

    def __hash__(self) -> int:
        return hash((self.origin, self.id))

    def __repr__(self) -> str:
        return f"<{self.kind} {self.type_name} #{self.id}>"


class Iterator:
    """What an iterator of the submission held: its first items, and whether those were all.

    It is itself an iterator, so that a test program may loop over it or call next().
    """

    __slots__ = ("complete", "items", "kind", "position")

    def __init__(self, kind: str, items: list[Any], complete: bool) -> None:
        self.kind, self.items, self.complete = kind, items, complete
        self.position = 0

    def __iter__(self) -> Iterator:
        return self

    def __next__(self) -> Any:
        if self.position >= len(self.items):
            raise StopIteration
        self.position += 1
        return self.items[self.position - 1]

    def __eq__(self, other: object) -> bool:
        return type(other) is Iterator and (self.items, self.complete) == (
            other.items,
            other.complete,
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{self.kind} of {self.items!r}{'' if self.complete else ' ...'}>"


class Record(tuple[Any, ...]):
    """A namedtuple of the submission: equal to the plain tuple, its fields readable by name."""

    _fields: tuple[str, ...]
    type_name: str

    def __getattr__(self, name: str) -> Any:
        fields = self.__dict__.get("_fields", ())
        if name in fields:
            return self[fields.index(name)]
        raise AttributeError(f"{self.__dict__.get('type_name')} has no field {name}")

    def __repr__(self) -> str:
        pairs = zip(self._fields, self, strict=True)
        return f"{self.type_name}({', '.join(f'{name}={value!r}' for name, value in pairs)})"


def record(type_name: str, fields: Iterable[str], values: Iterable[Any]) -> Record:
    """Return a `Record`; ``fields`` and ``values`` are of one length."""
    result = Record(values)
    result.type_name, result._fields = type_name, tuple(fields)
    return result


U32 = struct.Struct("<I")
I64 = struct.Struct("<q")
F64 = struct.Struct("<d")
SEQUENCES: dict[type, bytes] = {list: b"l", tuple: b"t", set: b"S", frozenset: b"Z"}


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

    def block(self, tag: bytes, data: bytes) -> None:
        self.write(tag, U32.pack(len(data)), data)

    def text(self, tag: bytes, text: str) -> None:
        self.block(tag, str.encode(text, "utf-8", "surrogatepass"))

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
        self.block(b"A" + tag + (b"q" if kinds == {int} else b"d"), data)
        return True

    def pairs(self, tag: bytes, pairs: Iterable[tuple[Any, Any]], depth: int) -> None:
        flat = list(pairs)
        self.write(tag, U32.pack(len(flat)))
        for key, value in flat:
            self.put(key, depth)
            self.put(value, depth)

    def record(self, value: Any, kind: type, depth: int) -> None:
        fields = value._fields if kind is Record else _fields_of(kind)
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
    encoder.text(b"e", str(value))


def _fraction(encoder: Encoder, value: Fraction) -> None:
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
    Fraction: lambda encoder, value, _: _fraction(encoder, value),
    **{
        base: (lambda write: lambda encoder, value, depth: write(encoder, value, depth + 1))(write)
        for base, write in COLLECTIONS.items()
        if base is not slice
    },
}


class Decoder:
    """Read one message. ``handle(tag, handle)`` returns what stands for a handle; it may refuse."""

    def __init__(self, data: bytes, handle: Callable[[bytes, Handle], Any]) -> None:
        if len(data) > MAX_BYTES:
            raise Malformed("too many bytes")
        self.data, self.position, self.values = data, 0, 0
        self.handle = handle

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
        return self.take(self.count())

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
        distinct([key for key, _ in pairs])
        return pairs

    def integer(self) -> int:
        data = self.block()
        if len(data) > MAX_INT_BYTES:
            raise Malformed("too large an integer")
        return int.from_bytes(data, "little", signed=True)


def distinct(keys: list[Any]) -> list[Any]:
    """Return ``keys``, unless so many of one hash that building a set of them would take long."""
    if len(keys) > MAX_EQUAL_HASHES:
        hashes = sorted(map(hash, keys))
        run = MAX_EQUAL_HASHES
        if any(a == b for a, b in zip(hashes, hashes[run:], strict=False)):
            raise Malformed("many keys of one hash")
    return keys


def _array(decoder: Decoder, _: int) -> Any:
    tag, code, data = decoder.take(1), decoder.take(1), decoder.block()
    if code not in (b"q", b"d"):
        raise Malformed("an unknown tag")
    values = array(code.decode())
    values.frombytes(data)
    decoder.values += len(values) // 4
    return SEQUENCE_OF[tag](distinct(values.tolist()) if tag in b"SZ" else values.tolist())


def _read_decimal(decoder: Decoder, _: int) -> Decimal:
    value = Decimal(decoder.block().decode("ascii"))
    _, digits, exponent = value.as_tuple()
    if len(digits) > MAX_DIGITS or (type(exponent) is int and abs(exponent) > MAX_EXPONENT):
        raise Malformed("a Decimal of too many digits")
    return value


def _read_moment(decoder: Decoder, _: int) -> Any:
    kind = {b"d": date, b"t": time, b"s": datetime}[decoder.take(1)]
    return kind.fromisoformat(decoder.block().decode("ascii"))


def _read_view(decoder: Decoder, depth: int) -> Any:
    kind = decoder.block()
    items = decoder.expect(list, depth)
    if kind == b"items":
        distinct([key for key, _ in items])
        return dict(items).items()
    if kind == b"keys":
        return dict.fromkeys(distinct(items)).keys()
    return dict(enumerate(items)).values()


def _read_record(decoder: Decoder, depth: int) -> Record:
    name = decoder.block().decode("utf-8", "surrogatepass")
    fields, values = decoder.expect(tuple, depth), decoder.expect(tuple, depth)
    if len(fields) != len(values) or not all(type(each) is str for each in fields):
        raise Malformed("fields that are not as many as the values")
    return record(name, fields, values)


def _read_iterator(decoder: Decoder, depth: int) -> Iterator:
    kind = decoder.block().decode("utf-8", "surrogatepass")
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
    b"s": lambda decoder, _: decoder.block().decode("utf-8", "surrogatepass"),
    b"b": lambda decoder, _: decoder.block(),
    b"y": lambda decoder, _: bytearray(decoder.block()),
    b"l": lambda decoder, depth: decoder.items(depth),
    b"t": lambda decoder, depth: tuple(decoder.items(depth)),
    b"S": lambda decoder, depth: set(distinct(decoder.items(depth))),
    b"Z": lambda decoder, depth: frozenset(distinct(decoder.items(depth))),
    b"m": lambda decoder, depth: dict(decoder.pairs(depth)),
    b"C": lambda decoder, depth: _counter(decoder.pairs(depth)),
    b"O": lambda decoder, depth: OrderedDict(decoder.pairs(depth)),
    b"K": _read_defaultdict,
    b"q": _read_deque,
    b"j": lambda decoder, depth: slice(*decoder.items(depth)),
    b"r": lambda decoder, depth: range(*(decoder.expect(int, depth) for _ in range(3))),
    b"p": lambda decoder, depth: timedelta(*(decoder.expect(int, depth) for _ in range(3))),
    b"f": lambda decoder, depth: Fraction(*(decoder.expect(int, depth) for _ in range(2))),
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


def encode(value: Any, opaque: Callable[[Any], tuple[bytes, Handle]]) -> bytes:
    """Return the bytes of ``value``. Raises Unsupported."""
    return Encoder(opaque).message(value)


def decode(data: bytes, handle: Callable[[bytes, Handle], Any]) -> Any:
    """Return the value of ``data``. Raises Malformed, and nothing else."""
    return Decoder(data, handle).message()
