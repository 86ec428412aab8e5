"""The nouns: how text splits into reasoning and answer, what a verdict may say, how groups arrive."""

from __future__ import annotations

import ast
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay import types
from assay.types import (
    Completion,
    Group,
    Problem,
    Prompt,
    StepScore,
    ThinkFormat,
    ThinkMode,
    Verdict,
)

OPEN, CLOSE = "<think>", "</think>"
MODES: list[ThinkMode] = ["off", "free", "opened", "empty"]


@pytest.mark.parametrize(
    ("mode", "text", "reasoning", "answer"),
    [
        ("off", "<think>a</think> 4", "a", " 4"),
        ("off", "<think> 4", "4", ""),
        ("off", "4", "", "4"),
        ("free", "<think> a </think> 4", "a", " 4"),
        ("free", "4", "", "4"),
        ("free", "<think> 4", "4", ""),
        ("free", "so <think> 4", "4", "so "),
        ("opened", " a </think> 4", "a", " 4"),
        ("opened", "4", "4", ""),
        ("opened", "<think> a </think> 4", "a", " 4"),
        ("opened", "a </think> 3 </think> 4", "a  3", " 4"),
        ("opened", "a </think> 4 <think> 5", "a  5", " 4 "),
        ("free", "<think>a</think> 3 <think>b</think> 4", "a 3 b", " 4"),
        ("empty", "4", "", "4"),
        ("empty", "<think> 4", "4", ""),
        ("empty", "<think> a </think> 4", "a", " 4"),
        ("free", "<THINK>x</THINK>5", "x", "5"),
        ("off", "<Think >x</ think>5", "x", "5"),
        ("opened", "x</THINK>5", "x", "5"),
        ("free", "<think>a<think>b</think>c</think>5", "abc", "5"),
        ("free", "<think>a<think>b</think>5", "ab5", ""),
        ("free", "[THINK]a[/THINK]5", "a", "5"),
        ("free", "<reasoning>a</reasoning>5", "a", "5"),
        ("free", "<think>a<scratchpad>b</think>5", "ab", "5"),
        ("free", "<think>a</think> \n", "a", ""),
    ],
)
def test_split(mode: ThinkMode, text: str, reasoning: str, answer: str) -> None:
    assert ThinkFormat(mode).split(text) == (reasoning, answer)


ANALYSIS, FINAL = "<|channel|>analysis<|message|>", "<|channel|>final<|message|>"
NEXT, CALL = "<|end|><|start|>assistant", " to=functions.f<|channel|>commentary json<|message|>"
GIVEN = "<|call|><|start|>functions.f to=assistant<|channel|>commentary<|message|>3"


@pytest.mark.parametrize(
    ("text", "reasoning", "answer"),
    [
        (f"{ANALYSIS}a{NEXT}{FINAL}4", "a", "4"),
        (f"{FINAL}4", "", "4"),
        (f"{ANALYSIS}4", "4", ""),
        (f"{ANALYSIS}a{NEXT}{CALL}x{GIVEN}{NEXT}{ANALYSIS}b{NEXT}{FINAL}4", None, "4"),
        (f"{ANALYSIS}a{NEXT}<|channel|>commentary<|message|>4", "a4", ""),
        (f"<|channel|>commentary to=f <|constrain|>json<|message|>4{NEXT}{FINAL}5", "4", "5"),
        (f"{ANALYSIS}a{NEXT}{FINAL} ", "a", ""),
        (f"{FINAL}4 is not <|channel|>finally<|message|>", "", "4 is not <|channel|>finally<|message|>"),
    ],
)  # fmt: skip
def test_the_final_channel_is_the_answer(text: str, reasoning: str | None, answer: str) -> None:
    """Channels do not nest: another call of a tool does not hide the answer behind it."""
    found = ThinkFormat("free", ANALYSIS, NEXT + FINAL).split(text)
    assert found[1] == answer
    assert reasoning is None or found[0] == reasoning


@pytest.mark.parametrize("mode", MODES)
def test_models_without_channels_may_quote_headers(mode: ThinkMode) -> None:
    text = f"4. (gpt-oss writes {FINAL} first)"
    start = CLOSE if mode == "opened" else ""
    assert ThinkFormat(mode).split(start + text) == ("", text)


def answer_by_pieces(mode: ThinkMode, pieces: list[str]) -> str:
    """The slow, obvious way: walk the pieces, knowing at each how many blocks it stands inside."""
    depth = 1 if mode == "opened" else 0
    answer = ""
    for n, piece in enumerate(pieces):
        if piece == OPEN:
            again = mode == "opened" and depth == 1 and not "".join(pieces[:n]).strip()
            depth += not again  # the prompt's own block, opened once more
        elif piece == CLOSE:
            depth, answer = max(0, depth - 1), ""  # what stood before a close tag was reasoning
        elif not depth:
            answer += piece
    return answer if answer.strip() or not {OPEN, CLOSE} & set(pieces) else ""


pieces_of_text = st.lists(st.sampled_from([OPEN, CLOSE, "4", "a ", " "]), max_size=10)


@given(st.sampled_from(MODES), pieces_of_text)
def test_answer_is_what_stands_outside_every_block(mode: ThinkMode, pieces: list[str]) -> None:
    reasoning, answer = ThinkFormat(mode).split("".join(pieces))
    expected = answer_by_pieces(mode, pieces)
    # text between a close tag and a block that opens again is the answer; what follows it is not
    assert answer == expected
    assert OPEN not in answer and CLOSE not in answer
    assert reasoning == reasoning.strip()


@given(st.text(alphabet="ab 12\n/think"))
def test_without_a_block_all_is_answer(text: str) -> None:
    assert ThinkFormat("off").split(text) == ("", text)


@given(st.sampled_from(MODES), st.text("ab<>/think "), st.text("ab<>/think "))
def test_no_letter_of_the_answer_is_invented(mode: ThinkMode, before: str, after: str) -> None:
    text = f"{before}</think>{after}"
    _, answer = ThinkFormat(mode).split(text)
    assert answer in text


def test_think_tags_are_configurable() -> None:
    think = ThinkFormat("free", "[R]", "[/R]")
    assert think.split("[R] a [/R] 4") == ("a", " 4")
    assert think.split("<think> a </think> 4") == ("a", " 4")  # what a model writes of its own


def test_question_is_the_last_user_message() -> None:
    turns = (
        {"role": "system", "content": "s"},
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": "a"},
        {"role": "user", "content": "last"},
        {"role": "assistant", "content": "prefill"},
    )
    assert Problem("p", "text").question == "text"
    assert Problem("p", turns).question == "last"
    assert Problem("p", turns[:1]).question == "s"
    assert Problem("p", "text", draw=3).group_id == "p#3"


def test_a_completion_from_text_has_no_tokens() -> None:
    completion = Completion.from_text(" a </think> 4", think=ThinkFormat("opened"))
    assert completion.reasoning_text == "a"
    assert completion.answer_text == " 4"
    assert len(completion.tokens) == len(completion.sampled) == 0
    assert not completion.truncated


@pytest.mark.parametrize(
    "wrong",
    [
        {"score": None, "status": "passed"},
        {"score": 0.0, "status": "not_judged", "reason": "timeout"},
        {"score": None, "status": "not_judged"},
        {"score": 1.0, "status": "passed", "reason": "timeout"},
        {"score": None, "status": "not_judged", "reason": "timeout", "reward": 0.0},
        {"score": 1.1, "status": "passed"},
        {"score": -0.1, "status": "failed"},
        {"score": float("nan"), "status": "failed"},
    ],
)
def test_a_verdict_cannot_contradict_itself(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"status|reward|score"):
        Verdict(verifier="math@1", **wrong)  # pyright: ignore[reportArgumentType]


def test_not_judged_is_never_a_zero() -> None:
    verdict = Verdict.not_judged("timeout", "math@1", detail="5 s")
    assert (verdict.score, verdict.reward) == (None, None)
    assert not verdict.judged and not verdict.correct


@pytest.mark.parametrize(("score", "status"), [(1.0, "passed"), (0.999, "failed"), (0.0, "failed")])
def test_only_a_full_score_passes(score: float, status: str) -> None:
    verdict = Verdict.of_score(score, "math@1")
    assert verdict.judged
    assert (verdict.status, verdict.reward, verdict.correct) == (status, score, status == "passed")


def test_reward_may_differ_from_the_score() -> None:
    assert Verdict.of_score(1.0, "math@1", reward=-3.5).reward == -3.5


def group(name: str) -> Group:
    prompt = Prompt("q", np.array([1], np.int32))
    return Group(Problem(name, "q"), prompt, (Completion.from_text("a"),))


def test_the_nouns_survive_pickling() -> None:
    one = group("p")
    verdict = Verdict.of_score(1.0, "math@1", step_scores=(StepScore(0.5, 3),))
    again, verdict_again = pickle.loads(pickle.dumps((one, verdict)))
    assert again.problem == one.problem
    assert again.completions[0].text == "a"
    assert verdict_again == verdict


def test_a_letter_of_the_shape_legend_means_one_thing() -> None:
    legend = (types.__doc__ or "").partition("Shape legend")[2].partition("\n\n")[2]
    letters = re.findall(r"(?:^|  )([A-Z])  \w", legend, re.MULTILINE)
    assert len(letters) > 10 and len({*letters}) == len(letters), letters


def test_a_class_has_a_name_of_its_own() -> None:
    """Private ones and the sandbox's, which runs in processes without the package, need none."""
    package = Path(types.__file__ or "").parent
    homes: dict[str, list[str]] = {}
    for path in package.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in tree.body if "sandbox" not in path.parts else ():
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(str(path.relative_to(package)))
    assert len(homes) > 200
    assert {name: files for name, files in homes.items() if len(files) > 1} == {}


def test_a_later_turn_whose_block_never_closes_has_no_answer() -> None:
    """The block was opened by what was given, as the chat template of the next turn does."""
    text = "so</think>call\nresult\n<think>\n"
    spans = ((0, 14), (len(text), len(text) + 2))
    for mode in ("opened", "free"):
        think = ThinkFormat(mode)
        cut = Completion.from_text(f"{text}42", think=think, said=spans)
        assert cut.answer_text == "" and "42" in cut.reasoning_text
    spans = ((0, 14), (len(text), len(text) + 13))
    whole = Completion.from_text(f"{text}hm</think> 42", think=think, said=spans)
    assert whole.answer_text == " 42" and whole.reasoning_text == "socallhm"
