"""Open data sources by address: files, hub data sets, reasoning-gym tasks and Python objects.

The author of a function allows configurations to call it by the decorator `source`. Settings after
``?`` in a source address become keyword arguments of the function. The value of a setting is parsed
as JSON (``4``, ``0.5``, ``true``, ``[1,2]``) or else as text; ``%26`` encodes ``&``.

The following strings are addresses of data sources.

    ``problems.jsonl``, ``problems.parquet``: a file, whose format is detected by its content.
    ``selected``: a folder that a data transform wrote.
    ``book.txt``, ``page.md``: plain text, as a single row with the key ``text``.
    ``hf:OWNER/NAME[/CONFIG][?split=train&revision=main]``: a hub data set (extra ``hub``).
    ``gym:TASK[?setting=value&size=1000&seed=0]``: problems of a reasoning-gym task.
    ``package.module:object[?argument=value]``: an object with rows, or a declared function.
"""

from __future__ import annotations

import inspect
import itertools
import json
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from assay.data.rows import shown
from assay.data.source import Source, split_settings
from assay.errors import FAILURES, DataError, cause, message, nearest
from assay.host.user_code import OBJECT_NAME, import_object

ACCEPTED = "a JSONL or Parquet file, hf:NAME, gym:TASK or package.module:object"
TEXT_FILES = (".txt", ".md")
# Names of the row files that a data transform writes into its folder.
ROWS_FILES = ("rows.jsonl", "rows.parquet")
_DECLARED = "__assay_source__"


Function = TypeVar("Function", bound=Callable[..., Any])


def source(function: Function) -> Function:
    """Declare a Python function as a data source, so that configurations may call it with
    arguments.

        @assay.source  # in sums.py; data.train = ["sums:problems?size=500"]
        def problems(size):
            return [{"question": f"{n}+1=", "answer": str(n + 1)} for n in range(size)]

    A configuration that names an undeclared function is rejected.
    """
    # Without a declaration, a foreign configuration could call any function, such as os.system.
    setattr(function, _DECLARED, True)
    return function


def open_source(text: str) -> Source:
    """Open the data source at an address; raises DataError if the address names no source."""
    if text.startswith("hf:"):
        from assay.data.hub import open_hub

        return open_hub(text)
    if text.startswith("gym:"):
        from assay.data.gym import open_gym

        return open_gym(text)
    if os.path.exists(text):
        return _open_file(text)
    name, settings = split_settings(text)
    if OBJECT_NAME.fullmatch(name):
        return _open_object(text, name, settings)
    path = Path(text)
    there = os.listdir(path.parent) if os.access(path.parent, os.R_OK) else []
    meant = "".join(f"did you mean {path.with_name(one)}?" for one in nearest(path.name, there))
    raise DataError(message(text, "no such file", ACCEPTED, meant))


Rows = str | Path | Iterable[str | Path | Mapping[str, Any]]
"""Rows as Python callers pass them: one source, several sources, or the rows themselves."""


def as_sources(given: Rows) -> list[str | Source]:
    """Return a list of data sources; rows (a list of dicts or a data frame) become one source."""
    items = [given] if isinstance(given, str | Path) else rows_in(given)
    if all(isinstance(one, str | Path) for one in items):
        return list(map(str, items))
    return [ObjectRows("rows", items)]


def rows_in(given: Any) -> list[Any]:
    """Return the rows of an iterable of dicts, or of a pandas or polars data frame."""
    # Data frames are recognized by their methods, so that pandas and polars stay optional.
    # `to_dicts` is polars' method; `iterrows` is pandas' method.
    if hasattr(given, "to_dicts"):
        return given.to_dicts()
    return list(given.to_dict("records") if hasattr(given, "iterrows") else given)


def python_name(source: str) -> str | None:
    """Return the ``package.module:object`` that a source address imports, or None for other
    addresses.
    """
    name = source.partition("?")[0]
    if source.startswith(("hf:", "gym:")) or not OBJECT_NAME.fullmatch(name):
        return None
    return name


def rows_of(source: str) -> str:
    """Return the path of the rows in the folder of a data transform; any other name is returned
    unchanged.
    """
    folder = Path(source)
    if not folder.is_dir():
        return source
    for name in ROWS_FILES:
        if (folder / name).is_file():
            return str(folder / name)
    part = folder / f"{ROWS_FILES[0]}.part"
    if part.is_file():
        found = "the folder of an unfinished data transform"
        raise DataError(message(source, found, "a finished one", f"or name {part}"))
    return source


def _open_file(text: str) -> Source:
    text = rows_of(text)
    path = Path(text)
    if path.is_dir():
        raise DataError(message(text, "a folder", ACCEPTED, "name the files in it"))
    # A data source is read several times, but a pipe can be read only once, so pipes are refused.
    if not path.is_file():
        raise DataError(message(text, "a pipe or a device", ACCEPTED, "write it to a file"))
    try:
        with path.open("rb") as file:
            head = file.read(4096)
    except OSError as error:
        raise DataError(f"{text}: cannot be read ({error.strerror})") from error
    # A file's content decides on its format, because data sets come with any file name.
    if head.startswith(b"PAR1"):
        from assay.data.parquet import ParquetRows

        return ParquetRows(text)
    if head.startswith(b"\x1f\x8b"):
        raise DataError(message(text, "a gzip file", ACCEPTED, "decompress it"))
    if b"\0" in head:
        raise DataError(message(text, "a binary or UTF-16 file", "JSON Lines in UTF-8"))
    begins = head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    if path.suffix in TEXT_FILES and begins != b"{":
        return TextFile(text)
    if begins == b"[":
        raise DataError(message(text, "a JSON array", "JSON Lines: one object a line"))
    return JsonLines(text)


class JsonLines(Source):
    """A JSON Lines file. Positions in the file are byte offsets; blank lines are skipped."""

    def __init__(self, label: str) -> None:
        super().__init__(label)
        # One descriptor per file stays open: pread needs no shared file position.
        # Threads therefore need no lock.
        self._descriptor = os.open(label, os.O_RDONLY)
        weakref.finalize(self, os.close, self._descriptor)

    def __reduce__(self) -> tuple[Any, ...]:
        return JsonLines, (self.label,)

    def scan(self) -> Iterator[tuple[int, int, bytes]]:
        """Yield (offset, line number, line)."""
        position = 0
        with open(self.label, "rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.isspace():
                    yield position, number, line
                position += len(line)

    def fetch(self, position: int) -> bytes:
        """Return the line at a byte offset of the file."""
        pieces: list[bytes] = []
        while piece := os.pread(self._descriptor, 8192, position):
            line, newline, _ = piece.partition(b"\n")
            pieces.append(line)
            if newline:
                break
            position += len(piece)
        return b"".join(pieces)

    def parse(self, raw: bytes, where: str) -> Any:
        """Parse a line of the file as JSON; raises DataError."""
        accepted = "one JSON object a line, in UTF-8"
        text = _decode(raw, where, accepted)
        try:
            # The line break is removed, so that the JSON error of a cut line names the last column.
            return _JSON.decode(text.rstrip())
        except json.JSONDecodeError as error:
            found = f"broken JSON ({error.msg}, column {error.colno})"
            raise DataError(message(where, found, accepted)) from error
        except (ValueError, RecursionError) as error:
            # The decoder also refuses NaN, integers of over 4300 digits, and 100,000 brackets.
            raise DataError(message(where, f"a value ({error})", accepted)) from error


class TextFile(Source):
    """Plain-text file as a source of one row, which has the whole text under the key ``text``."""

    def scan(self) -> Iterator[tuple[int, int, bytes]]:
        """Yield the single row."""
        yield 0, 1, self.fetch(0)

    def fetch(self, position: int) -> bytes:
        """Return the whole content of the text file."""
        return Path(self.label).read_bytes()

    def parse(self, raw: bytes, where: str) -> Any:
        """Return a row that has the text of the file under the key ``text``."""
        return {"text": _decode(raw, where, "plain text in UTF-8")}


def _decode(raw: bytes, where: str, accepted: str) -> str:
    try:
        return raw.decode("utf-8-sig" if raw.startswith(b"\xef\xbb\xbf") else "utf-8")
    except UnicodeDecodeError as error:
        found = f"byte 0x{raw[error.start]:02x} at column {error.start + 1}, not UTF-8"
        raise DataError(message(where, found, accepted)) from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


# Python's decoder accepts NaN and Infinity by default, which JSON forbids.
_JSON = json.JSONDecoder(parse_constant=_refuse_constant)


class ObjectRows(Source):
    """Rows of a Python object. A sequence of rows is indexed on access; the rows of an iterator are
    stored.
    """

    def __init__(self, label: str, rows: Iterable[Any]) -> None:
        is_sequence = isinstance(rows, Sequence)
        super().__init__(label, rows if is_sequence else [])
        self._rest = iter(()) if is_sequence else iter(rows)

    def __str__(self) -> str:
        return self.label

    def scan(self) -> Iterator[tuple[int, int, Any]]:
        """Yield (index, index, row) for each row; an iterator advances only as far as needed."""
        for index in itertools.count():
            if index >= len(self._rows) and not self._take_one():
                return
            yield index, index, self.fetch(index)

    def _take_one(self) -> bool:
        try:
            row = next(self._rest)
        except StopIteration:
            return False
        except DataError:
            raise
        except FAILURES as error:
            # The user's generator raised.
            raise _raised(self.label, error) from error
        self._rows.append(row)
        return True

    def fetch(self, position: int) -> Any:
        """Return the row at an index of the sequence."""
        try:
            return self._rows[position]
        except DataError:
            raise
        except FAILURES as error:
            # The user's sequence raised.
            raise _raised(self.label, error) from error


def _raised(label: str, error: BaseException) -> DataError:
    return DataError(f"{label}: raised {cause(error)}")


def _open_object(text: str, name: str, settings: Mapping[str, Any]) -> Source:
    rows = import_object(name, text, DataError)
    if callable(rows):
        if getattr(rows, _DECLARED, None) is not True:
            accepted = "rows, or a function that is declared to return them"
            remedy = "put @assay.source above it, if it is yours"
            raise DataError(
                message(text, "an object that is not declared as a source", accepted, remedy)
            )
        _check_settings(rows, text, name, settings)
        try:
            rows = rows(**settings)
        except DataError:
            raise
        except FAILURES as error:
            # The user's function raised.
            raise _raised(text, error) from error
    elif settings:
        raise DataError(message(text, f"settings for a {type(rows).__name__}", "a callable"))
    if isinstance(rows, str | bytes | Mapping) or not isinstance(rows, Iterable):
        raise DataError(message(text, shown(rows), "an iterable of rows, or a callable for one"))
    return ObjectRows(text, rows)


def _check_settings(function: Any, text: str, name: str, settings: Mapping[str, Any]) -> None:
    try:
        signature = inspect.signature(function)
    except ValueError:
        # Some built-in functions have no signature; their call itself reports wrong arguments.
        return
    try:
        signature.bind(**settings)
    except TypeError as error:
        found = f"settings that do not fit ({error})"
        raise DataError(message(text, found, f"{name}{signature}")) from error
