"""Documents for pretraining: the sections of the pages in ``docs/``, beside ``examples/``."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from pathlib import Path

import assay

DOCS = Path(__file__).resolve().parents[2] / "docs"


@assay.source
def sections(split: str = "train", size: int = 1000) -> Iterator[dict[str, str]]:
    """Yield a row for each of the first sections; about one section in six is held out."""
    left = size
    for page in sorted(DOCS.glob("*.md")):
        for text in re.split(r"\n(?=## )", page.read_text("utf-8")):
            is_held_out = zlib.crc32(f"{page.name} {text[:40]}".encode()) % 6 == 0
            if left and is_held_out == (split == "heldout"):
                left -= 1
                yield {"text": text}
