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
