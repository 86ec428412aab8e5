"""Rows of a table by name, or from a user's module, with fields replaced."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from assay.errors import ConfigError, message
from assay.foreign import import_object

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Row = TypeVar("Row", bound="DataclassInstance")


def choose_row(
    table: Mapping[str, Row], kind: type[Row], key: str, name: str, overrides: Mapping[str, Any]
) -> Row:
    """Return a row of ``table``, or the object ``package.module:object``, with fields replaced.

    key: of the configuration, as ``algorithm.name``. An override that is None leaves the row as it is.
    Raises ConfigError for a name or a field that does not exist.
    """
    row = _load_row(kind, key, name) if ":" in name else table.get(name)
    if row is None:
        nearest = difflib.get_close_matches(name, table, n=1, cutoff=0.4)
        accepted = " | ".join(table) + " | package.module:object"
        remedy = f"did you mean {nearest[0]}?" if nearest else ""
        raise ConfigError(message(key, repr(name), accepted, remedy))
    known = {field.name for field in fields(kind)}
    unknown = sorted(set(overrides) - known)
    if unknown:
        section = key.partition(".")[0]
        raise ConfigError(message(section, unknown[0], ", ".join(sorted(known))))
    return replace(row, **{field: value for field, value in overrides.items() if value is not None})


def _load_row(kind: type[Row], key: str, path: str) -> Row:
    row: object = import_object(path, f"{key} {path}", ConfigError)
    if not isinstance(row, kind):
        accepted = f"an instance of {kind.__module__}.{kind.__qualname__}"
        raise ConfigError(message(key, f"{path} = {row!r}", accepted))
    return row
