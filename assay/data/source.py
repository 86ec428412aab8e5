"""Base class of row sources (files, hub data sets, Python objects), and parsing of their
settings."""

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
    """Rows of a data source in a fixed order, addressed by integer positions.

    In this base class, the position of a row is its index; subclasses may use byte offsets. label:
    name of the source.
    """

    def __init__(self, label: str, rows: Any = ()) -> None:
        self.label = label
        self._rows = rows

    def scan(self) -> Iterator[tuple[int, int, Any]]:
        """Yield (position, row number for messages, raw row) for every row of the source."""
        for index, row in enumerate(self._rows):
            yield index, index, row

    def fetch(self, position: int) -> Any:
        """Return the raw row at a position of the source; thread-safe."""
        return self._rows[position]

    def parse(self, raw: Any, where: str) -> Any:
        """Convert a raw row to a dict of plain values; raises DataError."""
        return raw


def split_settings(text: str) -> tuple[str, dict[str, Any]]:
    """Split a source address ``name?key=value&...`` into the name and its settings."""
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
    # Users write True, False and None as in Python, although these words are not JSON.
    # Without this conversion, the text "False" would count as true, because it is not empty.
    if text in spelled:
        return spelled[text]
    try:
        return json.loads(text)
    except ValueError:
        return text
