"""Traces: prompts with a completion to imitate, for the supervised stage."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import partial
from typing import Any

from assay.data.rows import (
    Text,
    check_completion,
    copy_row,
    prompt_and_completion,
    read_asked,
    read_prompt,
)
from assay.data.rowset import load_rows
from assay.types import ThinkMode


@dataclass(frozen=True, slots=True)
class Trace:
    """A prompt and the completion that the policy learns to give.

    source: ``file.jsonl:12``. think, effort: as of a `Problem`.
    """

    prompt: Text
    completion: str
    source: str = ""
    think: ThinkMode | None = None
    effort: str | None = None


def read_trace(row: Any, where: str, default_id: str) -> Trace:
    """Return the trace that a row describes; `Trace` values pass through.

    A row has a prompt (``prompt``, ``question`` or ``problem``) and a ``completion`` (or
    ``generated_solution`` or ``solution``), or else ``messages`` that the assistant ends.
    """
    if isinstance(row, Trace):
        read_prompt(row.prompt, where, "prompt")
        check_completion(row.completion, where, "completion")
        read_asked(row.think, row.effort, where)
        return row if row.source else dataclasses.replace(row, source=where)
    keys = copy_row(row, where)
    prompt, completion = prompt_and_completion(keys, where)
    asked = read_asked(keys.get("think"), keys.get("effort"), where)
    return Trace(prompt, completion, where, **asked)


load_traces = partial(load_rows, "traces", read_trace)
