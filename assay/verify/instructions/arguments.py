"""The arguments of instructions: what each may hold, and one-line complaints that say where."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, cast

from assay.errors import VerifierError, message
from assay.verify.instructions.languages import LANGUAGES

RELATIONS = ("less than", "at least")

Kind: TypeAlias = Literal["count", "relation", "text", "texts", "letter", "language"]

ACCEPTED: Mapping[Kind, str] = {
    "count": "a whole number, 0 or more",
    "relation": " or ".join(f'"{relation}"' for relation in RELATIONS),
    "text": "text that is not empty",
    "texts": "a list of texts, none empty",
    "letter": "one character",
    "language": "a language code such as en, de or zh-cn",
}


def read_arguments(kinds: Mapping[str, Kind], given: Any, where: str, name: str) -> dict[str, Any]:
    """Return the arguments of instruction ``name``, each checked against its kind.

    Keys that hold None are as good as absent: tables of rows fill up every column. Raises
    VerifierError for an argument that is missing, of another kind, or not one of the instruction's.
    """
    found = {} if given is None else given
    if not isinstance(found, Mapping):
        raise VerifierError(message(where, _shown(given), "a table of the instruction's arguments"))
    held = {k: v for k, v in cast("Mapping[str, Any]", found).items() if v is not None}
    arguments: dict[str, Any] = {}
    for key, kind in kinds.items():
        if key not in held:
            raise VerifierError(
                message(f"{where}.{key}", "nothing", f"{ACCEPTED[kind]}, for {name}")
            )
        value = _READERS[kind](held.pop(key))
        if value is None:
            raise VerifierError(
                message(f"{where}.{key}", _shown(found[key]), f"{ACCEPTED[kind]}, for {name}")
            )
        arguments[key] = value
    if held:
        accepted = ", ".join(kinds) or "no argument"
        raise VerifierError(
            message(f"{where}.{min(held)}", "an unknown key", f"{accepted}, for {name}")
        )
    return arguments


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _count(value: Any) -> int | None:
    # Tables of numbers with gaps come back from some formats as floats.
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    return int(value) if whole and not isinstance(value, bool) and value >= 0 else None


def _relation(value: Any) -> str | None:
    return value if value in RELATIONS else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value.strip() else None


def _texts(value: Any) -> tuple[str, ...] | None:
    if isinstance(value, str) or not isinstance(value, Sequence) or not value:
        return None
    texts = [_text(each) for each in cast("Sequence[Any]", value)]
    return tuple(text for text in texts if text is not None) if None not in texts else None


def _letter(value: Any) -> str | None:
    return value if isinstance(value, str) and len(value) == 1 and value.strip() else None


def _language(value: Any) -> str | None:
    return value if value in LANGUAGES or value == "zh" else None


_READERS: Mapping[Kind, Callable[[Any], Any]] = {
    "count": _count,
    "relation": _relation,
    "text": _text,
    "texts": _texts,
    "letter": _letter,
    "language": _language,
}
