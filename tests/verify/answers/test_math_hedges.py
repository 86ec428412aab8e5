"""Alternatives in every wording and every place never pass for one of them; plain answers there do."""

from __future__ import annotations

import pytest

from assay.types import Completion, Problem
from assay.verify.answers.math_answer import judge_math

PLACES = [
    "\\boxed{%s}",
    "The answer is %s.",
    "The answer is $%s$.",
    "<answer>%s</answer>",
    "#### %s",
    "Final answer: %s",
    "%s",
    "So %s.",
    "**%s**",
    "It is %s.",
    "Answer: %s",
    "I get %s.",
]

ALTERNATIVES = [
    "5 or 6",
    "5, 6",
    "5 and 6",
    "5/6?",
    "5 (or 6)",
    "5 (maybe 6)",
    "either 5 or 6",
    "5 or maybe 6",
    "5 - or 6",
    "5; 6",
    "5 | 6",
    "5 6",
    "5-6",
    "5 to 6",
    "5~6",
    "5..6",
    "5, or 6",
    "maybe 5, maybe 6",
    "6 or 5",
    "6, possibly 5",
    "5 = 6",
    "5 \\text{ or } 6",
    "5 \\lor 6",
    "\\{5, 6\\}",
    "(5, 6)",
    "[5, 6]",
    "5 vs 6",
    "5 & 6",
    "5 + or 6",
    "not 6 but 5 or 7",
    "between 5 and 6",
    "5, 6, 7",
    "one of 5, 6",
    "x=5 or x=6",
    "5 if a else 6",
    "5 unless 6",
    "5 (alternatively 6)",
    "5 (alt: 6)",
    "5 (also 6)",
    "5 {or 6}",
    "5\\quad6",
    "5\\\\6",
    "5\\ \\text{or}\\ 6",
    "5,\\ 6",
    "5\\text{, or }6",
    "5\\,|\\,6",
    "5 ∨ 6",
    "5 ∪ 6",
    "5 \\cup 6",
    "5 XOR 6",
    "5 OR 6",
    "5 ou 6",
    "5 oder 6",
    "5、6",
    "5，6",
    "5；6",
    "5 aut 6",
    "5 plus or minus 1",
    "5 \\pm 1",
    "5±1",
    "~5-6",
    "5+",
    "5%6",
    "5\n6",
    "5\nor\n6",
    "five or six",
    "5 or six",
    "5 as well as 6",
    "5, but 6 too",
    "5 even though 6",
    "5 though maybe 6",
    "5 | 5.5 | 6",
    "5...6",
    "5…6",
    "5 – 6",
    "5—6",
]

PLAIN = [
    ("5", "5"),
    ("1/2", "\\frac{1}{2}"),
    ("12", "12 apples"),
    ("3.5", "3.5"),
    ("1000", "1,000"),
    ("-7", "-7"),
    ("50%", "50%"),
    ("x+1", "x+1"),
    ("5", "x = 5"),
    ("\\sqrt{2}", "\\sqrt{2}"),
    ("(1,2)", "(1, 2)"),
    ("90", "90^\\circ"),
    ("7", "7 \\text{ cm}"),
    ("18", "\\$18"),
    ("2\\pi", "2\\pi"),
]


def passes(answer: str, text: str) -> bool:
    return (
        judge_math(Problem("p", "q", {"answer": answer}), Completion.from_text(text)).value == 1.0
    )


@pytest.mark.parametrize("place", PLACES)
def test_alternatives_never_pass_for_one_of_them(place: str) -> None:
    said = [place % each for each in ALTERNATIVES]
    assert [text for text in said if passes("5", text) or passes("6", text)] == []


@pytest.mark.parametrize("place", PLACES)
def test_a_plain_answer_passes_in_every_place(place: str) -> None:
    assert [text for answer, text in PLAIN if not passes(answer, place % text)] == []


OTHER_VALUES = [
    "the square root of 5",
    "half of 5",
    "twice 5",
    "5 squared",
    "5 cubed",
    "5 factorial",
    "log 5",
    "sin 5",
    "a multiple of 5",
    "far from 5",
    "no longer 5",
    "unlikely to be 5",
    "almost 5",
    "5 below zero",
    "5 when x=1 and 6 when x=2",
    "not $5$",
    "negative $5$",
]


@pytest.mark.parametrize("place", ["The answer is %s.", "Final answer: %s", "It is %s.", "%s"])
def test_words_beside_a_number_make_it_another_value(place: str) -> None:
    assert [each for each in OTHER_VALUES if passes("5", place % each)] == []


def test_words_that_make_another_value_may_be_the_answer() -> None:
    assert passes("6", "The answer is the square root of 36, which is 6.")


@pytest.mark.parametrize(
    "text",
    [
        "My friend says the answer is 5.",
        "A common mistake is to say the answer is 5.",
        "Bob said the answer is 5.",
        "My friend says it is 5.",
        '"The answer is 5" is what most people say. It is wrong: the answer is 15.',
        "\\boxed{15}\n\n(The expected answer is 5.)",
    ],
)
def test_what_others_say_is_no_answer(text: str) -> None:
    assert not passes("5", text)


@pytest.mark.parametrize(
    "text",
    [
        "We can say that the answer is 5.",
        "I think the answer is 5.",
        "It is safe to say the answer is 5.",
        "Some say that the answer is 6. The answer is 5.",
        "It is wrong: the answer is 5.",
        "(The answer is 5.)",
        '"The answer is 5."',
    ],
)
def test_what_the_writer_says_is_an_answer(text: str) -> None:
    assert passes("5", text)


THINK_TAGS = [
    ("[THINK]", "[/THINK]"),
    ("◁think▷", "◁/think▷"),
    ("<seed:think>", "</seed:think>"),
    ("<scratchpad>", "</scratchpad>"),
    ("<reflection>", "</reflection>"),
    ("<reasoning>", "</reasoning>"),
    ("&lt;think&gt;", "&lt;/think&gt;"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
]


@pytest.mark.parametrize(("opening", "closing"), THINK_TAGS)
def test_every_kind_of_think_block_is_left_out(opening: str, closing: str) -> None:
    block = opening + "so \\boxed{5}" + closing
    assert not passes("5", block)
    assert not passes("5", block + " I am done.")
    assert not passes("5", opening + "so \\boxed{5}")
    assert passes("6", block + "\\boxed{6}")


def test_a_scratchpad_inside_a_think_block_ends_with_it() -> None:
    assert passes("6", "<think>I open a <scratchpad> here</think>6")
    assert not passes("6", "<reasoning><think></reasoning>6")
    assert passes("x[1]", "\\boxed{x[1]}")
