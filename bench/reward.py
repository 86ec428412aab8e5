"""A reward that depends only on a completion's text, so that every group has a gradient."""

from __future__ import annotations

import zlib
from typing import Any


def hash_of_text(problem: Any, completion: Any) -> float:
    """Return one of 1000 numbers in [0, 1). Equal texts have equal numbers, in Assay and in
    peers."""
    return zlib.crc32(completion.text.encode()) % 1000 / 1000
