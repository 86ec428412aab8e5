"""TOML functions that `tomllib` lacks: line numbers, overrides, comments, free-form tables."""

from __future__ import annotations

import copy
import math
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import tomli_w

from assay.errors import ConfigError, message
from assay.host.terminal import escaped
from assay.validation import toml_words

_Path = tuple[str | int, ...]
# Closing brackets for an unfinished list, which may be nested up to four levels deep.
_CLOSINGS = ("", "]", "]]", "]]]", "]]]]")


def one_line(text: str, limit: int = 300) -> str:
    """Return a text as one line that may follow a ``#``, truncated to ``limit`` characters."""
    # A line break in an untrusted text would end the TOML comment and could inject a key.
    line = escaped(" ".join(text.split()))
    return line if len(line) <= limit else f"{line[: limit - 3]}..."


def comment(text: str) -> str:
    """Return a text as a TOML comment of one line."""
    return f"# {one_line(text)}"


def toml_line(key: str, value: Any, note: str = "") -> str:
    """Return ``key = value`` as one line, with an optional note as a comment.

    Raises ValueError for a string that TOML cannot represent (an unpaired surrogate).
    """
    # tomli_w quotes keys that need quotes, so this code dumps the key with a dummy value.
    text = f"{tomli_w.dumps({key: 0}).rpartition(' = ')[0]} = {_value_text(value)}"
    text.encode()
    return f"{text:<27} {comment(note)}" if note else text


def _value_text(value: Any) -> str:
    # tomli_w writes one line per list item, so the lines of a list are joined.
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value_text, cast('list[Any]', value)))}]"
    return tomli_w.dumps({"value": value}).removeprefix("value = ").rstrip("\n")


def key_lines(text: str) -> dict[str, int]:
    """Return the line number of each dotted key, table and list item of a valid TOML text.

    A TOML statement ends at the first line at which the statement parses. A statement that parses
    only with additional closing brackets is an unfinished list; the lines of its items so far are
    recorded.
    """
    # `tomllib` reports no line numbers, and a parser with line numbers would be a new dependency.
    found: dict[str, int] = {}
    # For each name of array tables ([[NAME]]), the index of the last table.
    newest: dict[_Path, int] = {}
    section: _Path = ()
    statement, first = "", 1
    for number, line in enumerate(text.split("\n"), start=1):
        statement += f"{line}\n"
        for closing in _CLOSINGS:
            with suppress(ValueError):
                tree = tomllib.loads(statement + closing)
                break
        else:
            continue
        if statement.lstrip().startswith("["):
            *paths, section = _header(tree, newest)
            paths += [section]
        else:
            paths = _paths(tree, section)
        for path in paths:
            found.setdefault(".".join(map(str, path)), first)
        first = number + 1
        if not closing:
            statement = ""
    return found


def _header(tree: Any, newest: dict[_Path, int]) -> Iterator[_Path]:
    """Yield the paths of the tables that ``[a.b]`` or ``[[a.b]]`` opens, outermost first."""
    path: _Path = ()
    while tree:
        ((name, tree),) = tree.items()
        path = (*path, name)
        yield path
        if isinstance(tree, list):
            newest[path] = newest.get(path, -1) + 1
            tree = None
        # A table [a.b] belongs to the newest [[a]] above it,
        # so its path contains the index of this [[a]].
        if path in newest:
            path = (*path, newest[path])
            yield path


def _paths(value: Any, prefix: _Path) -> Iterator[_Path]:
    """Yield the paths of all keys and list items below a value."""
    for name, inner in enumerate(value) if isinstance(value, list) else value.items():
        yield (*prefix, name)
        if isinstance(inner, list | dict):
            yield from _paths(inner, (*prefix, name))


def apply_override(tree: dict[str, Any], override: str, holds_text: Callable[[str], bool]) -> str:
    """Apply one ``section.key=value`` override to the nested dicts of a TOML file; return the
    dotted key.

    The override's value is parsed as TOML. If ``holds_text(key)`` is true, the override's value is
    used literally as text and not parsed. An override with an empty value removes the key from the
    tree. Raises ConfigError for an invalid override.
    """
    key, equals, value = (part.strip() for part in override.partition("="))
    if not equals or not re.fullmatch(r"[\w-]+(\.[\w-]+)*", key):
        raise ConfigError(
            message("--set", toml_words(override), "section.key=value, as rl.steps=20")
        )
    *parents, leaf = key.split(".")
    node = tree
    for parent in parents:
        child: Any = node.setdefault(parent, {})
        if not isinstance(child, dict):
            where = f"--set {key}: {parent}"
            raise ConfigError(message(where, toml_words(child), "a section, to hold the key"))
        node = cast("dict[str, Any]", child)
    if value:
        node[leaf] = _override_value(value, holds_text(key))
    else:
        node.pop(leaf, None)
    return key


def _override_value(text: str, is_text: bool) -> Any:
    """Parse an override's value as TOML, as Python's ``True`` or ``False``, or as text."""
    # A shell removes quotes, so text must be accepted without quotes: --set model.path=out/base.
    for candidate in (text, text.lower()) if text in ("True", "False") else (text,):
        try:
            read = tomllib.loads(f"value = {candidate}")
        except (ValueError, RecursionError):
            # If an override's value is not valid TOML, the value is used as text.
            continue
        # An override with a line break could set a second key, so exactly one key must result.
        if len(read) == 1 and (isinstance(read["value"], str) or not is_text):
            return read["value"]
    return text


def merged(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of ``base`` with the values of ``change``, merged table by table."""
    found = copy.deepcopy(dict(base))
    for key, value in change.items():
        inner = found.get(key)
        both = isinstance(inner, Mapping) and isinstance(value, Mapping)
        found[key] = merged(cast("Any", inner), value) if both else copy.deepcopy(value)
    return found


def plain_tables(value: Any) -> dict[str, dict[str, Any]]:
    """Return nested tables with the plain Python values of TOML, such as lists. Raises ValueError
    with the key of a value that TOML cannot express."""
    # Tuples become lists again: `Section` makes tuples of lists, but verifiers get options as JSON.
    found: dict[str, dict[str, Any]] = {}
    for name, table in _table(value, "", "a table for each name").items():
        entries = _table(table, name, "a table of keys and values").items()
        found[name] = {key: _plain(entry, f"{name}.{key}") for key, entry in entries}
    return found


def point_lists(value: Any) -> dict[str, tuple[tuple[int, float], ...]]:
    """Return a table that maps names to schedules (`point_list`). Raises ValueError for an invalid
    table."""
    accepted = "a list of [policy_version, multiplier], versions rising, as [[0, 0.0], [400, 1.0]]"
    return {
        name: point_list(listed, accepted, name)
        for name, listed in _table(value, "", accepted).items()
    }


def point_list(listed: Any, accepted: str, name: str = "") -> tuple[tuple[int, float], ...]:
    """Return a schedule: [integer, number] pairs with increasing integers.

    Raises ValueError for an invalid schedule.
    """
    try:
        points = [(start, float(factor)) for start, factor in listed]
        starts = [start for start, _ in points]
        if not points or any(type(each) is not int or each < 0 for each in starts):
            raise ValueError
        if starts != sorted(set(starts)) or not all(math.isfinite(each) for _, each in points):
            raise ValueError
    except (TypeError, ValueError):
        raise ValueError(_complaint(listed, name, accepted)) from None
    return tuple(points)


def _plain(value: Any, where: str) -> Any:
    if isinstance(value, list | tuple):
        items = cast("list[Any]", value)
        return [_plain(item, f"{where}[{index}]") for index, item in enumerate(items)]
    if isinstance(value, dict):
        table = _table(value, where, "a table")
        return {key: _plain(item, f"{where}.{key}") for key, item in table.items()}
    if type(value) not in (str, int, float, bool) or value in (math.inf, -math.inf):
        raise ValueError(
            _complaint(value, where, "text, a number, true or false, a list or a table")
        )
    # Only NaN differs from itself.
    if value != value:
        raise ValueError(_complaint(value, where, "a number"))
    return value


def _table(value: Any, where: str, accepted: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(_complaint(value, where, accepted))
    return cast("dict[str, Any]", value)


def _complaint(value: Any, where: str, accepted: str) -> str:
    return message(where, toml_words(value), accepted).removeprefix(": ")


def not_toml(path: Path, reason: str) -> str:
    """Return the message of a TOML syntax error, with the line number after the file name."""
    place = re.search(r" \(at line (\d+), column (\d+)\)$", reason)
    if place is None:
        return f"{path}: not TOML: {reason}"
    return f"{path}:{place[1]} not TOML: {reason[: place.start()]}, at column {place[2]}"
