"""TOML features that `tomllib` lacks: line numbers, overrides, comments, free-form tables."""

from __future__ import annotations

import copy
import math
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, cast

import tomli_w

from assay.errors import ConfigError, message
from assay.host.terminal import escaped
from assay.validation import toml_words

_Path = tuple[str | int, ...]
_CLOSINGS = ("", "]", "]]", "]]]", "]]]]")


def one_line(text: str, limit: int = 300) -> str:
    """Return any text as one line that can follow a ``#``."""
    line = escaped(" ".join(text.split()))
    return line if len(line) <= limit else f"{line[: limit - 3]}..."


def comment(text: str) -> str:
    """Return any text as a comment of one line."""
    return f"# {one_line(text)}"


def toml_line(key: str, value: Any, note: str = "") -> str:
    """Return ``key = value`` in one line, followed by a note.

    Raises ValueError for a string that TOML cannot represent (an unpaired surrogate).
    """
    text = f"{tomli_w.dumps({key: 0}).rpartition(' = ')[0]} = {_value_text(value)}"
    text.encode()
    return f"{text:<27} {comment(note)}" if note else text


def _value_text(value: Any) -> str:
    # tomli_w would write one line per item.
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value_text, cast('list[Any]', value)))}]"
    return tomli_w.dumps({"value": value}).removeprefix("value = ").rstrip("\n")


def key_lines(text: str) -> dict[str, int]:
    """Return the line of each dotted key, table and list item of a valid TOML text.

    A statement ends at the line where it parses. If it parses only after adding brackets, it is an
    unfinished list, and its items so far are recorded.
    """
    found: dict[str, int] = {}
    # Index of the last [[table]] of each name.
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
    """Yield the tables opened by ``[a.b]`` or ``[[a.b]]``, the outermost first."""
    path: _Path = ()
    while tree:
        ((name, tree),) = tree.items()
        path = (*path, name)
        yield path
        if isinstance(tree, list):
            newest[path] = newest.get(path, -1) + 1
            tree = None
        # Inside the last table of that name.
        if path in newest:
            path = (*path, newest[path])
            yield path


def _paths(value: Any, prefix: _Path) -> Iterator[_Path]:
    """Yield the dotted keys below a value, including list items."""
    for name, inner in enumerate(value) if isinstance(value, list) else value.items():
        yield (*prefix, name)
        if isinstance(inner, list | dict):
            yield from _paths(inner, (*prefix, name))


def apply_override(tree: dict[str, Any], override: str, holds_text: Callable[[str], bool]) -> str:
    """Apply one ``section.key=value`` override to a tree of plain values and return its dotted key.

    The value is parsed as TOML. For a key with `holds_text` it is used literally. An empty value
    removes the key. Raises ConfigError.
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
    for candidate in (text, text.lower()) if text in ("True", "False") else (text,):
        try:
            read = tomllib.loads(f"value = {candidate}")
        except (ValueError, RecursionError):
            # The text contains characters that TOML cannot represent.
            continue
        if len(read) == 1 and (isinstance(read["value"], str) or not is_text):
            return read["value"]
    return text


def merged(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tree with another tree's values, merged table by table, without modifying either."""
    found = copy.deepcopy(dict(base))
    for key, value in change.items():
        inner = found.get(key)
        both = isinstance(inner, Mapping) and isinstance(value, Mapping)
        found[key] = merged(cast("Any", inner), value) if both else copy.deepcopy(value)
    return found


def plain_tables(value: Any) -> dict[str, dict[str, Any]]:
    """Return a table of tables of plain values, lists as lists. Raises ValueError with the key."""
    found: dict[str, dict[str, Any]] = {}
    for name, table in _table(value, "", "a table for each name").items():
        entries = _table(table, name, "a table of keys and values").items()
        found[name] = {key: _plain(entry, f"{name}.{key}") for key, entry in entries}
    return found


def point_lists(value: Any) -> dict[str, tuple[tuple[int, float], ...]]:
    """Return a table of lists of [integer, number] with increasing integers. Raises ValueError."""
    accepted = "a list of [policy_version, multiplier], versions rising, as [[0, 0.0], [400, 1.0]]"
    return {
        name: point_list(listed, accepted, name)
        for name, listed in _table(value, "", accepted).items()
    }


def point_list(listed: Any, accepted: str, name: str = "") -> tuple[tuple[int, float], ...]:
    """Return a list of [integer, number] with increasing integers. Raises ValueError."""
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
    if value != value:
        raise ValueError(_complaint(value, where, "a number"))
    return value


def _table(value: Any, where: str, accepted: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(_complaint(value, where, accepted))
    return cast("dict[str, Any]", value)


def _complaint(value: Any, where: str, accepted: str) -> str:
    return message(where, toml_words(value), accepted).removeprefix(": ")
