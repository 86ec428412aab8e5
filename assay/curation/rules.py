"""Domain rules: words and patterns per domain, and the best-matching domain of a text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Self

from pydantic import field_validator, model_validator

from assay.config import read_section, read_toml
from assay.config.section import Section, Text
from assay.errors import ConfigError, message
from assay.validation import toml_words

BUILT_IN = Path(__file__).with_name("domains.toml")
READ = 20_000
"""Number of characters searched. The beginning of a text usually shows the text's topic."""


class Domain(Section):
    """Words and patterns of one domain."""

    words: tuple[Text, ...] = ()
    """Words and phrases, matched as whole words without case."""
    patterns: tuple[Text, ...] = ()
    """Regular expressions of Python, matched with case."""

    @field_validator("patterns")
    @classmethod
    def _are_expressions(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in patterns:
            try:
                re.compile(pattern)
            except re.error as error:
                found, accepted = (
                    f"{toml_words(pattern)} ({error})",
                    "regular expressions of Python",
                )
                raise ValueError(message("", found, accepted)[2:]) from error
        return patterns

    @model_validator(mode="after")
    def _has_rules(self) -> Self:
        if not self.words and not self.patterns:
            raise ValueError("found no rule; accepted: words = [...], patterns = [...] or both")
        return self

    @cached_property
    def _compiled(self) -> tuple[dict[str, re.Pattern[str]], list[re.Pattern[str]]]:
        # `\b` would fail for words such as C++, which end with a mark.
        folded = [word.casefold() for word in self.words]
        words = {word: re.compile(rf"(?<!\w){re.escape(word)}(?!\w)") for word in folded}
        return words, [re.compile(pattern) for pattern in self.patterns]

    def matches(self, text: str, folded: str) -> int:
        """Return the number of distinct words and patterns of the domain in a text.

        folded: the text with case folded.
        """
        words, patterns = self._compiled
        # The substring test rejects most words before the slower regular expression runs.
        found = sum(word in folded and bool(whole.search(folded)) for word, whole in words.items())
        return found + sum(bool(pattern.search(text)) for pattern in patterns)


def read_domains(path: Path) -> dict[str, Domain]:
    """Read a TOML file with one section per tag. Raises ConfigError for an invalid file."""
    tree, _ = read_toml(path)
    if not tree:
        raise ConfigError(message(str(path), "no section", "at least one, such as [math]"))
    for tag, rules in tree.items():
        if not isinstance(rules, dict):
            raise ConfigError(message(f"{path} {tag}", toml_words(rules), f"a section [{tag}]"))
    return {tag: read_section(Domain, rules, f"{path} [{tag}]") for tag, rules in tree.items()}


def best_domain(domains: Mapping[str, Domain], text: str, least: int = 1) -> str | None:
    """Return the tag of the domain with the most matches; of several, the first domain's tag.

    Returns None if every domain has fewer than ``least`` matches.
    """
    text = text[:READ]
    folded = text.casefold()
    counts = {tag: domain.matches(text, folded) for tag, domain in domains.items()}
    best = max(counts, key=counts.__getitem__)
    return best if counts[best] >= least else None
