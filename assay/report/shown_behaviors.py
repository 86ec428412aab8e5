"""What each rollout shows, as ``assay run behaviors`` found it, for the filter of the viewer."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from assay.report.behavior_charts import COMPLETIONS, FOLDER, TRAINING

Shown = Mapping[tuple[int, str], frozenset[str]]
"""Names by step and id of the completion."""


def shown_behaviors(run: Path) -> Shown:
    """Return what each rollout of a run shows; empty without a file. Damaged lines are left out."""
    path = run / FOLDER / COMPLETIONS
    try:
        seen = os.stat(path)
    except OSError:
        return {}
    return _read(path, (seen.st_mtime_ns, seen.st_size))


@lru_cache(maxsize=8)
def _read(path: Path, stamp: tuple[int, int]) -> Shown:
    found: dict[tuple[int, str], frozenset[str]] = {}
    with suppress(OSError):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            with suppress(ValueError, KeyError, TypeError):
                row = json.loads(line)
                if row["source"] == TRAINING:
                    found[int(row["step"]), str(row["id"])] = frozenset(map(str, row["shows"]))
    return found
