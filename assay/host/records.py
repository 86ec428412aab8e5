"""Typed reader of Assay's JSON files: manifests, metrics, events, verdicts.

A file is validated against a type. The first fault raises `RunError` with file, key, found value
and accepted values, in one line. Callers therefore never receive a value of the wrong type.
"""

from __future__ import annotations

import errno
import json
import math
import stat
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

from pydantic import BaseModel, Field, Strict, TypeAdapter, ValidationError

from assay.errors import RunError, message
from assay.validation import toml_words

T = TypeVar("T")
# Larger integers are rejected, because JSON readers that store numbers as doubles lose digits.
MOST_STEPS = 2**53
MOST_NESTED = 64
Step = Annotated[int, Strict(), Field(ge=0, le=MOST_STEPS)]
"""A step count or a step number."""
Seconds = Annotated[float, Strict(), Field(ge=0, allow_inf_nan=False, le=1e15)]

_REMEDY = "restore it, or move it away"
_WORDS = {
    "string_type": "text",
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "a number",
    "dict_type": "an object",
    "mapping_type": "an object",
    "dataclass_type": "an object",
    "model_type": "an object",
    "list_type": "a list",
}


def read_record(path: Path, kind: type[T]) -> T | None:
    """Return a JSON file as ``kind``; None: the file is absent. Raises RunError.

    kind: a dataclass, a pydantic model, or ``dict[str, Any]`` for arbitrary keys.
    """
    text = _bytes_of(path)
    if text is None:
        return None
    value = as_object(text)
    if value is None:
        raise RunError(message(str(path), "a damaged file", "a JSON object", _REMEDY))
    return checked(value, kind, str(path))


def numbered(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield line number and object of each row of a JSON Lines file. Raises RunError.

    An absent file yields no rows. An incomplete last line, from a killed writer, is skipped.
    """
    try:
        check_regular(path)
        with open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                row = as_object(line)
                if row is not None:
                    yield number, row
                elif not _is_torn(line):
                    remedy = "fix or remove the line"
                    where = f"{path}:{number}"
                    raise RunError(
                        message(where, "a damaged line", "one JSON object a line", remedy)
                    )
    except OSError as error:
        _check_absent(path, error)


def whole_rows(
    path: Path, check: Callable[[dict[str, Any], str], object]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the valid rows of a JSON Lines file, and a message for each invalid row. Never raises.

    check: raises RunError for an invalid row. An absent file has no rows. An incomplete last line
    is skipped.
    """
    rows: list[dict[str, Any]] = []
    faults: list[str] = []
    try:
        lines = (_bytes_of(path) or b"").splitlines(keepends=True)
    except RunError as error:
        return [], [str(error)]
    for number, line in enumerate(lines, 1):
        row, where = as_object(line), f"{path.name}:{number}"
        try:
            if row is not None:
                check(row, where)
                rows.append(row)
            elif number < len(lines) or not _is_torn(line):
                faults.append(f"{where}: a damaged line")
        except RunError as error:
            faults.append(str(error))
    return rows, faults


def check_event(row: dict[str, Any], where: str) -> None:
    """Check the keys that all events have. Raises RunError."""
    checked(row, _Event, where)


def checked(value: Any, kind: type[T], where: str) -> T:
    """Validate a JSON value as ``kind``. Raises RunError for the first fault."""
    try:
        return _adapter(kind).validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        place = f"{where} {'.'.join(map(str, first['loc']))}".strip()
        if first["type"] == "missing":
            raise RunError(message(place, "nothing", "a value", _REMEDY)) from error
        accepted = _WORDS.get(first["type"]) or first["msg"].removeprefix("Input should be ")
        found = toml_words(first["input"], 60)
        raise RunError(message(place, found, accepted, _REMEDY)) from error
    except RecursionError as error:
        raise RunError(
            message(where, "values nested too deeply", "what was written", _REMEDY)
        ) from error


def as_object(text: bytes) -> dict[str, Any] | None:
    """Parse a JSON object; None: any other text."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        # The text is not UTF-8, not JSON, or nested too deeply.
        return None
    if not isinstance(value, dict) or _is_deep(value, text):
        return None
    return cast("dict[str, Any]", value)


def _is_deep(value: Any, text: bytes) -> bool:
    """Whether a value has more than `MOST_NESTED` levels, and could overflow recursive code."""
    # Counting brackets first is fast, and almost all texts have fewer brackets than the limit.
    if text.count(b"{") + text.count(b"[") <= MOST_NESTED:
        return False
    level = [value]
    for _ in range(MOST_NESTED):
        inner = [one for one in level if isinstance(one, dict | list)]
        level = [x for one in inner for x in (one.values() if isinstance(one, dict) else one)]
        if not level:
            return False
    return True


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _bytes_of(path: Path) -> bytes | None:
    try:
        check_regular(path)
        return path.read_bytes()
    except OSError as error:
        _check_absent(path, error)
        return None


def check_regular(path: Path) -> None:
    """Raise OSError unless the path is a regular file. Reading a pipe or device may never end."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "not a regular file")


def _check_absent(path: Path, error: OSError) -> None:
    """Raise RunError unless the error says that the file does not exist."""
    if not isinstance(error, FileNotFoundError):
        found = f"a file that cannot be read ({error.strerror or error})"
        raise RunError(message(str(path), found, "a file", _REMEDY)) from error


def _is_torn(line: bytes) -> bool:
    """Whether a line may be an incomplete write."""
    # A power failure can leave zero bytes at the end of a file.
    return not line.endswith(b"\n") and (line.startswith(b"{") or not line.strip(b"\0"))


_Number = Annotated[float, Strict(), Field(allow_inf_nan=False)] | None
_Rates = dict[str, _Number]


class _Evaluated(BaseModel):
    """Structured keys of a metrics or evaluation row."""

    step: Step
    kind: str | None = Field(None, alias="eval/kind")
    by_tag: _Rates | None = Field(None, alias="eval/by_tag")
    by_think: dict[str, _Rates] | None = Field(None, alias="eval/by_think")
    by_source: dict[str, dict[str, dict[str, _Number | _Rates]]] | None = Field(
        None, alias="eval/by_source"
    )
    by_problem: _Rates | None = Field(None, alias="eval/by_problem")
    reliability: list[list[_Number]] | None = Field(None, alias="eval/reliability")


class _Event(BaseModel):
    """Keys common to all events of a run. Other keys are allowed."""

    kind: str
    step: Step | None = None
    time: str | None = None
    rule: str | None = None
    well: Step | None = None
    differences: list[Any] | None = None
    config_changes: list[Any] | None = None
    changes: list[Any] | None = None


_STRUCTURED = frozenset(field.alias or name for name, field in _Evaluated.model_fields.items())


def read_step_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a metrics or evaluation file. Raises RunError for an invalid row."""
    return [check_measures(row, f"{path}:{number}") for number, row in numbered(path)]


def check_measures(row: dict[str, Any], where: str) -> dict[str, Any]:
    """Check that ``step`` is a step number and that all measures are numbers. Raises RunError."""
    checked(row, _Evaluated, where)
    for key, value in row.items():
        if key not in _STRUCTURED and not _is_measure(value):
            raise RunError(message(f"{where} {key}", toml_words(value, 60), "a number", _REMEDY))
    return row


def read_events(path: Path) -> list[dict[str, Any]]:
    """Return a run's events. Raises RunError for an invalid row."""
    found = list(numbered(path))
    for number, row in found:
        check_event(row, f"{path}:{number}")
    return [row for _, row in found]


def _is_measure(value: Any) -> bool:
    if type(value) is float:
        return math.isfinite(value)
    return value is None or (isinstance(value, int) and abs(value) < 2**63)
