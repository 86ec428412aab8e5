"""Types that `codec` decodes besides plain data, and types that `codec` sends by name.

The zygote loads this file without the package, so it imports the standard library only.
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

# Maximum number of class names per handle or error, bases included.
MAX_NAMES = 32
# Maximum number of bytes of a Fraction's numerator or denominator.
# Reducing a Fraction takes quadratic time.
MAX_FRACTION_BYTES = 2**9
# Maximum exponent of a Decimal.
# The exponent is limited because 1e20000 has 20,001 digits as an int.
MAX_EXPONENT = 20_000
# Maximum number of digits of a Decimal.
MAX_DIGITS = 20_000

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
    """Raised for bytes that are no valid message, and for messages above a size limit."""


class Unsupported(ValueError):
    """Raised for a value that cannot be sent: too large, too deep, or of an unsupported type."""


class Handle:
    """Identifies an object in a sandboxed process.

    origin: number of the session that holds the object.
    id: number of the object in its session.
    kind: one of `KINDS`. The kind ``data`` marks an object of a class that both processes have. If
        the class is known in both processes, a handle is sent with `state`, the object's
        attributes.
    names: names of the object's class and of its base classes. The only name of a function is its
        own name. The names of a class are its own name and the names of its base classes. In the
        names of an exception class, the last name is a built-in class.
    hash: the object's hash. Returns None if the object is not hashable, or is data whose class
        defines no hash.
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
    """The first items that an iterator of the submission returned.

    complete: whether the iterator had no further items.

    Instances are iterators, so that tests can loop over them or call next().
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
    """A namedtuple of the submission.

    A Record equals a plain tuple with the same items, and its fields are attributes.
    """

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
    """Return a `Record`. ``fields`` and ``values`` have equal length."""
    result = Record(values)
    vars(result).update(type_name=type_name, _fields=tuple(fields))
    return result


def are_names(value: Any) -> bool:
    """Return whether a value is valid for the attribute `names` of a Handle."""
    return (
        type(value) is tuple
        and all(type(each) is str for each in value)
        and (0 < len(cast("tuple[str, ...]", value)) <= MAX_NAMES)
    )


def small_decimal(value: Decimal) -> Decimal:
    """Return a Decimal unchanged. Raises Unsupported if the Decimal is slow to compare."""
    _, digits, exponent = value.as_tuple()
    if len(digits) > MAX_DIGITS or (type(exponent) is int and abs(exponent) > MAX_EXPONENT):
        raise Unsupported("a Decimal of too many digits")
    return value


def small_parts(parts: tuple[int, int]) -> tuple[int, int]:
    """Return (numerator, denominator) unchanged. Raises Unsupported for very long integers."""
    if max(part.bit_length() for part in parts) > 8 * MAX_FRACTION_BYTES:
        raise Unsupported("a Fraction of too many digits")
    return parts
