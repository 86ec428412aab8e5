"""Sentences and words, counted as the public scorer of instruction following counts them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.verify.instructions.sentences import num_sentences, sentences
from assay.verify.instructions.words import has_content, num_capital_words, num_words, visible

# Counted with NLTK 3.10's Punkt and its English model: facts, which hold without it.
SPLIT = [
    "Hello there.",
    "It rains.|It pours!|Does it?|Yes.",
    "Dr. Fox met Mrs. Hare at 5 p.m. in Dec. for tea.|Then they left.",
    "We met at 5 p.m.|However, he left.",
    "We met at 5 p.m.|The sun was low.|It set.",
    "The U.S. Senate voted.|The U.K. did not.",
    "I like fruit, e.g.|apples, pears, etc.|and nuts.",
    "Wait... what?|No...|Please stay.",
    '"Stop!"|he cried.|(He meant it.)|Then he ran.',
    "He said “yes.”|Then he left.",
    "1.|Buy milk\n2.|Buy bread",
    "No.|5. then 6",
    "Plan B.|We start now.",
    "J. Smith and Ann B. Zorn came.",
    "Really?!|Yes!!!|Good.",
    "Pi is 3.14 and e.g.x is no end.",
    "Visit example.com.|It is free.",
    "**Bold end.|** Next one.",
    "no mark at the end",
]


@pytest.mark.parametrize("marked", SPLIT)
@pytest.mark.parametrize("space", [" ", "\n\n"], ids=["space", "lines"])
def test_sentences(marked: str, space: str) -> None:
    parts = marked.split("|")
    text = parts[0]
    for before, part in pairwise(parts):
        text += ("" if before.startswith("**") else space) + part
    assert sentences(text) == parts
    assert num_sentences(text + " \n") == len(parts)


@pytest.mark.parametrize("text", ["", " \n ", "\t"])
def test_texts_without_a_sentence(text: str) -> None:
    assert num_sentences(text) == 0


@given(st.text(st.sampled_from("ab AB.?!\"')(*\n-1"), max_size=60))
def test_sentences_hold_every_visible_character_in_order(text: str) -> None:
    assert "".join("".join(sentences(text)).split()) == "".join(text.split())


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        ("one two-three four's", 5),
        ("a_b ___ 3.14", 4),
        ("naïve cafe\u0301 x² ½", 3),
        ("ਅੱਜ ਸਵੇਰੇ ਮੌਸਮ", 3),
        ("می‌روم", 1),
        ("... ! — •", 0),
        ("\u200b \u200d \u3164 \u0301", 0),
        ("今天天气", 1),
        ("١٢ Ⅷ", 2),
    ],
)
def test_words(text: str, count: int) -> None:
    assert num_words(text) == count


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        ("I am A Fox", 2),
        ("DON'T! CAN'T. IT'S", 6),
        ("CANNOT GONNA", 4),
        ("A's B'S", 3),
        ("WELL-KNOWN AND/OR A.B.C. U.S.", 4),
        ("(A) [B] {C} <D> *E* \"F\" “G” 'H'", 8),
        ("A,B A,1 A:B A:1 A;B A--B A...B", 12),
        ("X1 1X 123 --- É ß ǅ", 3),
        ("Mixed Case only", 0),
    ],
)
def test_capital_words(text: str, count: int) -> None:
    assert num_capital_words(text) == count


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("plain", "plain"),
        ("a<!-- hidden -->b", "ab"),
        ("a<!-- never closed", "a"),
        ("<!-- a --> b <!-- c --> d --> e", " b  d --> e"),
        ("ro\u200bck\u2060s\ufeff", "rocks"),
    ],
)
def test_the_visible_text_of_markdown(text: str, seen: str) -> None:
    assert visible(text) == seen


def test_content_is_a_letter_or_a_digit() -> None:
    assert has_content("é") and has_content(" 1 ") and has_content("今")
    assert not has_content("") and not has_content("_*-. ")
