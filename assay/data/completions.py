"""Rows that hold a completion to judge: ``assay verify FILE.jsonl``.

A row holds ``id``, ``verifier``, ``prompt`` and the spec (``answer``, ...), as a problem does, and
``completion``; ``think`` names the think mode (``free`` by default: a block may be there or not).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from assay.data.rows import complaint, read_problem, shown
from assay.data.sources import JsonLines, open_source
from assay.errors import DataError, message
from assay.types import Completion, Problem, ThinkFormat


def read_row(row: Any, where: str, default_id: str) -> tuple[Problem, Completion]:
    """Return the problem and the completion of a row to judge; raises DataError."""
    if not isinstance(row, dict):
        raise DataError(message(where, shown(row), "a row of keys and values (a JSON object)"))
    row = cast("dict[str, Any]", row)
    text = row.pop("completion", None)
    if not isinstance(text, str):
        raise complaint(where, "completion", text, "text")
    if not any(row.get(key) is not None for key in ("prompt", "question", "problem")):
        row["prompt"] = "(not given)"
    problem = read_problem(row, where, default_id)
    return problem, Completion.from_text(text, problem.id, ThinkFormat(problem.think or "free"))


def read_completions(path: Path) -> Iterator[tuple[Problem, Completion]]:
    """Yield what each line of a file holds that is not blank; raises DataError."""
    source = open_source(str(path))
    if not isinstance(source, JsonLines):
        raise DataError(message(str(path), "another kind of source", "a JSON Lines file"))
    empty = True
    for _, line, raw in source.scan():
        empty = False
        where = f"{path}:{line}"
        yield read_row(source.parse(raw, where), where, f"{path.name}:{line}")
    if empty:
        raise DataError(f"{path}: holds no rows; give one JSON object a line")
