"""Questions on which right-thinking graders differ: the options of the math verifier."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from numbers import Real
from typing import Any, Literal, get_args, get_type_hints

from assay.errors import VerifierError, message
from assay.verify.base import Field

European = Literal["auto", "always", "never"]
Fallback = Literal["none", "sentence", "last_number"]

MAX_TOLERANCE = 0.1
TEXT_ANSWER = "text, a number, or a list of accepted ones"


def is_answer(value: Any) -> bool:
    """Whether a value of ``answer`` is text, a number, or a list of accepted ones."""
    listed: list[Any] = list(value) if isinstance(value, (list, tuple)) else [value]
    return bool(listed) and all(
        bool(each.strip()) if isinstance(each, str) else _is_number(each) for each in listed
    )


def _is_number(value: Any) -> bool:
    return type(value) is not bool and isinstance(value, Real)


@dataclass(frozen=True, slots=True)
class Policy:
    """What counts as the same answer; each option is described in `OPTIONS`."""

    fallback: Fallback = "none"
    percent: Literal["either", "fraction", "number"] = "either"
    units: Literal["optional", "required"] = "optional"
    ordered: bool = False
    rounding: Literal["exact", "gold"] = "exact"
    tolerance: float = 0.0
    case: bool = False
    european_numbers: European = "auto"
    extra_text: bool = True
    unevaluated: bool = False


def _fits(kind: Any, value: Any) -> bool:
    """Whether an option of this type may have a value."""
    if kind is float:
        return _is_number(value) and 0.0 <= float(value) <= MAX_TOLERANCE
    return isinstance(value, bool) if kind is bool else value in get_args(kind)


DEFAULT = Policy()
_ACCEPTS = {
    "fallback": "none, sentence or last_number: what counts where nothing marks an answer and the "
    "reply is more than one",
    "percent": "either, fraction or number: whether 10% may be written as 10 or 0.1, as 0.1 only, "
    "as 10 only",
    "units": "optional or required: whether an expected unit may be left out (a wrong one never "
    "passes)",
    "ordered": "true or false: whether a list without brackets has an order (a tuple always has, a "
    "set never)",
    "rounding": "exact or gold: whether a number that rounds to the digits of the expected decimal "
    "is that decimal",
    "tolerance": f"a number from 0 to {MAX_TOLERANCE}: the relative error that a number may have",
    "case": "true or false: whether words must have the expected case (variables always do)",
    "european_numbers": "auto, always or never: whether a comma is the decimal sign; auto: where "
    "it can separate no thousands",
    "extra_text": "true or false: whether words other than a unit may stand around the value that "
    "is marked",
    "unevaluated": "true or false: whether what is still to be done (2 + 3, a gcd of numbers, an "
    "inequality to be solved) may stand for an expected value",
}
_KINDS = get_type_hints(Policy)
OPTIONS = tuple(
    Field(name, accepts, default=getattr(DEFAULT, name), check=partial(_fits, _KINDS[name]))
    for name, accepts in _ACCEPTS.items()
)
ANSWER = Field("answer", TEXT_ANSWER, needed=True, check=is_answer, equates=True)


def read_policy(spec: Mapping[str, Any]) -> Policy:
    """Return the options of a spec; raises VerifierError where one is malformed."""
    given = tuple((name, spec[name]) for name in spec if name in _ACCEPTS)
    for name, value in given:
        if not _fits(_KINDS[name], value):
            raise VerifierError(message(f"spec.{name}", repr(value), _ACCEPTS[name]))
    return _policy(given) if given else DEFAULT


@lru_cache(maxsize=256)
def _policy(given: tuple[tuple[str, Any], ...]) -> Policy:
    return Policy(**dict(given))
