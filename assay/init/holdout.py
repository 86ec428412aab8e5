"""Split rows into a training file and a held-out file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from assay.data.rows import PROMPT_KEYS
from assay.data.sources import open_source
from assay.errors import DataError, message
from assay.host.removal import put_in_place, remove_file, temporary_beside

_PARTS = 1_000_000


def split_rows(sources: Sequence[str], share: float, train: Path, heldout: Path) -> None:
    """Write every row of the sources to one of two new files, by a hash of the row's question.

    Rows with the same question always belong to the same split, even if rows are added later.
    Raises DataError if a row cannot be written as JSON, or if a file would be empty.
    """
    # Both files are written under temporary names, so that an error leaves neither file.
    parts = {file: temporary_beside(file) for file in (train, heldout)}
    try:
        counts = _split(sources, share, train, heldout, parts)
        _check_both(counts, train, share)
        for file, part in parts.items():
            put_in_place(part, file)
    finally:
        for part in parts.values():
            remove_file(part)


def _split(
    sources: Sequence[str], share: float, train: Path, heldout: Path, parts: Mapping[Path, Path]
) -> dict[Path, int]:
    """Write the rows to the two files, and return the number of rows per file."""
    counts = {train: 0, heldout: 0}
    with (
        parts[train].open("w", encoding="utf-8") as kept,
        parts[heldout].open("w", encoding="utf-8") as held,
    ):
        files = {train: kept, heldout: held}
        for source in sources:
            opened = open_source(source)
            for _, number, raw in opened.scan():
                row = opened.parse(raw, f"{source}:{number}")
                chosen = heldout if _part_of(row, f"{source}:{number}") < share else train
                files[chosen].write(json.dumps(row, ensure_ascii=False) + "\n")
                counts[chosen] += 1
    return counts


def _check_both(counts: Mapping[Path, int], train: Path, share: float) -> None:
    if 0 in counts.values():
        side = "training" if counts[train] == 0 else "held out"
        found = f"{share:g} of {sum(counts.values())} rows, which leaves none {side}"
        remedy = "take another share, or name a file with --heldout"
        raise DataError(
            message("--heldout-share", found, "a share with rows on both sides", remedy)
        )


def _part_of(row: Any, where: str) -> float:
    """Return a number in [0, 1) that depends only on the row's question."""
    # A hash keeps equal questions in one file; a random number could put them into both files.
    try:
        found = [row[key] for key in PROMPT_KEYS if key in row] or row
        text = json.dumps(found, ensure_ascii=False, sort_keys=True)
    except TypeError as error:
        accepted = "keys and values that JSON has"
        raise DataError(
            message(where, "a row that cannot be written to a file", accepted)
        ) from error
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest) % _PARTS / _PARTS
