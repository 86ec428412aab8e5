"""How a test went, and the words for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from assay.verify.sandbox import Outcome

SHOWN = 200
FATAL = ("timeout", "memory", "output", "died", "unsupported", "compile_error")


@dataclass(frozen=True, slots=True)
class Result:
    """How one test went. fault: ``timeout``, ``memory``, ...; ``type``: only the type is wrong."""

    passed: bool
    why: str = ""
    fault: str = ""


class Fault(Exception):
    """The submission ended a test: which way, and what is known of it."""

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(kind, why)
        self.kind, self.why = kind, why


class Unsendable(Fault):
    """Arguments that are too large or too deep for the channel."""


def kind_of(outcome: Outcome) -> str:
    return outcome.status if outcome.status in FATAL else ""


def words(outcome: Outcome) -> str:
    if outcome.status in ("exception", "compile_error"):
        return outcome.error[:SHOWN]
    return f"{outcome.status}: {outcome.error[:SHOWN]}"


def shown(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # an integer of too many digits
        text = f"a value of type {type(value).__name__}"
    return text if len(text) <= SHOWN else text[:SHOWN] + "..."
