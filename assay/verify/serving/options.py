"""Options of verifiers, and rows: what configuration and data may say, checked before a run.

``[verification.options.NAME]`` stands under the keys of a row: the row wins. A field that only the
configuration may set (``from_row=False``) is not read from a row: there such a key is metadata.
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, cast

from assay.errors import message
from assay.verify.base import Field

LANE_OPTIONS: Mapping[str, Mapping[str, int]] = {
    "thread": {"concurrency": 8},
    "device": {"batch_size": 64},
}
"""Options that every verifier of a lane has, with their defaults; they change no verdict."""

_SPEED = frozenset(name for options in LANE_OPTIONS.values() for name in options)


def complaint_of_options(
    name: str, fields: Sequence[Field], lane: str, options: Mapping[str, Any]
) -> str:
    """Return what is wrong with the options of one verifier, or an empty string."""
    known = {field.name: field for field in fields}
    of_lane = LANE_OPTIONS.get(lane, {})
    for key, value in options.items():
        where = f"verification.options.{name}.{key}"
        if key in known:
            if not accepts(known[key], value):
                return message(where, shown(value), known[key].accepts)
        elif key in of_lane:
            if type(value) is not int or value < 1:
                return message(where, shown(value), "a whole number >= 1")
        else:
            every = [*known, *of_lane]
            near = difflib.get_close_matches(key, every, n=1, cutoff=0.5)
            remedy = f"did you mean {near[0]}?" if near else f"known keys: {', '.join(every)}"
            return f"{where}: unknown key; {remedy}"
    return ""


def options_digest(options: Mapping[str, Any]) -> str:
    """Return twelve hexadecimal digits over the options that can change a verdict; "" of none."""
    telling = {key: value for key, value in options.items() if key not in _SPEED}
    return hashlib.sha256(canonical(telling).encode()).hexdigest()[:12] if telling else ""


def lane_option(lane: str, name: str, options: Mapping[str, Any]) -> int:
    """Return an option of a lane, or its default."""
    return int(options.get(name, LANE_OPTIONS[lane][name]))


def canonical(value: Any) -> str:
    """Return a text that equal plain values share, whatever the order of their keys.

    Raises TypeError for a value that is not plain.
    """
    if value is None or type(value) in (str, int, float, bool):
        return repr(value)
    if isinstance(value, Mapping):
        pairs = cast("Mapping[Any, Any]", value).items()
        return "{" + ",".join(sorted(f"{canonical(k)}:{canonical(v)}" for k, v in pairs)) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(canonical, cast("Sequence[Any]", value))) + "]"
    raise TypeError(f"{type(value).__name__} is not plain")


def accepts(field: Field, value: Any) -> bool:
    """Whether a field may hold a value."""
    try:
        return field.check is None or bool(field.check(value))
    except Exception:  # a check need not expect every type
        return False


def shown(value: Any) -> str:
    """Return a value as a complaint shows it."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:60]}... ({len(text)} characters)"
