"""Find the fenced blocks of a Markdown text."""

from __future__ import annotations

import re
from collections.abc import Iterator

# All repetitions in the patterns are possessive, because backtracking over long lines is too slow.
FENCE = re.compile(r"[ \t]*+(`{3,}+|~{3,}+)[ \t]*+([^\s`]*+)[^`]*+")


def fenced_blocks(text: str) -> Iterator[tuple[str, str]]:
    """Yield (label, content) of each fenced block.

    A block without a closing fence runs to the end of the text.

    The label of a fenced block is returned in lower case. Carriage returns and byte order marks are
    removed.
    """
    lines: list[str] = []
    fence = label = ""
    for line in [*normalized(text).split("\n"), None]:
        match = FENCE.fullmatch(line) if line is not None else None
        # As in CommonMark, a closing fence is as long as the opening fence or longer.
        closes = line is None or (match is not None and match[1].startswith(fence) and not match[2])
        if fence and closes:
            yield label, "\n".join(lines) + "\n"
            fence = ""
        elif fence and line is not None:
            lines.append(line)
        elif match is not None:
            fence, label, lines = match[1], match[2].lower(), []


def normalized(text: str) -> str:
    """Return a text with plain line ends and without byte order marks."""
    return text.replace("\r\n", "\n").replace("\ufeff", "")
