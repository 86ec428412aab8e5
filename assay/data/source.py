"""Base class of row sources, and parsing of source settings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from assay.errors import DataError, message

UNREAD: Any = object()
"""Placeholder for a row that trusted code generates on demand. `Source.scan` yields the placeholder
so that validation need not generate the row."""


class Source:
    """Rows in a fixed order, addressed by integer positions.

    In this base class, a position is a row's index; subclasses may use byte offsets. label: name of
    the source.
    """

    def __init__(self, label: str, rows: Any = ()) -> None:
        self.label = label
        self._rows = rows

    def scan(self) -> Iterator[tuple[int, int, Any]]:
        """Yield (position, display number, raw row) for every row."""
        for index, row in enumerate(self._rows):
            yield index, index, row

    def fetch(self, position: int) -> Any:
        """Return the raw row at a position; thread-safe."""
        return self._rows[position]

    def parse(self, raw: Any, where: str) -> Any:
        """Convert a raw row to plain keys and values; raises DataError."""
        return raw


def split_settings(text: str) -> tuple[str, dict[str, Any]]:
    """Split ``name?key=value&...`` into the name and its settings."""
    name, mark, query = text.partition("?")
    settings: dict[str, Any] = {}
    for part in query.split("&") if mark else ():
        key, equals, value = part.partition("=")
        if not equals or not key or key in settings:
            found = f"{key!r} twice" if key in settings else repr(part)
            raise DataError(message(text, found, "name?key=value&key=value"))
        settings[key] = _read_setting(unquote(value))
    return name, settings


def _read_setting(text: str) -> Any:
    spelled = {"True": True, "False": False, "None": None}
    # Users write True, False and None as in Python, which is not JSON.
    # If "False" were not converted, the non-empty text "False" would count as true.
    if text in spelled:
        return spelled[text]
    try:
        return json.loads(text)
    except ValueError:
        return text
