"""The think format: tags exactly once, in order, with content, by the prompt's mode."""

from __future__ import annotations

from typing import Any

import pytest
from growth import LINEAR, growth
from hypothesis import given
from hypothesis import strategies as st

from assay.errors import VerifierError
from assay.types import Completion, Problem, ThinkFormat, ThinkMode
from assay.verify.style.format import (
    ANSWER_TAGS,
    THINK_FORMAT,
    has_content,
    judge_answer_tags,
    judge_think_format,
)


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
        ("free", "<think>\u200b</think>b", 0),
        ("free", "<think>a</think>\u2060\u3164", 0),
        ("empty", "\u200d", 0),
        ("free", "<think>a</think>b</THINK>", 0),
        ("free", "<think>a< /think ></think>b", 0),
        ("opened", "a</think>b<think/>", 0),
        ("free", "<think>x < y and a</think>b", 1),
        ("free", "<think>the <thinking> tag</think>∅", 1),
        ("opened", "思考</think>答案", 1),
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


def tags(text: str, mode: ThinkMode = "free", **spec: Any) -> float | None:
    completion = Completion.from_text(text, think=ThinkFormat(mode))
    return judge_answer_tags(Problem("p", "q", spec), completion).value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<answer>5</answer>", 1),
        ("<think>a</think><answer>5</answer>", 1),
        ("<think>a</think>\nSo:\n<answer>\n5\n</answer>\n", 1),
        ("<think>in <answer> tags</think><answer>5</answer>", 1),
        ("<think>a</think><answer> </answer>", 0),
        ("<think>a</think><answer>\u200b</answer>", 0),
        ("<think>a</think><answer></answer>", 0),
        ("<think>a</think><answer>5</answer>!", 0),
        ("<think>a</think><answer>5</answer><answer>6</answer>", 0),
        ("<think>a</think><answer><answer>5</answer>", 0),
        ("<think>a</think>5</answer>", 0),
        ("<think>a</think><answer>5", 0),
        ("<think>a</think></answer>5<answer>", 0),
        ("<think>a</think><Answer>5</Answer>", 0),
        ("<think>a</think><answer>5</answer></ANSWER>", 0),
        ("<think>a<answer>5</answer></think>", 0),
        ("<think>a<answer>5</answer></think>5", 0),
        ("<think>a<answer>5</answer>", 0),
        ("<answer>5</answer><think>a</think>", 0),  # the answer is what follows the block
        ("", 0),
    ],
)
def test_answer_tags(text: str, expected: int) -> None:
    assert tags(text) == expected


def test_answer_tags_in_other_modes() -> None:
    assert tags("why</think><answer>5</answer>", "opened") == 1
    assert tags("<answer>5</answer>", "opened") == 0  # the block never closed
    assert tags("<answer>5</answer>", "empty") == 1
    assert tags("<answer>5</answer>", "off") == 1
    assert tags("<think><answer>5</answer></think>", "off") == 0


def test_answer_tags_options() -> None:
    assert tags("So <answer>5</answer>", only=True) == 0
    assert tags("<think>a</think> \n<answer>5</answer>", only=True) == 1
    assert tags("[[5]]", open_tag="[[", close_tag="]]") == 1
    assert tags("<answer>5</answer>", open_tag="[[", close_tag="]]") == 0
    for spec in ({"only": 1}, {"open_tag": " "}, {"close_tag": 3}):
        with pytest.raises(VerifierError, match=r"spec\."):
            tags("<answer>5</answer>", **spec)


def test_the_answer_is_extracted() -> None:
    completion = Completion.from_text("<answer> 5 </answer> or so")
    part = judge_answer_tags(Problem("p", "q"), completion)
    assert (part.value, part.extracted, part.detail) == (0.0, "5", "text after the close tag")


@pytest.mark.parametrize("known", ANSWER_TAGS.known_errors, ids=lambda known: known.what)
def test_known_errors_of_answer_tags(known) -> None:
    passed = tags(known.completion, known.spec["think"]) == 1
    assert ("passed" if passed else "failed") == known.says != known.should_say


@given(st.text(), st.sampled_from(["free", "opened", "empty", "off"]))
def test_any_text_is_judged(text: str, mode: ThinkMode) -> None:
    assert score(text, mode) in (0.0, 1.0)
    assert tags(text, mode) in (0.0, 1.0)


@given(st.text(alphabet=st.characters(categories=["Zs", "Cc", "Cf"])))
def test_invisible_characters_are_no_content(text: str) -> None:
    assert not has_content(text)
    assert has_content(text + "=")


@pytest.mark.parametrize("piece", ["<", "< ", "<think>", "< /think"])
def test_work_grows_with_a_pathological_text(piece: str) -> None:
    def judge(size: int) -> None:
        text = piece * (size // len(piece))
        assert score(text, "free") == 0.0
        assert tags(text) == 0.0

    assert growth(judge, 200_000) < LINEAR
