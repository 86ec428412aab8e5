"""Questions on which right-thinking graders differ, as options of the math verifier with defaults."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from numbers import Real
from typing import Any, Literal

from assay.errors import VerifierError, message
from assay.verify.base import Field

Percent = Literal["either", "fraction", "number"]
Units = Literal["optional", "required"]
Rounding = Literal["exact", "gold"]
European = Literal["auto", "always", "never"]
Fallback = Literal["none", "sentence", "last_number"]

MAX_TOLERANCE = 0.1


@dataclass(frozen=True, slots=True)
class Policy:
    """What counts as the same answer.

    percent: what 10% is besides 10%. ``either``: 10 and 0.1; ``fraction``: 0.1; ``number``: 10.
    units: whether an expected unit may be left out. A wrong one never passes. ordered: whether a
    list without brackets has an order. rounding: ``gold``: a number may be any that rounds to the
    digits of an expected decimal. tolerance: relative, of numbers. case: whether words must have the
    expected case (variables always do). european_numbers: whether 1.234,5 is 1234.5; ``auto``: only
    1000,99 is a decimal. extra_text: whether words may stand around a marked answer.
    unevaluated: whether 2 + 3 may stand for 5, and x - 2 > 0 for x > 2. fallback: what may count where nothing is marked.
    """

    percent: Percent = "either"
    units: Units = "optional"
    ordered: bool = False
    rounding: Rounding = "exact"
    tolerance: float = 0.0
    case: bool = False
    european_numbers: European = "auto"
    extra_text: bool = True
    unevaluated: bool = False
    fallback: Fallback = "none"


DEFAULT = Policy()


def _one_of(*accepted: str) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and value in accepted


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _is_tolerance(value: Any) -> bool:
    return _is_number(value) and 0.0 <= float(value) <= MAX_TOLERANCE


def _is_number(value: Any) -> bool:
    return type(value) is not bool and isinstance(value, Real)


def is_answer(value: Any) -> bool:
    """Whether a value of ``answer`` is text, a number, or a list of accepted ones."""
    listed: list[Any] = list(value) if isinstance(value, (list, tuple)) else [value]
    return bool(listed) and all(
        bool(each.strip()) if isinstance(each, str) else _is_number(each) for each in listed
    )


def _option(name: str, accepts: str, check: Callable[[Any], bool]) -> Field:
    return Field(name, accepts, default=getattr(DEFAULT, name), check=check)


OPTIONS = (
    _option(
        "fallback",
        "none, sentence or last_number: what counts where nothing marks an answer and the reply is more than one",
        _one_of("none", "sentence", "last_number"),
    ),
    _option(
        "percent",
        "either, fraction or number: whether 10% may be written as 10 or 0.1, as 0.1 only, as 10 only",
        _one_of("either", "fraction", "number"),
    ),
    _option(
        "units",
        "optional or required: whether an expected unit may be left out (a wrong one never passes)",
        _one_of("optional", "required"),
    ),
    _option(
        "ordered",
        "true or false: whether a list without brackets has an order (a tuple always has, a set never)",
        _is_bool,
    ),
    _option(
        "rounding",
        "exact or gold: whether a number that rounds to the digits of the expected decimal is that decimal",
        _one_of("exact", "gold"),
    ),
    _option(
        "tolerance",
        f"a number from 0 to {MAX_TOLERANCE}: the relative error that a number may have",
        _is_tolerance,
    ),
    _option(
        "case",
        "true or false: whether words must have the expected case (variables always do)",
        _is_bool,
    ),
    _option(
        "european_numbers",
        "auto, always or never: whether a comma is the decimal sign; auto: where it can separate no thousands",
        _one_of("auto", "always", "never"),
    ),
    _option(
        "extra_text",
        "true or false: whether words other than a unit may stand around the value that is marked",
        _is_bool,
    ),
    _option(
        "unevaluated",
        "true or false: whether what is still to be done (2 + 3, a gcd of numbers, an inequality to be solved) may stand for an expected value",
        _is_bool,
    ),
)

_NAMES = frozenset(field.name for field in OPTIONS)

ANSWER = Field(
    "answer",
    "text, a number, or a list of accepted ones",
    needed=True,
    check=is_answer,
    equates=True,
)


def read_policy(spec: Mapping[str, Any]) -> Policy:
    """Return the options of a spec; raises VerifierError where one is malformed."""
    given = [(name, spec[name]) for name in spec if name in _NAMES]
    if not given:
        return DEFAULT
    for field in OPTIONS:
        value = spec.get(field.name, field.default)
        assert field.check is not None
        if not field.check(value):
            raise VerifierError(message(f"spec.{field.name}", repr(value), field.accepts))
    return _policy(tuple(given))


@lru_cache(maxsize=256)
def _policy(given: tuple[tuple[str, Any], ...]) -> Policy:
    return Policy(**dict(given))
