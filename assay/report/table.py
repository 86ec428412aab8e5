"""The table type of `load_run` and `judge`: rows with named columns, for notebooks and scripts."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any, overload

from rich.cells import cell_len, set_cell_size

from assay.errors import DataError, MissingExtra, did_you_mean, message
from assay.host.terminal import escaped

if TYPE_CHECKING:
    from pandas import DataFrame  # pyright: ignore[reportMissingImports]

_SHOWN_ROWS = 20
_SHOWN_CHARACTERS = 2000
_NARROW = 24
"""Width of a column in a terminal while other columns need space, in characters."""


class Table(Sequence[Mapping[str, Any]]):
    """A sequence of rows. Each row is a mapping, and rows may have different columns.

    ``table[3]`` returns a row, ``table[2:5]`` a table, and ``table["reward"]`` a column as a list,
    with None for rows without this column. Notebooks and `print` show the first 20 rows.

        run = assay.load_run("runs/first")
        run.metrics["reward/mean"][-1]
        run.metrics.to_pandas().plot(x="step", y="reward/mean")
    """

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self._rows = rows

    @property
    def columns(self) -> list[str]:
        """Names of all columns, in order of first appearance."""
        return list(dict.fromkeys(chain.from_iterable(self._rows)))

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return iter(self._rows)

    @overload
    def __getitem__(self, index: int) -> Mapping[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> Table: ...
    @overload
    def __getitem__(self, index: str) -> list[Any]: ...
    def __getitem__(self, index: int | slice | str) -> Any:
        if isinstance(index, slice):
            return Table(self._rows[index])
        if not isinstance(index, str):
            return self._rows[index]
        if index not in (columns := self.columns):
            meant = did_you_mean(index, columns)
            accepted = ", ".join(columns) or "none"
            raise DataError(message("table", f"no column {index!r}", accepted, meant))
        return [row.get(index) for row in self._rows]

    def to_pandas(self) -> DataFrame:
        """Convert the table to a pandas data frame. Raises MissingExtra without pandas."""
        try:
            from pandas import DataFrame  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise MissingExtra.of("pandas", "notebook", "a data frame") from error
        return DataFrame(list(map(dict, self._rows)), columns=self.columns)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Table | list) and list(self) == list(other)

    # Python gives no hash to a class that defines __eq__ alone,
    # and this line tells type checkers so.
    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __repr__(self) -> str:
        return f"Table of {len(self)} rows: {', '.join(self.columns) or 'no columns'}"

    def __str__(self) -> str:
        """Format the first rows, with as many columns as fit into the terminal."""
        names, rows = self.columns, self._rows[:_SHOWN_ROWS]
        table = [names, *([_line(_words(row.get(name))) for name in names] for row in rows)]
        sizes = _sizes([max(map(cell_len, column)) for column in zip(*table, strict=True)])
        lines = [
            "  ".join(_fit(cell, size) for cell, size in zip(row, sizes, strict=False)).rstrip()
            for row in table
        ]
        count = f"{len(rows)} of {len(self):,}" if len(rows) < len(self) else f"{len(self)}"
        more = names[len(sizes) :]
        listed = f"; {len(more)} more columns: {', '.join(more)}" if more else ""
        return "\n".join([*lines[not names :], f"({count} rows{listed})"])

    def _repr_html_(self) -> str:
        """Render the first rows as HTML for notebooks."""
        # The CSS classes of the table keep MathJax from typesetting dollar signs in texts.
        columns = self.columns
        head = "".join(f"<th>{_safe(name)}</th>" for name in columns)
        rows = [
            f"<tr>{''.join(_cell(row.get(name)) for name in columns)}</tr>"
            for row in self._rows[:_SHOWN_ROWS]
        ]
        left = len(self) - len(rows)
        more = f"<p>and {left:,} more rows</p>" if left else ""
        body = f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody>"
        return f'<table class="tex2jax_ignore mathjax_ignore">{body}</table>{more}'


def _sizes(wide: Sequence[int]) -> list[int]:
    """Compute the widths of the first columns, as many as fit into the terminal."""
    sizes, room = list[int](), get_terminal_size().columns + 2
    for size in (min(one, _NARROW) + 2 for one in wide):
        if sizes and size > room:
            break
        sizes.append(min(size, room) - 2)
        room -= size
    for index, size in enumerate(sizes):
        more = max(0, min(wide[index] - size, room))
        sizes[index], room = size + more, room - more
    return sizes


def _words(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_words(one)}" for key, one in value.items())
    return "" if value is None else str(value)


def _line(text: str) -> str:
    return " ".join(escaped(text[:_SHOWN_CHARACTERS]).split())


def _fit(text: str, size: int) -> str:
    if cell_len(text) > size:
        text = f"{set_cell_size(text, size - 1)}…"
    return set_cell_size(text, size)


def _cell(value: Any) -> str:
    text = _words(value)
    left = len(text) - _SHOWN_CHARACTERS
    text = f"{text[:_SHOWN_CHARACTERS]} … {left:,} more characters" if left > 0 else text
    style = "text-align: left; vertical-align: top; white-space: pre-wrap"
    return f'<td style="{style}">{_safe(text)}</td>'


def _safe(text: str) -> str:
    return html.escape(escaped(text))
