"""What every kind of source shares: settings behind its name, and rows made when drawn."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import unquote

from assay.errors import DataError, message

UNREAD: Any = object()
"""Stands for a row that trusted code makes on demand, so that scanning need not make it."""


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
