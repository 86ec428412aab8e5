"""What travels between a worker and a sandboxed process: bounds, and the types known by name.

`codec` writes and reads it; not pickle and not eval: a value is a tag of one byte and its parts, so
reading builds only the types of this table, whatever the bytes are. Both sides bound the size, the
depth and the number of values, and also what could make the reader slow: the digits of numbers, and
keys of equal hash. The zygote loads these files without the package: standard library only.

    exact types   None bool int float complex str bytes bytearray list tuple set frozenset dict
                  range slice deque Counter OrderedDict defaultdict Decimal Fraction date time
                  datetime timedelta Ellipsis
    by name       built-in types and exceptions, the collections above
    subclasses    of the above, made by the submission: the plain base value; a namedtuple is a
                  `Record`: a tuple that also has its fields and its type's name
    views         dict keys, values and items arrive as such
    iterators     generators, map, zip, itertools ...: consumed up to `MAX_ITEMS` into an `Iterator`
    all else      functions, classes, objects: a `Handle`; that of kind "data" has attributes along

One object in two places arrives as two equal ones; a datetime's `fold` is lost. A range may be
longer than any list: do not walk it.
"""

from __future__ import annotations

import builtins
import struct
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any, cast

MAX_BYTES = 8 * 2**20  # of one message
MAX_VALUES = 250_000  # in one message
BYTES_A_VALUE = 256  # of a text or of bytes: reading so many costs about as much as one value
MAX_DEPTH = 150
MAX_INT_BYTES = 2**15  # 78,000 decimal digits: more would take long to compare with a Decimal
MAX_FRACTION_BYTES = 2**9  # of its parts: reducing them takes the square of it
MAX_EXPONENT = 20_000  # of a Decimal: it may become an int somewhere
MAX_DIGITS = 20_000  # of a Decimal
MAX_ITEMS = 10_000  # taken from an iterator
MAX_EQUAL_HASHES = 32  # keys of one set or dict: each costs a comparison with all the others
MAX_NAMES = 32  # of a handle or an error: its class and those that it inherits

KINDS = ("function", "class", "exception", "object", "data")
EXCEPTIONS: dict[str, type[BaseException]] = {
    each.__name__: each
    for each in vars(builtins).values()
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
    """The name of an object that lives in a sandboxed process.

    origin: the number of its session; id: its number there. kind: one of `KINDS`; ``data`` is an
    object of a class that both sides have: its attributes, `state`, travel along. names: of its
    class and of those that it inherits, or of the function or class that it is; of an exception
    class the last one is built in. hash: of an object that has one; of data, where its class has.
    """

    __slots__ = ("hash", "id", "kind", "names", "origin", "state")

    def __init__(
        self, origin: int, id: int, kind: str, names: tuple[str, ...], hash: int | None = None
    ) -> None:
        self.origin, self.id, self.kind, self.names, self.hash = origin, id, kind, names, hash
        self.state: dict[str, Any] = {}

    @property
    def key(self) -> tuple[int, int]:
        return self.origin, self.id

    def __eq__(self, other: object) -> bool:
        return type(other) is Handle and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return f"<{self.kind} {self.names[0]} #{self.id}>"


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
    vars(result).update(type_name=type_name, _fields=tuple(fields))
    return result


def bounded(value: Decimal) -> Decimal:
    """Return a Decimal, unless comparing it would take long. Raises Unsupported."""
    _, digits, exponent = value.as_tuple()
    if len(digits) > MAX_DIGITS or (type(exponent) is int and abs(exponent) > MAX_EXPONENT):
        raise Unsupported("a Decimal of too many digits")
    return value


def small_parts(parts: tuple[int, int]) -> tuple[int, int]:
    """Return the parts of a Fraction, unless reducing them would take long. Raises Unsupported."""
    if max(part.bit_length() for part in parts) > 8 * MAX_FRACTION_BYTES:
        raise Unsupported("a Fraction of too many digits")
    return parts


def are_names(value: Any) -> bool:
    """Whether it is what a Handle has as names."""
    return (
        type(value) is tuple
        and all(type(each) is str for each in value)
        and (0 < len(cast("tuple[str, ...]", value)) <= MAX_NAMES)
    )


U32 = struct.Struct("<I")
I64 = struct.Struct("<q")
F64 = struct.Struct("<d")
