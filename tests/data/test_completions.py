"""What a row says: its prompt, its completion, its problem and its verdict, in every form."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from assay.curation.asking import AskingSettings
from assay.curation.collect import completion_row
from assay.data.completions import Record, TextPart
from assay.errors import DataError
from assay.session.results import describe_sample
from assay.types import Completion, Group, Problem, Prompt, ThinkFormat

CHAT = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": "2+2?"},
    {"role": "assistant", "content": "4", "reasoning_content": "two, two"},
]


def record(**keys: Any) -> Record:
    return Record.read(keys, "f.jsonl:7", "f:7")


@pytest.mark.parametrize(
    ("keys", "texts"),
    [
        ({"prompt": "2+2?"}, ("2+2?", None, "2+2?")),
        ({"question": "2+2?", "completion": "4"}, ("2+2?", "4", "2+2?\n4")),
        ({"problem": "2+2?", "solution": "4"}, ("2+2?", "4", "2+2?\n4")),
        ({"prompt": "2+2?", "completion": " "}, ("2+2?", " ", "2+2?\n ")),
        (
            {"messages": CHAT},
            ("2+2?", "<think>\ntwo, two\n</think>\n\n4", "2+2?\n<think>\ntwo, two\n</think>\n\n4"),
        ),
        ({"text": "a page"}, ("a page", "a page", "a page")),
    ],
)
def test_the_text_of_each_part(keys: Any, texts: tuple[str | None, ...]) -> None:
    parts: tuple[TextPart, ...] = ("prompt", "completion", "all")
    for part, expected in zip(parts, texts, strict=True):
        if expected is None:
            with pytest.raises(DataError, match=r"^f\.jsonl:7 completion: found none among"):
                record(**keys).text(part)
        else:
            assert record(**keys).text(part) == expected


def test_a_chat_is_a_problem_and_its_completion_is_judged_with_it() -> None:
    problem, completion = record(messages=CHAT, answer="4", think="free").to_judge()
    assert problem.prompt == tuple(CHAT[:2]) and problem.spec == {"answer": "4"}
    assert completion.reasoning_text.strip() == "two, two" and completion.answer_text.strip() == "4"


def test_a_row_names_the_tags_of_its_think_block() -> None:
    tags = ["[[", "]]"]
    problem, completion = record(completion="[[4]]5", answer="5", think_tags=tags).to_judge()
    assert completion.answer_text == "5" and problem.spec == {"answer": "5"}
    for wrong in ("<r>", ["<r>"], ["<r>", ""], [1, 2]):
        with pytest.raises(DataError, match=r"^f\.jsonl:7 think_tags: found .* two texts"):
            record(completion="5", think_tags=wrong).to_judge()


@pytest.mark.parametrize("think", [ThinkFormat("free", "<r>", "</r>"), ThinkFormat("free")])
def test_a_written_completion_is_read_with_its_tags(think: ThinkFormat) -> None:
    """By `assay eval --out` and by `assay data collect`."""
    one = Completion.from_text(f"{think.open_tag}4{think.close_tag}5", "p#0/0", think)
    group = Group(Problem("p", "2+3?"), Prompt("2+3?", one.tokens, think), (one,))
    settings = AskingSettings(inputs=("x",), model="m")
    rows = [describe_sample(group, 0, None), completion_row(group, 0, None, settings, "s")]
    for row in rows:
        assert record(**row).to_judge()[1].think == think


def test_what_was_cut_off_is_judged_as_cut_off() -> None:
    for keys in (
        {"finish_reason": "length", "tokens": 3},
        {"collected": {"finish_reason": "length", "tokens": 3}},
    ):
        _, completion = record(completion="so 4", answer="4", **keys).to_judge()
        assert completion.truncated and len(completion.tokens) == 3
    problem, completion = record(completion="so 4", answer="4").to_judge()
    assert not completion.truncated and problem.prompt == "(not given)"


def test_a_verdict_stands_in_a_table_or_in_the_row() -> None:
    assert record(prompt="p").verdict is None
    for keys in ({"status": "passed"}, {"verdict": {"status": "passed"}}):
        found = record(**keys).verdict
        assert found is not None and found.correct and found.reward == 1.0
    low = record(status="failed", reward=-0.5).verdict
    assert low is not None and (low.correct, low.reward) == (False, -0.5)
    unknown = record(verdict={"status": "not_judged"}).verdict
    assert unknown is not None and not unknown.judged
    for keys, complaint in (
        ({"status": "fine"}, "status: found 'fine'"),
        ({"verdict": {"status": "passed", "reward": True}}, "reward: found True"),
    ):
        with pytest.raises(DataError, match=rf"^f\.jsonl:7 {complaint}"):
            _ = record(**keys).verdict


def test_completions_of_one_problem_share_its_id() -> None:
    assert record(id="p#0/3").problem_id == "p" == record(id="x", problem_id="p").problem_id
    assert record(prompt="p").id == "f:7"


def test_rows_keep_the_turns_of_a_completion() -> None:
    """What a tool said is no answer, also where the row is judged on another day."""
    think = ThinkFormat("opened")
    text, said = "so</think>call=42;43", ((0, 14), (18, 20))
    one = Completion.from_text(text, "p/0", think, said=said)
    group = Group(Problem("p", "?"), Prompt("?<think>", np.zeros(1, np.int32), think), (one,))
    shown = describe_sample(group, 0, None)
    collected = completion_row(group, 0, None, AskingSettings(inputs=("x",), model="m"), "plain")
    for row, turns in ((shown, one.turn_texts), (collected, ("<think>so</think>call", "43"))):
        _, found = record(**json.loads(json.dumps(row))).to_judge()
        assert found.turn_texts == turns and found.answer_text == "43"
    with pytest.raises(DataError, match="said"):
        record(prompt="p", completion="short", said=[[0, 9]]).to_judge()
