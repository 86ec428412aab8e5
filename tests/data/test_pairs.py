"""Preferences: the forms that are read, and the complaints about others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from data_files import write_rows
from hypothesis import given
from hypothesis import strategies as st

from assay.data.pairs import Labelled, Pair, as_turns, load_preferences, read_preference
from assay.errors import DataError


def user(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}


def assistant(content: str) -> dict[str, str]:
    return {"role": "assistant", "content": content}


SYSTEM = {"role": "system", "content": "be brief"}


@pytest.mark.parametrize(
    ("name", "count", "kind"),
    [
        ("dpo_en_demo", 238, Pair),
        ("hh_harmless", 2008, Pair),
        ("kto_en_demo_unpaired", 300, Labelled),
    ],
)
def test_real_preferences_load(shared_data: Path, name: str, count: int, kind: type) -> None:
    rows = load_preferences([str(shared_data / "preferences" / f"{name}.jsonl")])
    assert len(rows) == count
    assert all(isinstance(row, kind) for row in rows)
    assert rows[3].source.endswith(f"{name}.jsonl:4")


def test_a_transcript_is_the_chat_that_it_is(shared_data: Path) -> None:
    rows = load_preferences([str(shared_data / "preferences" / "hh_harmless.jsonl")])
    second = rows[1]
    assert isinstance(second, Pair) and not isinstance(second.prompt, str)
    assert [turn["role"] for turn in second.prompt] == ["user", "assistant", "user"]
    assert second.prompt[-1]["content"] == "Hahaha" and second.chosen == "Heh."


@pytest.mark.parametrize(
    ("row", "prompt", "chosen", "rejected"),
    [
        ({"prompt": "p", "chosen": "a", "rejected": "b"}, "p", "a", "b"),
        ({"question": "p", "chosen": "a", "rejected": "b", "margin": 2}, "p", "a", "b"),
        ({"prompt": [user("p")], "chosen": "a", "rejected": "b"}, (user("p"),), "a", "b"),
        (
            {"prompt": "p", "chosen": [assistant("a")], "rejected": [assistant("b")]},
            "p",
            "a",
            "b",
        ),
        (
            {"chosen": [user("p"), assistant("a")], "rejected": [user("p"), assistant("b")]},
            (user("p"),),
            "a",
            "b",
        ),
        (  # the prompt again, beside chats that hold it
            {
                "prompt": "p",
                "chosen": [SYSTEM, user("p"), assistant("a")],
                "rejected": [SYSTEM, user("p"), assistant("b")],
            },
            (SYSTEM, user("p")),
            "a",
            "b",
        ),
        (
            {
                "prompt": [user("p")],
                "chosen": [user("p"), assistant("m"), user("q"), assistant("a")],
                "rejected": [user("p"), assistant("m"), user("q"), assistant("b")],
            },
            (user("p"), assistant("m"), user("q")),
            "a",
            "b",
        ),
        (  # the prompt, and how both go on
            {
                "prompt": [user("p")],
                "chosen": [assistant("m"), user("q"), assistant("a")],
                "rejected": [assistant("m"), user("q"), assistant("b")],
            },
            (user("p"), assistant("m"), user("q")),
            "a",
            "b",
        ),
        (
            {
                "chosen": "\n\nHuman: p\n\nAssistant: a: b",
                "rejected": "\n\nHuman: p\n\nAssistant: c",
            },
            (user("p"),),
            "a: b",
            "c",
        ),
        (
            {"prompt": "\n\nHuman: p\n\nAssistant:", "chosen": " a", "rejected": " b"},
            (user("p"),),
            " a",
            " b",
        ),
        (Pair("p", "a", "b"), "p", "a", "b"),
    ],
)
def test_forms_of_pairs(row: Any, prompt: Any, chosen: str, rejected: str) -> None:
    assert read_preference(row, "f:1", "f:1") == Pair(prompt, chosen, rejected, "f:1")


@pytest.mark.parametrize(
    ("row", "prompt", "desirable"),
    [
        ({"messages": [user("p"), assistant("c")], "label": True}, (user("p"),), True),
        ({"prompt": "p", "completion": "c", "label": False}, "p", False),
        (
            {"prompt": [user("p")], "completion": [assistant("c")], "label": True},
            (user("p"),),
            True,
        ),
        (Labelled("p", "c", True), "p", True),
    ],
)
def test_forms_of_labelled_completions(row: Any, prompt: Any, desirable: bool) -> None:
    assert read_preference(row, "f:1", "f:1") == Labelled(prompt, "c", desirable, "f:1")


PQ = [user("p"), assistant("m"), user("q")]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (
            {"prompt": "p"},
            'f:1 chosen: found none among: prompt; accepted: "chosen" and "rejected"',
        ),
        ({"prompt": "p", "chosen": "a"}, "f:1 rejected: found none among: prompt, chosen"),
        ({"prompt": "p", "chosen": "a", "rejected": "a "}, "f:1 rejected: found the same text as"),
        (
            {"prompt": "p", "chosen": "a", "rejected": " "},
            "f:1 rejected: found ' '; accepted: text",
        ),
        ({"prompt": "p", "chosen": "", "rejected": "b"}, "f:1 chosen: found ''; accepted: text"),
        ({"prompt": "p", "chosen": 3, "rejected": "b"}, "f:1 chosen: found 3; accepted: text, or"),
        ({"prompt": "p", "chosen": "\udc00", "rejected": "b"}, "f:1 chosen: found '\\udc00'"),
        ({"prompt": 3, "chosen": "a", "rejected": "b"}, "f:1 prompt: found 3; accepted: text, or"),
        ({"prompt": " ", "chosen": "a", "rejected": "b"}, "f:1 prompt: found ' '; accepted: text"),
        (
            {"chosen": "a text", "rejected": "a word"},
            'f:1 chosen, rejected: found text; accepted: two texts with a "prompt"',
        ),
        (
            {"prompt": "p", "chosen": "a", "rejected": [assistant("b")]},
            "f:1 chosen, rejected: found text in one and chat messages in the other",
        ),
        (
            {"chosen": [user("p"), assistant("a")], "rejected": [user("q"), assistant("b")]},
            "f:1 chosen, rejected: found chats without a shared beginning",
        ),
        (
            {"chosen": "\n\nHuman: p\n\nAssistant: a", "rejected": "\n\nHuman: q\n\nAssistant: b"},
            "f:1 chosen, rejected: found chats without a shared beginning",
        ),
        (
            {"chosen": [*PQ, assistant("a")], "rejected": [*PQ[:2], user("z"), assistant("b")]},
            "f:1 chosen: found 2 turns behind the shared ones, the last by the assistant",
        ),
        (
            {"chosen": [user("p"), user("a")], "rejected": [user("p"), user("b")]},
            "f:1 chosen: found a last turn by the user; accepted: one turn, by the assistant",
        ),
        (
            {"chosen": [user("p"), assistant("a")], "rejected": [user("p"), assistant("a")]},
            "f:1 rejected: found the same text as chosen",
        ),
        (
            {
                "prompt": "other",
                "chosen": [user("p"), assistant("a")],
                "rejected": [user("p"), assistant("b")],
            },
            "f:1 prompt: found a prompt that differs from the beginning of the chats",
        ),
        (
            {"prompt": [user("p"), assistant("m")], "chosen": "a", "rejected": "b"},
            "f:1 prompt: found a chat that the assistant ends; accepted: a chat that the user ends",
        ),
        (
            {"prompt": "p", "completion": "c", "label": "yes"},
            "f:1 label: found 'yes'; accepted: true",
        ),
        ({"prompt": "p", "completion": "c", "label": 1}, "f:1 label: found 1; accepted: true or"),
        ({"prompt": "p", "label": True}, "f:1 completion: found none among: prompt, label"),
        ({"completion": "c", "label": True}, "f:1 prompt: found none among: completion, label"),
        (
            {"prompt": "p", "completion": 3, "label": True},
            "f:1 completion: found 3; accepted: text",
        ),
        ({"messages": [user("p")], "label": True}, "f:1 messages: found"),
        (Pair("", "a", "b"), "f:1 prompt: found ''"),
        (Labelled("p", " ", True), "f:1 completion: found ' '"),
        (3, "f:1: found 3; accepted: a row"),
    ],
)
def test_complaints(row: Any, expected: str) -> None:
    with pytest.raises(DataError) as caught:
        read_preference(row, "f:1", "f:1")
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


TEXTS = st.sampled_from(["a", "b", " ", "", "Human: a\n\nAssistant: b", "Human:", "\n\nHuman: c"])
TURNS = st.lists(
    st.fixed_dictionaries(
        {}, optional={"role": st.sampled_from(["user", "assistant", "system", 3]), "content": TEXTS}
    ),
    max_size=4,
)
VALUES = TEXTS | TURNS | st.none() | st.booleans() | st.integers() | st.lists(TEXTS, max_size=2)
KEYS = ("prompt", "question", "chosen", "rejected", "completion", "messages", "label")


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(KEYS, VALUES)))
def test_any_row_is_a_preference_or_a_complaint(row: dict[str, Any]) -> None:
    try:
        found = read_preference(row, "f:1", "f:1")
    except DataError as error:
        assert str(error).startswith("f:1") and "\n" not in str(error)
        return
    texts = [found.completion] if isinstance(found, Labelled) else [found.chosen, found.rejected]
    assert all(text.strip() for text in texts) and len({*map(str.strip, texts)}) == len(texts)
    assert isinstance(found.prompt, str) or found.prompt[-1]["role"] != "assistant"
    assert read_preference(found, "g:2", "g:2") == found, "a finished one passes through"


def test_bad_rows_can_be_skipped(tmp_path: Path) -> None:
    good = {"prompt": "p", "chosen": "a", "rejected": "b"}
    path = write_rows(tmp_path / "t.jsonl", [{**good, "rejected": "a"}, good, {"prompt": "p"}])
    rows = load_preferences([path], on_bad_row="skip")
    assert (len(rows), rows.num_skipped) == (1, 2)
    assert rows.describe() == f"1 preferences: 1 from {path}; 2 bad rows skipped"
    with pytest.raises(DataError, match=r"t\.jsonl:1 rejected: found the same text"):
        load_preferences([path])


@pytest.mark.parametrize(
    ("text", "roles"),
    [
        ("Human: a", ["user"]),
        ("\n\nHuman: a\n\nAssistant: b\n\nHuman: c", ["user", "assistant", "user"]),
        ("Human: a\n\nAssistant:", ["user"]),
        ("Human: a\n\nThe Human: no speaker\n\nAssistant: b", ["user", "assistant"]),
        ("Is a Human: b", None),
        ("Assistant: b", None),
    ],
)
def test_transcripts(text: str, roles: list[str] | None) -> None:
    turns = as_turns(text)
    assert (turns and [turn["role"] for turn in turns]) == roles
