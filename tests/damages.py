"""Ways to damage a file that Assay wrote, and the commands that read what a run or a recipe wrote."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tomli_w

RUN, OTHER, RECIPE = "runs/done", "runs/other", "runs/two"
WRONG: tuple[Any, ...] = (
    "x",
    [],
    {},
    -1,
    10**400,
    True,
    None,
    [["x"]],
    {"a": {"b": []}},
    1.5,
    "\ud800",
)


def _cut(path: Path, share: float) -> None:
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])


def _as_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _linked(path: Path, to: str | Path) -> None:
    path.unlink()
    path.symlink_to(to)


def _lines(path: Path, change: Callable[[list[bytes]], list[bytes]]) -> None:
    path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))


def _other(path: Path) -> None:
    """Put the file of the other run in this one's place."""
    other = Path(str(path).replace(RUN, OTHER, 1))
    path.write_bytes(other.read_bytes() if other.is_file() else b"{}")


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    for place in range(0, len(content), max(1, len(content) // 20)):
        content[place] ^= 0x55
    path.write_bytes(content)


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _replace_numbers(path: Path, by: str) -> None:
    """Put a text in the place of every number of a JSON file."""
    marked = "\0number"
    rows = [_mapped(row, marked) for row in objects(path)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    path.write_text(text.replace(json.dumps(marked), by))


def _mapped(value: Any, marked: str) -> Any:
    if isinstance(value, dict):
        return {key: _mapped(each, marked) for key, each in value.items()}
    if isinstance(value, list):
        return [_mapped(each, marked) for each in value]
    return marked if isinstance(value, int | float) and not isinstance(value, bool) else value


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "missing": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "cut off": lambda path: _cut(path, 0.6),
    "half a line": lambda path: _cut(path, 1 - 7 / max(8, path.stat().st_size)),
    "one byte": lambda path: path.write_bytes(b"{"),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "binary": lambda path: path.write_bytes(bytes(range(256)) * 8),
    "bits flipped": _flip,
    "not UTF-8": lambda path: path.write_bytes(path.read_bytes().replace(b'"', b'\xff"', 3)),
    "a mark of byte order": lambda path: path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes()),
    "a list": lambda path: path.write_text("[1, 2]\n"),
    "an empty object": lambda path: path.write_text("{}\n"),
    "null": lambda path: path.write_text("null\n"),
    "brackets": lambda path: path.write_text("[" * 100_000),
    "deep objects": lambda path: path.write_text('{"step": ' * 900 + "1" + "}" * 900 + "\n"),
    "no numbers": lambda path: _replace_numbers(path, "NaN"),
    "huge numbers": lambda path: _replace_numbers(path, "1" + "0" * 400),
    "endless numbers": lambda path: _replace_numbers(path, "9" * 5000),
    "infinite numbers": lambda path: _replace_numbers(path, "-1e999"),
    "lines twice": lambda path: _lines(path, lambda lines: [one for one in lines for _ in (1, 2)]),
    "lines backwards": lambda path: _lines(path, lambda lines: lines[::-1]),
    "a line in the middle": lambda path: _lines(path, lambda lines: [*lines[:1], b"%&/\n", *lines[1:]]),
    "of another run": _other,
    "a folder": _as_folder,
    "a dangling link": lambda path: _linked(path, "nowhere"),
    "a link to itself": lambda path: _linked(path, path.name),
    "a link to a folder": lambda path: _linked(path, Path("/")),
    "a pipe": _fifo,
}  # fmt: skip
OF_JSON = {"no numbers", "huge numbers", "endless numbers", "infinite numbers"}


def damages_of(path: Path) -> dict[str, Callable[[Path], Any]]:
    """Return what can be done to a file of this kind."""
    is_json = path.suffix in (".json", ".jsonl")
    return {name: how for name, how in DAMAGES.items() if is_json or name not in OF_JSON}


def objects(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a JSON or JSON Lines file."""
    text = path.read_text("utf-8")
    if path.suffix == ".json":
        return [json.loads(text)]
    return [json.loads(line) for line in text.splitlines()]


def keys_of(value: Any, prefix: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each key of a tree, of lists their first item."""
    items = value.items() if isinstance(value, dict) else enumerate(value[:1])
    for key, inner in items:
        yield (*prefix, key)
        if isinstance(inner, dict | list):
            yield from keys_of(inner, (*prefix, key))


def with_wrong(value: Any, path: tuple[Any, ...], wrong: Any) -> Any:
    """Return a copy of a tree with another value at a path; `KeyError` takes the key away."""
    found = json.loads(json.dumps(value))
    node = found
    for key in path[:-1]:
        node = node[key]
    if wrong is KeyError:
        del node[path[-1]]
    else:
        node[path[-1]] = wrong
    return found


def spoil_key(file: Path, number: int) -> str | None:
    """Give the numbered key of a file a wrong value, or none; return what was done; None: no such key."""
    if file.suffix == ".toml":
        tree = tomllib.loads(file.read_text("utf-8"))
        wrongs = ["x", [], {}, -1, True, 2**62, 1.5, KeyError]
        rows, places = [tree], [(0, path) for path in keys_of(tree)]
    else:
        rows, wrongs = objects(file), [*WRONG, KeyError]
        places = [(n, path) for n, row in enumerate(rows) for path in keys_of(row)]
        if file.suffix == ".jsonl":  # rows of one kind: the last has the keys of all
            kinds = {json.dumps([row.get("kind"), sorted(row)]): n for n, row in enumerate(rows)}
            places = [one for one in places if one[0] in kinds.values()]
    if number >= len(places) * 2:
        return None
    row, path = places[number // 2]
    wrong = wrongs[(number * 5 + number // len(wrongs)) % len(wrongs)]
    rows[row] = with_wrong(rows[row], path, wrong)
    if file.suffix == ".toml":
        file.write_text(tomli_w.dumps(rows[0]), encoding="utf-8")
    else:
        file.write_text("".join(json.dumps(one) + "\n" for one in rows))
    return f"{row}.{'.'.join(map(str, path))} = {wrong!r:.20}"
