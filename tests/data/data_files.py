"""Small files of rows for the tests of this folder."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from assay.data.problems import ProblemSet, load_problems
from assay.errors import DataError


def write_rows(path: Path, rows: Iterable[Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def problems_of(path: Path, rows: Iterable[Any], **options: Any) -> ProblemSet:
    return load_problems([write_rows(path, rows)], **options)


def complaint_about(*sources: str, **options: Any) -> str:
    """Return the one line that loading these sources ends with, less the folder."""
    with pytest.raises(DataError) as caught:
        load_problems(sources, **options)
    text = str(caught.value)
    assert "\n" not in text
    return text
