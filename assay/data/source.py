"""What every kind of source shares: how its rows are found, and the settings behind its name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from assay.errors import DataError, message

UNREAD: Any = object()
"""Stands for a row that trusted code makes on demand, so that scanning need not make it."""


class Source:
    """Rows in a fixed order, each found again by an integer position: here, by its index.

    label: the source as it was named.
    """

    def __init__(self, label: str, rows: Any = ()) -> None:
        self.label = label
        self._rows = rows

    def scan(self) -> Iterator[tuple[int, int, Any]]:
        """Yield (position, number, raw row) of every row; the number is how people count it."""
        for index, row in enumerate(self._rows):
            yield index, index, row

    def fetch(self, position: int) -> Any:
        """Return the raw row at a position, from any thread."""
        return self._rows[position]

    def parse(self, raw: Any, where: str) -> Any:
        """Return a raw row as plain keys and values; raises DataError."""
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
    if text in spelled:  # as Python spells them: the text "False" would be true
        return spelled[text]
    try:
        return json.loads(text)
    except ValueError:
        return text
