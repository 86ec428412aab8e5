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
    """Return the tables of a TOML file in this package, such as units.toml."""
    return tomllib.loads(Path(__file__).with_name(name).read_text(encoding="utf-8"))


@cache
def _entries() -> dict[str, str]:
    """Return the regular expression of each entry of phrases.toml, by the entry's name."""
    found: dict[str, str] = {}
    for table in read_table("phrases.toml").values():
        for name, entry in table.items():
            found[name] = entry if isinstance(entry, str) else "|".join(entry)
    return found


@cache
def pattern(*names: str) -> re.Pattern[str]:
    """Return a compiled pattern that matches any of the named entries of phrases.toml."""
    # The substitution repeats, because a fragment of a pattern can contain other fragments.
    text = "|".join(_entries()[name] for name in names)
    while _FRAGMENT.search(text):
        text = _FRAGMENT.sub(lambda match: _entries()[match[1]], text)
    return re.compile(text, re.IGNORECASE)


def says(name: str, text: str, start: int = 0, end: int = sys.maxsize) -> re.Match[str] | None:
    """Return the first match of the named entry of phrases.toml in a text, or None."""
    return pattern(name).search(text, start, end)


def opens(name: str, text: str) -> re.Match[str] | None:
    """Return the match of the named entry of phrases.toml at the start of a text, or None."""
    return pattern(name).match(text)
