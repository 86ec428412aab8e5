"""Behaviors of single rollouts, as found by ``assay run behaviors``, for the viewer's filter."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from assay.report.behavior_charts import COMPLETIONS, FOLDER, TRAINING

Shown = Mapping[tuple[int, str], frozenset[str]]
"""Names of behaviors by (step, completion id)."""


def shown_behaviors(run: Path) -> Shown:
    """Return the behaviors of each training rollout; empty without results.

    Damaged lines of the results are skipped.
    """
    path = run / FOLDER / COMPLETIONS
    try:
        seen = os.stat(path)
    except OSError:
        return {}
    # The cache is keyed by time and size of the file, so that new results are read.
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
