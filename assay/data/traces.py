"""Traces: prompts with a completion to imitate, for the supervised stage."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from assay.data.rows import check_text, complaint, copy_row, prompt_key, read_prompt
from assay.data.rowset import OnBadRow, RowSet, load_rows
from assay.errors import DataError, message
from assay.types import Message

COMPLETION_KEYS = ("completion", "generated_solution", "solution")


@dataclass(frozen=True, slots=True)
class Trace:
    """A prompt and the completion that the policy learns to give. source: ``file.jsonl:12``."""

    prompt: str | tuple[Message, ...]
    completion: str
    source: str = ""


class TraceSet(RowSet[Trace]):
    """Traces in the order of their sources. `load_traces` makes one."""

    noun = "traces"


def load_traces(
    sources: Sequence[str], *, on_bad_row: OnBadRow = "stop", limit: int | None = None
) -> TraceSet:
    """Open sources of traces and validate every row; the sources and errors of `load_problems`.

    A row has a prompt (``prompt``, ``question`` or ``problem``) and a ``completion`` (or
    ``generated_solution`` or ``solution``), or else ``messages`` that the assistant ends.
    """
    return load_rows(TraceSet, read_trace, sources, on_bad_row=on_bad_row, limit=limit)


def read_trace(row: Any, where: str, default_id: str) -> Trace:
    """Return the trace that a row describes; `Trace` values pass through."""
    if isinstance(row, Trace):
        read_prompt(row.prompt, where, "prompt")
        _check_completion(row.completion, where, "completion")
        return row if row.source else dataclasses.replace(row, source=where)
    keys = copy_row(row, where)
    if "messages" in keys and "prompt" not in keys:
        turns = read_prompt(keys["messages"], where, "messages")
        if isinstance(turns, str) or len(turns) < 2 or turns[-1]["role"] != "assistant":
            accepted = "a chat of at least two messages that the assistant ends"
            raise complaint(where, "messages", keys["messages"], accepted)
        _check_completion(turns[-1]["content"], where, "messages")
        return Trace(turns[:-1], turns[-1]["content"], where)
    name = next((name for name in COMPLETION_KEYS if name in keys), None)
    if name is None:
        found = f"none among: {', '.join(map(str, keys)) or 'no keys'}"
        raise DataError(message(f"{where} completion", found, '"completion" (text)'))
    _check_completion(keys[name], where, name)
    key = prompt_key(keys, where)
    return Trace(read_prompt(keys[key], where, key), keys[name], where)


def _check_completion(value: Any, where: str, key: str) -> None:
    if not isinstance(value, str) or not value.strip():
        raise complaint(where, key, value, "text that is not blank")
    check_text(value, where, key)
