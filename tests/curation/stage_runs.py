"""A data transform on rows of a test: what it writes, and what its filters took."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from assay.curation.base import run_stage
from assay.curation.output import Manifest

Rows = Sequence[Mapping[str, Any]]


def rows_file(path: Path, rows: Rows) -> str:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return str(path)


def written(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rows.jsonl").read_bytes().splitlines()]


def run_on(
    tmp_path: Path, stage: str, *inputs: Rows, **settings: Any
) -> tuple[list[dict[str, Any]], Manifest]:
    """Run a stage on the rows of some inputs; return its rows and its manifest."""
    tmp_path.mkdir(exist_ok=True)
    names = [rows_file(tmp_path / f"input-{n}.jsonl", rows) for n, rows in enumerate(inputs)]
    folder = tmp_path / stage
    manifest = run_stage(stage, {"inputs": names, **settings}, folder)
    return written(folder), manifest


def took(manifest: Manifest) -> dict[str, int]:
    return {each.name: each.took for each in manifest.filters}
