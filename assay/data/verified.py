"""Verification status of training traces, read from the manifests that data transforms write."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

MANIFEST = "manifest.json"
"""Name of the file in which a data transform records its settings and inputs."""
VERIFIED, UNVERIFIED, UNKNOWN_ORIGIN = "verified", "not verified", "unknown origin"


def verified_words(sources: Sequence[str]) -> str:
    """Return the verification status of the rows in several sources, such as "verified" or
    "verified, unknown origin".

    "verified": the data transform ``select`` kept only completions that a verifier passed. "not
    verified": a model wrote the rows, and no data transform selected rows by verdict. "unknown
    origin": no manifest records how the rows were written.
    """
    found = {words for source in sources for words in _found(source)}
    return ", ".join(words for words in (VERIFIED, UNVERIFIED, UNKNOWN_ORIGIN) if words in found)


class _Input(BaseModel):
    source: str


class _ManifestKeys(BaseModel):
    """The keys of a data transform's manifest that determine the verification status."""

    stage: str
    settings: dict[str, Any]
    inputs: list[_Input]


def _found(source: str, seen: frozenset[str] = frozenset()) -> Iterator[str]:
    """Yield the status of a source: its manifest's inputs are followed back to ``select`` or
    ``collect``."""
    path = Path(source).expanduser()
    try:
        file = (path if path.is_dir() else path.parent) / MANIFEST
        # Only regular files are read, because reading from a pipe might never end.
        made = _ManifestKeys.model_validate_json(file.read_bytes()) if file.is_file() else None
    except (OSError, ValueError):
        # Either the manifest is damaged, or a file of the user has the name of a manifest.
        made = None
    # A damaged manifest may list itself as its input, which would recurse without end.
    if made is None or source in seen:
        yield UNKNOWN_ORIGIN
        return
    if made.stage == "collect":
        yield UNVERIFIED
    elif made.stage == "select" and made.settings.get("keep") == "verified":
        yield VERIFIED
    else:
        for one in made.inputs:
            yield from _found(one.source, seen | {source})
