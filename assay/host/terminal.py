"""All output for people goes through here: text of others made harmless, and rows in columns.

A model's text, a file's name, a row, a server's reply or a user's exception may hold escapes that
drive a terminal, or a line break that forges a line of ours. `tests/test_house.py` checks that
nothing else in the package prints.
"""

from __future__ import annotations

import json
import re
import sys
import threading
import traceback
import warnings
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

# Control characters but tab and line break; what turns the direction of writing; line and paragraph
# separators; half surrogate pairs, which cannot be printed; tags, which nobody sees.
_NOT_SHOWN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
    "\U000e0000-\U000e007f]"
)


def escaped(text: str) -> str:
    r"""Write out what would drive a terminal or hide text, as JSON does: ``\u001b``.

    A model's text may hold anything. JSON stays the JSON that it was.
    """
    return _NOT_SHOWN.sub(lambda match: json.dumps(match[0])[1:-1], text)


def one_line(text: str) -> str:
    r"""Return text that cannot leave its line: as `escaped`, line breaks written as ``\n``."""
    return escaped(text).replace("\n", r"\n")


def lined(lines: Iterable[str]) -> str:
    """Join lines, none of which can become two."""
    return "\n".join(map(one_line, lines))


def show_text(text: str, end: str = "\n") -> None:
    """Print a result on standard output, escaped; its line breaks stay."""
    print(escaped(text), end=end, flush=True)


def show_json(value: Any) -> None:
    """Print a result as one line of JSON on standard output."""
    print(json.dumps(value, allow_nan=False), flush=True)


def say(text: str) -> None:
    """Print on standard error, escaped; its line breaks stay."""
    print(escaped(text), file=sys.stderr, flush=True)


def say_progress(text: str) -> None:
    """Show how far a long command is, on one line of the terminal."""
    print(f"\r{one_line(text)}", end="", file=sys.stderr, flush=True)


def warn(line: str) -> None:
    """Print a warning, one line of standard error."""
    say(f"warning: {one_line(line)}")


@contextmanager
def guarded_python() -> Generator[None]:
    """Escape what Python prints by itself: tracebacks, those of threads, warnings of libraries."""
    sys.excepthook = _show_exception  # it stays: the interpreter prints after everything has ended
    of_threads = threading.excepthook
    threading.excepthook = lambda told: _show_exception(
        told.exc_type, told.exc_value, told.exc_traceback
    )
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            yield
    finally:
        threading.excepthook = of_threads


def _show_exception(
    kind: type[BaseException], error: BaseException | None, trace: TracebackType | None
) -> None:
    say("".join(traceback.format_exception(kind, error, trace)).rstrip("\n"))


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: Any = None,
    line: str | None = None,
) -> None:
    text = warnings.formatwarning(message, category, filename, lineno, line).rstrip("\n")
    if file is None:
        say(text)
    else:
        file.write(f"{escaped(text)}\n")


def aligned(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> Iterator[str]:
    """Yield rows of equally many cells as lines, in columns two spaces apart.

    A cell cannot leave its line. right: columns whose cells end together.
    """
    rows = [[*map(one_line, row)] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (
            cell.rjust(width) if n in right else cell.ljust(width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join(cells).rstrip()
