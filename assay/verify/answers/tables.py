"""Load this package's TOML tables, and compile the answer phrases on first use."""

from __future__ import annotations

import re
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

_FRAGMENT = re.compile("<([A-Z_]+)>")


@cache
def read_table(name: str) -> dict[str, dict[str, Any]]:
    """Return a table of this package."""
    return tomllib.loads(Path(__file__).with_name(name).read_text(encoding="utf-8"))


@cache
def _entries() -> dict[str, str]:
    """Return each entry as one expression. Names of fragments are in capitals."""
    found: dict[str, str] = {}
    for table in read_table("phrases.toml").values():
        for name, entry in table.items():
            found[name] = entry if isinstance(entry, str) else "|".join(entry)
    return found


@cache
def pattern(*names: str) -> re.Pattern[str]:
    """Return the expression that matches any of the named entries."""
    text = "|".join(_entries()[name] for name in names)
    while _FRAGMENT.search(text):
        text = _FRAGMENT.sub(lambda match: _entries()[match[1]], text)
    return re.compile(text, re.IGNORECASE)


def says(name: str, text: str, start: int = 0, end: int = sys.maxsize) -> re.Match[str] | None:
    """Return the first match of the named words in a text."""
    return pattern(name).search(text, start, end)


def opens(name: str, text: str) -> re.Match[str] | None:
    """Return the match of the named words at the beginning of a text."""
    return pattern(name).match(text)
