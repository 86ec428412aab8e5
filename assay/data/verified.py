"""Whether traces were verified: what the data stages that made them have written down."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

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


class _Input(BaseModel):
    source: str


class _Made(BaseModel):
    """What of a data stage's manifest is looked at."""

    stage: str
    settings: dict[str, Any]
    inputs: list[_Input]


def _found(source: str, seen: frozenset[str] = frozenset()) -> Iterator[str]:
    """Yield what is said of a source, followed back to the stage that decides it."""
    path = Path(source).expanduser()
    try:
        file = (path if path.is_dir() else path.parent) / MANIFEST
        # reading a pipe may never end
        made = _Made.model_validate_json(file.read_bytes()) if file.is_file() else None
    except (OSError, ValueError):  # a file of the user's, or damaged
        made = None
    if made is None or source in seen:  # a damaged manifest may name itself as its input
        yield GIVEN
        return
    if made.stage == "collect":
        yield UNVERIFIED
    elif made.stage == "select" and made.settings.get("keep") == "verified":
        yield VERIFIED
    else:
        for one in made.inputs:
            yield from _found(one.source, seen | {source})
