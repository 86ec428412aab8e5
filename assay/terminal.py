"""Text that others wrote, made fit for a terminal."""

from __future__ import annotations

import json
import re

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
