"""Options of the verifier ``math`` for cases in which good graders decide differently."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, get_args

from assay.host.fields import Field, choice, flag, is_number

European = Literal["auto", "always", "never"]
Fallback = Literal["sentence", "none", "last_number"]

MAX_TOLERANCE = 0.1


@dataclass(frozen=True, slots=True)
class Policy:
    """Rules that decide whether two answers are equal. `OPTIONS` describes each rule."""

    fallback: Fallback = "sentence"
    percent: Literal["either", "fraction", "number"] = "either"
    units: Literal["optional", "required"] = "optional"
    ordered: bool = False
    rounding: Literal["exact", "gold"] = "exact"
    tolerance: float | None = None
    case: bool = False
    european_numbers: European = "auto"
    extra_text: bool = True
    unevaluated: bool = False


DEFAULT = Policy()
OPTIONS = (
    choice(
        "fallback",
        *get_args(Fallback),
        accepts="sentence (value of a concluding last sentence), none or last_number: source of "
        "the answer if a longer reply has no mark",
    ),
    choice(
        "percent",
        *("either", "fraction", "number"),
        accepts="either, fraction or number: whether 10% may be written as 10 or 0.1, as 0.1 "
        "only, as 10 only",
    ),
    choice(
        "units",
        *("optional", "required"),
        accepts="optional or required: whether an expected unit may be omitted (a wrong unit never "
        "passes)",
    ),
    flag(
        "ordered",
        "true or false: whether a list without brackets has an order (a tuple always has, a set "
        "never)",
    ),
    choice(
        "rounding",
        *("exact", "gold"),
        accepts="exact or gold: whether a number that rounds to the digits of the expected decimal "
        "is that decimal",
    ),
    Field(
        "tolerance",
        f"a number from 0 to {MAX_TOLERANCE}: the relative error that a number may have. 0: none. "
        "Not set: none, but a decimal of six digits or more may round a number without a finite "
        "decimal (3.33333 for 10/3), and a decimal of twelve digits or more may be a printed float",
        check=lambda value: value is None or is_number(value, 0.0, MAX_TOLERANCE),
    ),
    flag(
        "case",
        "true or false: whether words must have the expected case (variables always do)",
    ),
    choice(
        "european_numbers",
        *get_args(European),
        accepts="auto, always or never: whether a comma is the decimal sign; auto: where it can "
        "separate no thousands",
    ),
    flag(
        "extra_text",
        "true or false: whether a marked answer may contain words other than a unit",
        default=True,
    ),
    flag(
        "unevaluated",
        "true or false: whether an unevaluated answer may pass (2 + 3, a gcd of numbers, an "
        "unsolved inequality)",
    ),
)
# A row that names an option must set a value, so null is refused.
_OPTIONS = {option.name: replace(option, needed=True) for option in OPTIONS}


def read_policy(spec: Mapping[str, Any]) -> Policy:
    """Return the comparison options in a problem's spec.

    Raises VerifierError for an option with an invalid value.
    """
    given = tuple((name, _OPTIONS[name].of(spec, "spec")) for name in spec if name in _OPTIONS)
    return _policy(given) if given else DEFAULT


@lru_cache(maxsize=256)
def _policy(given: tuple[tuple[str, Any], ...]) -> Policy:
    return Policy(**dict(given))
