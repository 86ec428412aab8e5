"""A reward that depends on a completion's text alone, so that every group has something to
learn."""

from __future__ import annotations

import zlib
from typing import Any


def hash_of_text(problem: Any, completion: Any) -> float:
    """Return one of 1000 numbers in [0, 1): the same for the same text, here and in peers."""
    return zlib.crc32(completion.text.encode()) % 1000 / 1000
