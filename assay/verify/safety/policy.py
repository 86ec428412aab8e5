"""Read a safety policy: categories of requests, with clauses for what is allowed and refused.

A policy is a TOML file, such as ``policy.toml`` in this package. Each table ``categories.NAME`` has
an ``about``, a list ``offers``, and the clauses of each treatment by their ids.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, cast, get_args

from assay.errors import VerifierError, did_you_mean, message
from assay.host.fields import is_text, list_of
from assay.verify.safety.reading import words_of

Treatment = Literal["allowed", "refused", "safe_completed"]
TREATMENTS: tuple[Treatment, ...] = get_args(Treatment)
SHIPPED = Path(__file__).with_name("policy.toml")

_ID = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_KEYS = ("about", "offers", *TREATMENTS)


@dataclass(frozen=True, slots=True)
class Category:
    """One category of requests.

    offers: words of which a safe completion must contain at least one.
    clauses: texts of the clauses by id, for each treatment.
    """

    name: str
    about: str
    offers: tuple[str, ...]
    clauses: Mapping[Treatment, Mapping[str, str]]

    def __str__(self) -> str:
        """Return the category as it is shown to a model: one line per clause."""
        lines = [f"{self.name}: {self.about}"]
        lines += [f"{id}: {text}" for some in self.clauses.values() for id, text in some.items()]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class SafetyPolicy:
    """The categories of a policy by name. version: increases when a clause changes."""

    version: int
    categories: Mapping[str, Category]

    def category(self, name: object, where: str) -> Category:
        """Return a category. Raises VerifierError for an unknown category.

        where: location of the name, for the error message.
        """
        if isinstance(name, str) and name in self.categories:
            return self.categories[name]
        found, accepted = "missing" if name is None else repr(name), ", ".join(self.categories)
        meant = did_you_mean(name, self.categories) if isinstance(name, str) else ""
        raise VerifierError(message(where, found, accepted, meant))

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.categories.values()))


def read_policy(path: str | None = None) -> SafetyPolicy:
    """Return the policy in a file; None: the policy that ships with Assay. Raises VerifierError."""
    place = SHIPPED if path is None else Path(path)
    try:
        text = place.read_text(encoding="utf-8")
    # A path with a null character is a ValueError.
    except (OSError, ValueError) as error:
        found, where = str(error), repr(str(place))[1:-1]
        raise VerifierError(message(where, found, "a TOML file of a policy")) from error
    return _parsed(str(place), text)


# The cache's key is the file's content,
# so a policy file that is edited during a session is read again.
@lru_cache(maxsize=8)
def _parsed(place: str, text: str) -> SafetyPolicy:
    try:
        tree = tomllib.loads(text)
    except RecursionError as error:
        raise VerifierError(message(place, "nested too deeply", "a policy")) from error
    # A number with thousands of digits is a ValueError other than TOMLDecodeError.
    except ValueError as error:
        raise VerifierError(message(place, f"no TOML: {error}", "a policy")) from error
    version, tables = tree.pop("version", None), tree.pop("categories", None)
    if tree:
        raise VerifierError(
            message(f"{place} {min(tree)}", "an unknown key", "version, categories")
        )
    if type(version) is not int or version < 1:
        found = "missing" if version is None else repr(version)
        raise VerifierError(message(f"{place} version", found, "a whole number >= 1"))
    if not isinstance(tables, dict) or not tables:
        raise VerifierError(message(f"{place} categories", "none", "tables categories.NAME"))
    categories: dict[str, Category] = {}
    places: dict[str, str] = {}
    for name, table in cast("dict[str, Any]", tables).items():
        categories[name] = _category(name, table, f"{place} categories.{name}")
        for treatment, clauses in categories[name].clauses.items():
            for id in clauses:
                where = f"categories.{name}.{treatment}"
                if id in places:
                    found = f"{id}, which is also in {places[id]}"
                    raise VerifierError(message(f"{place} {where}", found, "each id once"))
                places[id] = where
    return SafetyPolicy(version, categories)


def _category(name: str, table: Any, where: str) -> Category:
    if not isinstance(table, dict):
        raise VerifierError(message(where, repr(table)[:80], f"a table with {', '.join(_KEYS)}"))
    keys = cast("dict[str, Any]", table)
    for key in keys:
        if key not in _KEYS:
            accepted, meant = ", ".join(_KEYS), did_you_mean(key, _KEYS)
            raise VerifierError(message(f"{where}.{key}", "an unknown key", accepted, meant))
    about, offers = keys.get("about"), keys.get("offers")
    if not is_text(about):
        raise VerifierError(message(f"{where}.about", _shown(about), "a text"))
    if not list_of(is_text, 100, least=1)(offers):
        accepted = "a list of words that point to help"
        raise VerifierError(message(f"{where}.offers", _shown(offers), accepted))
    for one in cast("list[str]", offers):
        if not words_of(one):
            accepted = "words of letters or digits"
            raise VerifierError(message(f"{where}.offers", _shown(one), accepted))
    clauses: dict[Treatment, Mapping[str, str]]
    clauses = {one: _clauses(keys.get(one), f"{where}.{one}") for one in TREATMENTS}
    return Category(name, str(about), tuple(cast("list[str]", offers)), clauses)


def _clauses(value: Any, where: str) -> Mapping[str, str]:
    accepted = 'at least one clause: ID = "text"'
    if not isinstance(value, dict) or not value:
        raise VerifierError(message(where, _shown(value), accepted, "add the missing clause"))
    for id, text in cast("dict[str, Any]", value).items():
        if not _ID.fullmatch(id):
            raise VerifierError(message(where, f"the id {id!r}", "letters, digits, - and _"))
        if not is_text(text):
            raise VerifierError(message(f"{where}.{id}", _shown(text), "the text of a clause"))
    return cast("dict[str, str]", value)


def _shown(value: Any) -> str:
    return "missing" if value is None else repr(value)[:80]
