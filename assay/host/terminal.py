"""Output for people: escaped text, warnings, and aligned columns.

Text from a model, a file name, a data row, a server's reply or a user's exception may contain
terminal escape sequences, or a line break that forges a line of Assay's output.
`tests/test_house.py` checks that no other module prints.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import traceback
import warnings
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Literal

# Control characters except tab and line break; bidirectional controls; invisible tag characters;
# line and paragraph separators; unpaired surrogates, which cannot be printed.
_NOT_SHOWN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
    "\U000e0000-\U000e007f]"
)


Style = Literal["plain", "bold", "dim", "green", "yellow", "red"]
_CODES: dict[Style, str] = {
    "plain": "",
    "bold": "1",
    "dim": "2",
    "green": "32",
    "yellow": "33",
    "red": "31",
}


def escaped(text: str) -> str:
    r"""Escape characters that control a terminal or hide text, as in JSON: ``\u001b``.

    Escaped JSON remains the same JSON value.
    """
    return _NOT_SHOWN.sub(lambda match: json.dumps(match[0])[1:-1], text)


def one_line(text: str) -> str:
    r"""Return text on a single line: `escaped`, with line breaks written as ``\n``."""
    return escaped(text).replace("\n", r"\n")


def lined(lines: Iterable[str]) -> str:
    """Join lines after escaping the line breaks and control characters in each line."""
    return "\n".join(map(one_line, lines))


def show_text(text: str, end: str = "\n") -> None:
    """Print a result to standard output, escaped. Line breaks stay."""
    print(escaped(text), end=end, flush=True)


def show_styled(pieces: Iterable[tuple[str, Style]]) -> None:
    """Print pieces of text to standard output, escaped; with colors only on a terminal."""
    # https://no-color.org
    is_colored = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    for text, style in pieces:
        code = _CODES[style] if is_colored else ""
        text = escaped(text)
        print(f"\x1b[{code}m{text}\x1b[0m" if code else text, end="")
    print(end="", flush=True)


def show_json(value: Any) -> None:
    """Print a result to standard output as one line of JSON."""
    print(json.dumps(value, allow_nan=False), flush=True)


def say(text: str) -> None:
    """Print to standard error, escaped. Line breaks stay."""
    print(escaped(text), file=sys.stderr, flush=True)


def say_progress(text: str) -> None:
    """Show the progress of a long command on one line of the terminal."""
    print(f"\r{one_line(text)}", end="", file=sys.stderr, flush=True)


def warn(line: str) -> None:
    """Print a warning as one line on standard error."""
    say(f"warning: {one_line(line)}")


@contextmanager
def guarded_python() -> Generator[None]:
    """Escape the interpreter's own output: tracebacks, also of threads, and library warnings."""
    # `sys.excepthook` is not restored, because Python prints the last traceback after this block.
    sys.excepthook = _show_exception
    of_threads = threading.excepthook
    # Threads do not use sys.excepthook.
    threading.excepthook = lambda thrown: _show_exception(
        thrown.exc_type, thrown.exc_value, thrown.exc_traceback
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
    """Yield rows with equal numbers of cells as lines, in columns two spaces apart.

    Line breaks in cells are escaped. right: indices of right-aligned columns.
    """
    rows = [[*map(one_line, row)] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (
            cell.rjust(width) if n in right else cell.ljust(width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join(cells).rstrip()
