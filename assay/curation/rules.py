"""Domains by rules: the words and patterns of a table, and which of its domains a text is of."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from assay.complaints import toml_words
from assay.errors import DataError, message

BUILT_IN = Path(__file__).with_name("domains.toml")
READ = 20_000
"""Characters of a text that rules look at: its beginning tells what it is about."""
_KEYS = ("words", "patterns")
_TOKEN = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True, slots=True)
class Domain:
    """What is looked for. words: the first token of each, and the expression for all of it where it
    has more. patterns: as they are written."""

    words: tuple[tuple[str, re.Pattern[str] | None], ...]
    patterns: tuple[re.Pattern[str], ...]

    def matches(self, text: str, folded: str, tokens: Collection[str]) -> int:
        """Return how many of the words and patterns a text has; each counts once."""
        words = sum(
            first in tokens and (whole is None or bool(whole.search(folded)))
            for first, whole in self.words
        )
        return words + sum(bool(pattern.search(text)) for pattern in self.patterns)


def read_rules(path: Path) -> dict[str, Domain]:
    """Return the domains of a table, by their tag; raises DataError in one line.

    The table has a section for each tag, with ``words`` and ``patterns``: lists of texts.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise DataError(
            message(str(path), f"no TOML ({error})", "a section for each tag")
        ) from error
    if not table:
        raise DataError(message(str(path), "no section", "at least one, such as [math]"))
    return {tag: _domain(rules, f"{path} {tag}") for tag, rules in table.items()}


def best_domain(domains: Mapping[str, Domain], text: str, least: int = 1) -> str | None:
    """Return the tag of which a text matches most; of equals the first.

    None: it has fewer than ``least`` matches of every one.
    """
    text = text[:READ]
    folded = text.casefold()
    tokens = {*_TOKEN.findall(folded)}
    counts = {tag: domain.matches(text, folded, tokens) for tag, domain in domains.items()}
    best = max(counts, key=counts.__getitem__)
    return best if counts[best] >= least else None


def _domain(rules: Any, where: str) -> Domain:
    accepted = "a section with words = [...], patterns = [...] or both"
    if not isinstance(rules, dict):
        raise DataError(message(where, toml_words(rules), accepted))
    if not rules or not {*rules} <= {*_KEYS}:
        raise DataError(message(where, ", ".join(rules) or "no key", accepted))
    lists: dict[str, Sequence[str]] = {}
    for key in _KEYS:
        texts = rules.get(key, [])
        if not isinstance(texts, list) or not all(isinstance(one, str) and one for one in texts):
            raise DataError(message(f"{where}.{key}", toml_words(texts), "a list of texts"))
        lists[key] = cast("list[str]", texts)
    words = (_word(text.casefold()) for text in lists["words"])
    patterns = (_compiled(one, f"{where}.patterns") for one in lists["patterns"])
    return Domain(tuple(words), tuple(patterns))


def _word(text: str) -> tuple[str, re.Pattern[str] | None]:
    first = _TOKEN.search(text)
    whole = re.compile(rf"(?<!\w){re.escape(text)}(?!\w)")
    return (first[0], None if first[0] == text else whole) if first else (text, whole)


def _compiled(pattern: str, where: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        accepted = "regular expressions of Python"
        raise DataError(message(where, f"{toml_words(pattern)} ({error})", accepted)) from error
