"""The think format: tags exactly once, in order, with content, by the prompt's mode."""

from __future__ import annotations

import pytest

from assay.types import Completion, Problem, ThinkFormat, ThinkMode
from assay.verify.text_format import THINK_FORMAT, judge_think_format


def score(text: str, mode: ThinkMode, **tags: str) -> float | None:
    completion = Completion.from_text(text, think=ThinkFormat(mode, **tags))
    return judge_think_format(Problem("p", "q"), completion).value


@pytest.mark.parametrize(
    ("mode", "text", "expected"),
    [
        ("free", "<think>a</think>b", 1),
        ("free", "\n <think>\na\n</think>\n\nb\n", 1),
        ("free", "b", 0),
        ("free", "", 0),
        ("free", "<think>a", 0),
        ("free", "a</think>b", 0),
        ("free", "<think></think>b", 0),
        ("free", "<think> \n</think>b", 0),
        ("free", "<think>a</think>", 0),
        ("free", "<think>a</think> \n", 0),
        ("free", "x<think>a</think>b", 0),
        ("free", "</think>a<think>b", 0),
        ("free", "<think>a</think>b<think>c</think>", 0),
        ("free", "<think><think>a</think>b", 0),
        ("free", "<think>a</think></think>b", 0),
        ("free", "<THINK>a</THINK>b", 0),
        ("opened", "a</think>b", 1),
        ("opened", "a</think>", 0),
        ("opened", "</think>b", 0),
        ("opened", "b", 0),
        ("opened", "<think>a</think>b", 0),
        ("opened", "a</think>b</think>c", 0),
        ("opened", "a</think>b<think>", 0),
        ("empty", "b", 1),
        ("empty", " ", 0),
        ("empty", "<think></think>b", 0),
        ("empty", "</think>b", 0),
        ("off", "b", 1),
        ("off", "<think>", 1),
        ("off", "", 1),
    ],
)
def test_modes(mode: ThinkMode, text: str, expected: int) -> None:
    assert score(text, mode) == expected


def test_other_tags() -> None:
    tags = {"open_tag": "[[", "close_tag": "]]"}
    assert score("[[a]]b", "free", **tags) == 1
    assert score("<think>a</think>b", "free", **tags) == 0


def test_the_detail_says_what_is_wrong() -> None:
    completion = Completion.from_text("a</think>", think=ThinkFormat("opened"))
    assert (
        judge_think_format(Problem("p", "q"), completion).detail == "no answer after the close tag"
    )


@pytest.mark.parametrize("known", THINK_FORMAT.known_errors, ids=lambda known: known.what)
def test_known_errors(known) -> None:
    passed = score(known.completion, known.spec["think"]) == 1
    assert ("passed" if passed else "failed") == known.says != known.should_say
