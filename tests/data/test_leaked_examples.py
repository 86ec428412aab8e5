"""Held-out questions and answers are found in other texts, and short questions only as a whole."""

from __future__ import annotations

import tracemalloc

import pytest

from assay.data.leaked_examples import HeldoutTexts
from assay.types import Problem


@pytest.mark.parametrize(
    ("question", "text", "is_leak"),
    [
        ("2+3=", "12-2+3=13", False),
        ("2+3=", "f(2+3=5)", True),
        ("2+3=", "Q: 2+3= A: 5", True),
        ("2+3=", "Add.\n2+3=5\n", True),
        ("What is 2+3?", "Question: What is 2+3?\nAnswer: 5", True),
        ("What is 2+3?", "Say what is 2+3 more than one", False),
        ("Tom has 3. How many?", "1. Tom has 3. How many?", True),
        ("\u4eca\u5929\u662f\u661f\u671f", "\u6211\u4eca\u5929\u662f\u661f\u671f\u4e00", False),
        (
            "\u4eca\u5929\u662f\u661f\u671f\uff1f",
            "\u95ee\uff1a\u4eca\u5929\u662f\u661f\u671f\uff1f\u7b54",
            True,
        ),
    ],
)
def test_a_short_question_is_found_only_as_a_line_or_a_sentence(
    question: str, text: str, is_leak: bool
) -> None:
    found = HeldoutTexts([Problem("a", question, source="held:1")]).leaks("shot", text)
    assert bool(found) is is_leak


def test_long_answers_are_found_in_memory_linear_in_the_text() -> None:
    def answer(start: int) -> str:
        return " ".join(f"w{n} x" for n in range(start, start + 1000))

    rows = [Problem("a", "Why?", {"answer": answer(n)}, source=f"held:{n}") for n in range(5)]
    index = HeldoutTexts(rows)
    text = f"So {answer(3)} then."
    tracemalloc.start()
    found = index.leaks("shot", text)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [one.heldout for one in found] == ["held:3"]
    # 16 kB per word of the text were the n-grams of the answer's own length.
    assert peak < 500 * len(text.split())
