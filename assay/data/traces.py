"""Traces: prompts with a completion to imitate, for the supervised stage."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from assay.data.rows import Text, check_completion, copy_row, prompt_and_completion, read_prompt
from assay.data.rowset import OnBadRow, RowSet, load_rows


@dataclass(frozen=True, slots=True)
class Trace:
    """A prompt and the completion that the policy learns to give. source: ``file.jsonl:12``."""

    prompt: Text
    completion: str
    source: str = ""


def load_traces(
    sources: Sequence[str], *, on_bad_row: OnBadRow = "stop", limit: int | None = None
) -> RowSet[Trace]:
    """Open sources of traces and validate every row; the sources and errors of `load_problems`.

    A row has a prompt (``prompt``, ``question`` or ``problem``) and a ``completion`` (or
    ``generated_solution`` or ``solution``), or else ``messages`` that the assistant ends.
    """
    return load_rows("traces", read_trace, sources, on_bad_row=on_bad_row, limit=limit)


def read_trace(row: Any, where: str, default_id: str) -> Trace:
    """Return the trace that a row describes; `Trace` values pass through."""
    if isinstance(row, Trace):
        read_prompt(row.prompt, where, "prompt")
        check_completion(row.completion, where, "completion")
        return row if row.source else dataclasses.replace(row, source=where)
    prompt, completion = prompt_and_completion(copy_row(row, where), where)
    return Trace(prompt, completion, where)
