"""Whether traces were verified: what the data stages that made them have written down."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

MANIFEST = "manifest.json"
"""Beside the rows that a data stage has written."""
VERIFIED, UNVERIFIED, GIVEN = "verified", "not verified", "given"


def verified_words(sources: Sequence[str]) -> str:
    """Return how the rows of sources were come by, as "verified" or "verified, given".

    "verified": the data stage ``select`` left out what a verifier did not pass. "not verified": a
    model wrote them, and all stayed. "given": no data stage says where they are from.
    """
    found = {words for source in sources for words in _found(source)}
    return ", ".join(words for words in (VERIFIED, UNVERIFIED, GIVEN) if words in found)


def _found(source: str) -> Iterator[str]:
    """Yield what is said of a source, followed back to the stage that decides it."""
    path = Path(source).expanduser()
    try:
        made = json.loads(((path if path.is_dir() else path.parent) / MANIFEST).read_bytes())
        stage, settings, inputs = made["stage"], made["settings"], made["inputs"]
    except (OSError, ValueError, TypeError, KeyError):  # a file of the user's, or no file
        yield GIVEN
        return
    if stage == "collect":
        yield UNVERIFIED
    elif stage == "select" and settings.get("keep") == "verified":
        yield VERIFIED
    else:
        for one in inputs:
            yield from _found(one["source"])
