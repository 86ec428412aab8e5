"""Which traces a supervised step learns from."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.config import DataConfig
from assay.data.chat import PromptRenderer
from assay.data.traces import Trace
from assay.errors import DataError
from assay.testing import byte_tokenizer
from assay.training.row_schedule import RowSchedule
from assay.training.sft import trace_groups
from assay.types import Group


def traces(lengths: list[int]) -> list[Group]:
    """Groups whose completions have the given lengths, the end token included."""
    rows = [Trace(f"{n}?", "x" * (length - 1), f"t.jsonl:{n}") for n, length in enumerate(lengths)]
    renderer = PromptRenderer(byte_tokenizer(), DataConfig(), None)
    return trace_groups(rows, renderer)


def schedule(
    groups: list[Group], tokens_per_step: int, epochs: float = 1.0, seed: int = 0
) -> RowSchedule:
    lengths = [len(group.completions[0].tokens) for group in groups]
    return RowSchedule(len(groups), epochs, seed, tokens_per_step, lengths)


def drawn(plan: RowSchedule, groups: list[Group]) -> list[list[str]]:
    steps = [plan.draw(step) for step in range(plan.num_steps)]
    return [[groups[n].problem.id for n in step] for step in steps]


@given(st.lists(st.integers(2, 12), min_size=1, max_size=12), st.integers(1, 30), st.integers(1, 3))
def test_every_trace_once_an_epoch_within_the_budget(
    lengths: list[int], tokens_per_step: int, epochs: int
) -> None:
    groups = traces(lengths)
    plan = schedule(groups, tokens_per_step, epochs)
    steps = drawn(plan, groups)
    order = [name for step in steps for name in step]
    names = sorted(group.problem.id for group in groups)
    for epoch in range(epochs):
        assert sorted(order[epoch * len(groups) : (epoch + 1) * len(groups)]) == names
    length = {g.problem.id: len(g.completions[0].tokens) for g in groups}
    for step in steps:
        assert step, "no step is empty"
        before_last = sum(length[name] for name in step[:-1])
        assert before_last < tokens_per_step, "a step is full once it holds its tokens"
    total = epochs * sum(lengths)
    assert math.floor(total / (tokens_per_step + max(lengths))) <= len(steps)


def test_the_seed_alone_decides() -> None:
    groups = traces([3] * 20)
    assert drawn(schedule(groups, 12), groups) == drawn(schedule(groups, 12), groups)
    assert drawn(schedule(groups, 12), groups) != drawn(schedule(groups, 12, seed=1), groups)
    first, second = np.split(np.array(drawn(schedule(groups, 12, epochs=2), groups)).ravel(), 2)
    assert first.tolist() != second.tolist(), "every epoch has its own order"


def test_part_of_an_epoch_and_more_epochs_begin_alike() -> None:
    groups = traces([3] * 20)
    half, whole = drawn(schedule(groups, 12, 0.5), groups), drawn(schedule(groups, 12, 1.0), groups)
    assert sum(map(len, half)) == 10
    assert half[:-1] == whole[: len(half) - 1]
    assert half[-1] == whole[len(half) - 1][: len(half[-1])], "the last step may be cut"
    assert drawn(schedule(groups, 12, 1.5), groups)[: len(whole)] == whole


def test_a_trace_longer_than_the_context_is_told_with_its_place(tmp_path: Path) -> None:
    renderer = PromptRenderer(byte_tokenizer(), DataConfig(), None)
    rows = [Trace("1?", "short", "t.jsonl:1"), Trace("1?", "x" * 40, "t.jsonl:2")]
    with pytest.raises(DataError, match=r"^t\.jsonl:2 completion: found 44 tokens.*32.*shorten"):
        trace_groups(rows, renderer, 32)
    assert len(trace_groups(rows, renderer, 44)) == 2


def test_what_a_trace_was_told_is_not_learned() -> None:
    """The tool's result in a trace is context; the end token is the policy's."""
    renderer = PromptRenderer(byte_tokenizer(), DataConfig(), None)
    text, said = "calc(6*7)=42;42", ((0, 9), (13, 15))
    (group,) = trace_groups([Trace("6*7", text, said=said)], renderer)
    (one,) = group.completions
    assert bytes(one.tokens[:-1].tolist()).decode() == text and one.tokens[-1] == 257
    assert np.flatnonzero(~one.sampled).tolist() == [9, 10, 11, 12]
    (cut,) = trace_groups([Trace("6*7", text, said=((0, 9),))], renderer)
    assert len(cut.completions[0].tokens) == len(text), "it does not end where it is told something"
    assert cut.completions[0].sampled.tolist() == [n < 9 for n in range(len(text))]


def test_an_end_of_turn_in_a_trace_is_learned() -> None:
    """It stands behind what the policy said, and in front of what it was told."""
    renderer = PromptRenderer(byte_tokenizer(), DataConfig(), None)
    text = "call<|eos|>42;42"
    (group,) = trace_groups([Trace("6*7", text, said=((0, 4), (14, 16)))], renderer)
    (one,) = group.completions
    assert one.tokens.tolist() == [*b"call", 257, *b"42;42", 257]
    assert np.flatnonzero(~one.sampled).tolist() == [5, 6, 7]
