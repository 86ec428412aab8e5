"""Text for a terminal: what others wrote, made harmless, and rows in columns."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

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


def aligned(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> Iterator[str]:
    """Yield rows of equally many cells as lines, in columns two spaces apart.

    right: columns whose cells end together.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (
            cell.rjust(width) if n in right else cell.ljust(width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join(cells).rstrip()
