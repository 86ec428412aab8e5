"""Traces: the forms that are read, and the complaints about others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from data_files import write_rows

from assay.data.traces import Trace, load_traces, read_trace
from assay.errors import DataError

CHAT = ({"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"})


def test_real_traces_load(shared_data: Path) -> None:
    traces = load_traces([str(shared_data / "traces" / "openmathinstruct2_100.jsonl")])
    assert len(traces) == 100
    assert traces[0].prompt.startswith("Solve for $y$:")
    assert traces[0].completion.endswith(r"\[ y = \boxed{2} \]")
    assert traces[3].source.endswith("openmathinstruct2_100.jsonl:4")


@pytest.mark.parametrize(
    ("row", "prompt", "completion"),
    [
        ({"prompt": "p", "completion": "c"}, "p", "c"),
        ({"question": "p", "solution": "c", "answer": 1}, "p", "c"),
        ({"prompt": list(CHAT[:1]), "completion": "c"}, CHAT[:1], "c"),
        ({"messages": list(CHAT)}, CHAT[:1], "4"),
        (Trace("p", "c"), "p", "c"),
    ],
)
def test_forms(row: Any, prompt: Any, completion: str) -> None:
    assert read_trace(row, "f:1", "f:1") == Trace(prompt, completion, "f:1")


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"prompt": "p"}, "f:1 completion: found none among: prompt; accepted"),
        ({"promt": "p", "completion": "c"}, 'or "problem"; rename promt to prompt'),
        ({"Question": "p", "completion": "c"}, "; rename Question to question"),
        ({"completion": "c"}, "f:1 prompt: found none among: completion"),
        ({"prompt": "p", "completion": 3}, "f:1 completion: found 3; accepted: text"),
        ({"prompt": "p", "completion": " "}, "f:1 completion: found ' '; accepted: text"),
        ({"prompt": "p", "completion": "\udc00"}, "f:1 completion: found '\\udc00'"),
        ({"messages": list(CHAT[:1])}, "f:1 messages: found"),
        ({"messages": [*CHAT, CHAT[0]]}, "f:1 messages: found"),
        ({"messages": "text"}, "f:1 messages: found 'text'; accepted: a chat of at least two"),
        (Trace("", "c"), "f:1 prompt: found ''"),
        (3, "f:1: found 3; accepted: a row"),
    ],
)
def test_complaints(row: Any, expected: str) -> None:
    with pytest.raises(DataError) as caught:
        read_trace(row, "f:1", "f:1")
    assert expected in str(caught.value)


def test_bad_traces_can_be_skipped(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "t.jsonl", [{"prompt": "p"}, {"prompt": "p", "completion": "c"}])
    traces = load_traces([path], on_bad_row="skip")
    assert ([trace.completion for trace in traces], traces.num_skipped) == (["c"], 1)
    assert traces.describe() == f"1 traces: 1 from {path}; 1 bad rows skipped"
    with pytest.raises(DataError, match=r"t\.jsonl:1 completion"):
        load_traces([path])


def test_calls_of_the_last_message_are_not_lost_without_a_word() -> None:
    last = {"role": "assistant", "content": "I look it up."}
    call = {"type": "function", "function": {"name": "lookup", "arguments": {"word": "cat"}}}
    turns = [{"role": "user", "content": "What is a cat?"}, {**last, "tool_calls": [call]}]
    with pytest.raises(DataError, match=r"^f:1 messages: found \{'tool_calls': .*its calls too"):
        read_trace({"messages": turns}, "f:1", "f:1")
    for none in ([], None):
        turns[-1] = {**last, "tool_calls": none}  # type: ignore[dict-item]
        assert read_trace({"messages": turns}, "f:1", "f:1").completion == last["content"]
