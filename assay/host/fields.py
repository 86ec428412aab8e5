"""Fields of user-written tables: names, accepted values and checks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, cast

from assay.errors import VerifierError, message
from assay.types import Problem


@dataclass(frozen=True, slots=True)
class Field:
    """A key of a problem's spec or of a verifier's options.

    accepts: description of accepted values, for error messages.
    needed: whether the spec must contain the key.
    default: value if neither the spec nor ``[verification.options.NAME]`` sets the key.
    check: predicate on values. Checks run in the trainer's process, so only built-in verifiers
        have checks.
    from_row: False for keys that only the configuration may set (a URL, a price). A problem row
        may use the same key for metadata.
    equates: whether the field accepts a completion's extracted answer as the reference answer. The
        verifier can then compare the answers of two completions (majority@k).
    """

    name: str
    accepts: str
    needed: bool = False
    default: Any = None
    check: Callable[[Any], bool] | None = None
    from_row: bool = True
    equates: bool = False

    def read(self, problem: Problem) -> Any:
        """Return the field's value in a problem's spec, or the field's default. Raises
        VerifierError."""
        return self.of(problem.spec, f"problem {problem.id}: spec")

    def of(self, given: Mapping[str, Any], where: str) -> Any:
        """Return the field's value in a table, or the field's default. Raises VerifierError.

        where: location of the table, for the error message.
        """
        value = given.get(self.name)
        if value is None and not self.needed:
            return self.default
        if value is None or (self.check is not None and not self.check(value)):
            found = "missing" if value is None else repr(value)[:80]
            raise VerifierError(message(f"{where}.{self.name}", found, self.accepts))
        return value


def one_of(*accepted: str) -> Callable[[Any], bool]:
    """Return a function that checks that a value is one of several strings."""
    return lambda value: isinstance(value, str) and value in accepted


def is_text(value: Any) -> bool:
    """Whether a value is a string that is not blank."""
    return isinstance(value, str) and bool(value.strip())


def is_flag(value: Any) -> bool:
    """Whether a value is true or false."""
    return isinstance(value, bool)


def is_number(value: Any, low: float = -math.inf, high: float = math.inf) -> bool:
    """Whether a value is a finite number in [low, high]."""
    # isinstance would accept true and false, because bool is a subclass of int.
    return type(value) in (int, float) and abs(value) < math.inf and low <= value <= high


def number(low: float, high: float = math.inf) -> Callable[[Any], bool]:
    """Return a function that checks that a value is a number in [low, high]."""
    return lambda value: is_number(value, low, high)


def whole(low: int, high: float = math.inf) -> Callable[[Any], bool]:
    """Return a function that checks that a value is a whole number in [low, high]."""
    return lambda value: type(value) is int and low <= value <= high


def listed(value: Any) -> Sequence[Any]:
    """Return a list unchanged, and any other value as a list with one element."""
    return cast("Sequence[Any]", value) if isinstance(value, list | tuple) else [value]


def is_answer(value: Any) -> bool:
    """Whether a value is a string, a number, or a non-empty list of strings and numbers."""
    return bool(listed(value)) and all(
        is_text(each) or (isinstance(each, Real) and not is_flag(each)) for each in listed(value)
    )


def list_of(check: Callable[[Any], bool], most: int, least: int = 0) -> Callable[[Any], bool]:
    """Return a function that checks for a list of ``least`` to ``most`` elements, each accepted by
    ``check``."""

    def holds(value: Any) -> bool:
        things = cast("list[Any]", value)
        return (
            isinstance(value, list | tuple)
            and least <= len(things) <= most
            and all(map(check, things))
        )

    return holds


def choice(name: str, *accepted: str, accepts: str = "", from_row: bool = True) -> Field:
    """Return a field that accepts one of several strings. The first is the default."""
    said, check = accepts or ", ".join(accepted), one_of(*accepted)
    return Field(name, said, default=accepted[0], check=check, from_row=from_row)


def option(
    name: str, accepts: str, default: Any = None, check: Callable[[Any], bool] | None = None
) -> Field:
    """Return a field that only the configuration may set."""
    return Field(name, accepts, default=default, check=check, from_row=False)


def flag(name: str, accepts: str, default: bool = False) -> Field:
    """Return a boolean field."""
    return Field(name, accepts, default=default, check=is_flag)
