"""Rows: every accepted form becomes the right problem; every other one is named by place and key."""

from __future__ import annotations

from typing import Any

import pytest

from assay.data.rows import copy_row, last_box, read_problem
from assay.data.traces import Trace
from assay.errors import DataError
from assay.types import Problem

CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}]


def read(row: Any) -> Problem:
    return read_problem(row, "dir/f.jsonl:12", "f.jsonl:12")


def complaint(row: Any) -> str:
    with pytest.raises(DataError) as caught:
        read(row)
    return str(caught.value)


def test_a_plain_row_keeps_all_it_does_not_use_as_spec() -> None:
    row = {
        "id": "a",
        "prompt": "2+2?",
        "verifier": "math",
        "answer": 4,
        "tests": [1],
        "tags": ["x"],
    }
    assert read(row) == Problem(
        "a", "2+2?", {"answer": 4, "tests": [1]}, "math", ("x",), "dir/f.jsonl:12"
    )
    assert "id" in row, "the caller's row was changed"


def test_a_row_without_id_is_named_after_its_place() -> None:
    assert read({"prompt": "2+2?"}).id == "f.jsonl:12"
    assert read({"prompt": "2+2?", "id": None}).id == "f.jsonl:12"
    assert read({"prompt": "2+2?", "id": 7}).id == "7"


def test_a_chat_is_kept_as_messages() -> None:
    problem = read({"prompt": CHAT})
    assert problem.prompt == tuple(CHAT)
    assert problem.question == "2+2?"


@pytest.mark.parametrize(
    ("answer", "final"),
    [
        ("It is 9*2 = <<9*2=18>>18.\n#### 18", "18"),
        ("#### 1,234,567", "1234567"),
        ("a #### 1\n####   -5.5 \n", "-5.5"),
        ("no marks", "no marks"),
        (12, 12),
    ],
)
def test_gsm8k_answers_are_what_follows_the_marks(answer: Any, final: Any) -> None:
    assert read({"question": "How many?", "answer": answer}).spec == {"answer": final}


def test_marks_mean_nothing_outside_of_gsm8k_rows() -> None:
    assert read({"prompt": "p", "answer": "#### 1,000"}).spec == {"answer": "#### 1,000"}


def test_math_rows_turn_type_and_level_into_tags() -> None:
    row = {"problem": "x?", "answer": "1,2", "type": "Algebra", "level": 5.0}
    problem = read(row)
    assert problem.tags == ("Algebra", "level-5")
    assert problem.spec == {"answer": "1,2"}
    original = {"problem": "x?", "solution": r"So \boxed{\frac{1}{2}}.", "level": "Level 3"}
    problem = read(original)
    assert problem.tags == ("level-3",)
    assert problem.spec["answer"] == r"\frac{1}{2}"


def test_the_last_box_is_found_by_its_braces() -> None:
    assert last_box(r"\boxed{1} then \boxed{ \sqrt{2} + {3} } end") == r"\sqrt{2} + {3}"
    assert last_box(r"\boxed{1") is None
    assert last_box("none") is None


def test_problems_pass_through_and_gain_a_source() -> None:
    problem = Problem("a", "2+2?", {"answer": "4"})
    assert read(problem).source == "dir/f.jsonl:12"
    assert read(Problem("a", "2+2?", source="mine")).source == "mine"
    assert "id: found ''" in complaint(Problem("", "2+2?"))
    assert "prompt: found ' '" in complaint(Problem("a", " "))


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ([1], "dir/f.jsonl:12: found [1]; accepted: a row of keys and values"),
        ("text", "dir/f.jsonl:12: found 'text'; accepted: a row"),
        ({}, "dir/f.jsonl:12 prompt: found none among: no keys; accepted:"),
        ({"promt": "x", "answer": 1}, "prompt: found none among: promt, answer; accepted:"),
        ({"prompt": None}, "prompt: found none among: no keys"),
        ({"prompt": " \n"}, "prompt: found ' \\n'; accepted: text that is not blank"),
        ({"question": 5}, "question: found 5; accepted: text, or a list of chat messages"),
        ({"prompt": []}, "prompt: found []; accepted: text, or a list of chat"),
        ({"prompt": {"role": "user"}}, "prompt: found {'role': 'user'}; accepted: text, or"),
        ({"prompt": [{"role": "human", "content": "x"}]}, 'accepted: messages with a "role" among'),
        ({"prompt": ["hello"]}, "prompt: found 'hello'; accepted: messages with"),
        (
            {"prompt": [{"role": "user", "content": 3}]},
            'accepted: messages whose "content" is text',
        ),
        (
            {"prompt": [*CHAT, {"role": "assistant", "content": "4"}]},
            "found 'a chat that the assistant ends'; accepted: a chat that the user ends",
        ),
        ({"prompt": "x \ud83d"}, "prompt: found '\\ud83d'; accepted: text that UTF-8 can hold"),
        ({"prompt": "x", "answer": " "}, "answer: found ' '; accepted: text that is not blank"),
        ({"prompt": "x", "answer": "\ud83d"}, "answer: found '\\ud83d'"),
        (
            {"question": "x", "answer": "so ####  "},
            "answer: found 'so ####  '; accepted: an answer",
        ),
        ({"prompt": "x", "verifier": 1}, "verifier: found 1; accepted: an expression"),
        ({"prompt": "x", "verifier": ""}, "verifier: found ''; accepted: an expression"),
        ({"prompt": "x", "tags": 3}, "tags: found 3; accepted: a list of texts"),
        ({"prompt": "x", "tags": ["a", 1]}, "tags: found ['a', 1]; accepted: a list of texts"),
        ({"prompt": "x", "id": ""}, "id: found ''; accepted: text or a whole number"),
        ({"prompt": "x", "id": True}, "id: found True; accepted: text or a whole number"),
        ({"prompt": "x", "id": 1.5}, "id: found 1.5; accepted: text or a whole number"),
    ],
)
def test_a_bad_row_is_named_by_place_and_key(row: Any, expected: str) -> None:
    text = complaint(row)
    assert text.startswith("dir/f.jsonl:12")
    assert expected in text
    assert len(text) < 250


def test_a_long_value_is_cut_in_the_message() -> None:
    assert len(complaint({"prompt": "x", "tags": list(range(10_000))})) < 250


def test_finished_values_become_rows() -> None:
    problem = Problem("a", "2+2?", {"answer": 4}, "math", ("x",))
    row = copy_row(problem, "here")
    assert (row["id"], row["answer"], row["tags"]) == ("a", 4, ["x"])
    again = read(row)
    assert (again.id, again.prompt, again.verifier) == ("a", "2+2?", "math")
    assert copy_row(Trace("2+2?", "4"), "here") == {"prompt": "2+2?", "completion": "4"}
    with pytest.raises(DataError, match="a row of keys and values"):
        copy_row(Trace, "here")
