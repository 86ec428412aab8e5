"""The types that `codec` reads beside those of plain data, and those that it knows by name.

The zygote loads this file without the package: standard library only.
"""

from __future__ import annotations

import builtins
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from types import NoneType
from typing import Any, cast

MAX_NAMES = 32  # of a handle or an error: its class and those that it inherits
MAX_FRACTION_BYTES = 2**9  # of its parts: reducing them takes the square of it
MAX_EXPONENT = 20_000  # of a Decimal: it may become an int somewhere
MAX_DIGITS = 20_000  # of a Decimal

KINDS = ("function", "class", "exception", "object", "data")
EXCEPTIONS: dict[str, type[BaseException]] = {
    each.__name__: each
    for each in vars(builtins).values()
    if isinstance(each, type) and issubclass(each, BaseException)
}
MOMENTS: dict[str, Any] = {"date": date, "time": time, "datetime": datetime}
FACTORIES = {kind: kind for kind in (int, float, list, dict, set, str, tuple, bool)}
TYPES: dict[str, type] = {
    each.__name__: each
    for each in (
        *(*FACTORIES, complex, bytes, bytearray, frozenset),
        *(range, slice, object, type, NoneType, enumerate, zip, map, filter, reversed),
        *(memoryview, property, staticmethod, classmethod, super),
        *(Counter, OrderedDict, defaultdict, deque, Decimal, Fraction, timedelta),
        *MOMENTS.values(),
    )
} | EXCEPTIONS
NAMES = {each: name for name, each in TYPES.items()}


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


def are_names(value: Any) -> bool:
    """Whether it is what a Handle has as names."""
    return (
        type(value) is tuple
        and all(type(each) is str for each in value)
        and (0 < len(cast("tuple[str, ...]", value)) <= MAX_NAMES)
    )


def small_decimal(value: Decimal) -> Decimal:
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
