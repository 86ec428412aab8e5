"""Traces: prompts with target completions, for supervised training (SFT)."""

from __future__ import annotations

import dataclasses
import operator
from dataclasses import dataclass
from functools import partial
from typing import Any

from assay.data.rows import (
    Text,
    check_completion,
    complaint,
    copy_row,
    prompt_and_completion,
    read_prompt,
    read_think_and_effort,
)
from assay.data.rowset import load_rows
from assay.types import ThinkMode

Spans = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Trace:
    """A prompt and the target completion that training imitates.

    source: ``file.jsonl:12``. think, effort: see `Problem`. said: character spans of the assistant
    turns, as in `assay.types.Completion`. Text outside the spans, such as a tool's result, is
    masked from the loss. If ``said`` is empty, the loss covers all tokens of the completion.
    """

    prompt: Text
    completion: str
    source: str = ""
    think: ThinkMode | None = None
    effort: str | None = None
    said: Spans = ()


def read_trace(row: Any, where: str, default_id: str) -> Trace:
    """Return the trace of a row; a row that is a `Trace` is validated and returned.

    A row has a prompt and a completion, or ``messages`` whose last message is by the assistant.
    Prompt keys: ``prompt``, ``question``, ``problem``. Completion keys: ``completion``,
    ``generated_solution``, ``solution``. The key ``said`` is optional.
    """
    if isinstance(row, Trace):
        read_prompt(row.prompt, where, "prompt")
        check_completion(row.completion, where, "completion")
        read_think_and_effort(row.think, row.effort, where)
        read_said(row.said, row.completion, where)
        return row if row.source else dataclasses.replace(row, source=where)
    keys = copy_row(row, where)
    prompt, completion = prompt_and_completion(keys, where)
    asked = read_think_and_effort(keys.get("think"), keys.get("effort"), where)
    said = read_said(keys.get("said"), completion, where)
    return Trace(prompt, completion, where, **asked, said=said)


def read_said(value: Any, text: str, where: str) -> Spans:
    """Validate character spans of assistant turns; raises DataError."""
    if value is None or value == () or value == []:
        return ()
    # `operator.index` accepts integers of every library, such as NumPy's, and rejects floats.
    try:
        spans = tuple((operator.index(start), operator.index(end)) for start, end in value)
    except (TypeError, ValueError):
        # Spans that are not integers become an unsorted span, which the next check rejects.
        spans = ((1, 0),)
    places = [0, *(place for span in spans for place in span), len(text)]
    if places != sorted(places):
        accepted = f"pairs of places in the completion, in order: [[0, {len(text)}]]"
        raise complaint(where, "said", value, accepted)
    return spans


load_traces = partial(load_rows, "traces", read_trace)
