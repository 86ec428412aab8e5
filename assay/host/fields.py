"""Fields of a table that a user wrote: names, accepted values, and checks of these."""

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
    """A key of the spec that a verifier reads.

    accepts: what it may hold, in words. needed: a row without it is malformed. default: what it is
    where neither the row nor ``[verification.options.NAME]`` says. check: whether a value is
    accepted; it is called in the trainer's process, so built-in verifiers only. from_row: False
    where only the configuration may set it (an address, a price): in a row such a key is metadata.
    equates: an answer that was extracted from a completion may stand here as the accepted one, so
    that the verifier says whether two answers are equal (majority@k asks it).
    """

    name: str
    accepts: str
    needed: bool = False
    default: Any = None
    check: Callable[[Any], bool] | None = None
    from_row: bool = True
    equates: bool = False

    def read(self, problem: Problem) -> Any:
        """Return what a problem's spec says, else the default; raises VerifierError."""
        return self.of(problem.spec, f"problem {problem.id}: spec")

    def of(self, given: Mapping[str, Any], where: str) -> Any:
        """Return what a table says, else the default; raises VerifierError, which says where."""
        value = given.get(self.name)
        if value is None and not self.needed:
            return self.default
        if value is None or (self.check is not None and not self.check(value)):
            found = "missing" if value is None else repr(value)[:80]
            raise VerifierError(message(f"{where}.{self.name}", found, self.accepts))
        return value


def one_of(*accepted: str) -> Callable[[Any], bool]:
    """Return the check of a field that holds one of a few words."""
    return lambda value: isinstance(value, str) and value in accepted


def is_text(value: Any) -> bool:
    """Whether a value is text that is not blank."""
    return isinstance(value, str) and bool(value.strip())


def is_flag(value: Any) -> bool:
    """Whether a value is true or false."""
    return isinstance(value, bool)


def is_number(value: Any, low: float = -math.inf, high: float = math.inf) -> bool:
    """Whether a value is a finite number in [low, high]."""
    return type(value) in (int, float) and abs(value) < math.inf and low <= value <= high


def number(low: float, high: float = math.inf) -> Callable[[Any], bool]:
    """Return the check of a field that holds a number in [low, high]."""
    return lambda value: is_number(value, low, high)


def whole(low: int, high: float = math.inf) -> Callable[[Any], bool]:
    """Return the check of a field that holds a whole number in [low, high]."""
    return lambda value: type(value) is int and low <= value <= high


def listed(value: Any) -> Sequence[Any]:
    """Return a list as it is, and anything else as a list of one."""
    return cast("Sequence[Any]", value) if isinstance(value, list | tuple) else [value]


def is_answer(value: Any) -> bool:
    """Whether a value is text, a number, or a list of at least one of them."""
    return bool(listed(value)) and all(
        is_text(each) or (isinstance(each, Real) and not is_flag(each)) for each in listed(value)
    )


def list_of(check: Callable[[Any], bool], most: int, least: int = 0) -> Callable[[Any], bool]:
    """Return the check of a field that holds a list of things that each pass a check."""

    def holds(value: Any) -> bool:
        things = cast("list[Any]", value)
        return (
            isinstance(value, list | tuple)
            and least <= len(things) <= most
            and all(map(check, things))
        )

    return holds


def choice(name: str, *accepted: str, accepts: str = "", from_row: bool = True) -> Field:
    """Return a field that holds one of a few words, the first where nothing is said."""
    said, check = accepts or ", ".join(accepted), one_of(*accepted)
    return Field(name, said, default=accepted[0], check=check, from_row=from_row)


def option(
    name: str, accepts: str, default: Any = None, check: Callable[[Any], bool] | None = None
) -> Field:
    """Return a field that only the configuration may set."""
    return Field(name, accepts, default=default, check=check, from_row=False)


def flag(name: str, accepts: str, default: bool = False) -> Field:
    """Return a field that holds true or false."""
    return Field(name, accepts, default=default, check=is_flag)
