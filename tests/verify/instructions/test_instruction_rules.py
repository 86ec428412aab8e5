"""The 25 instruction types: what follows each, what just misses it, and what ``stricter`` adds."""

from __future__ import annotations

from typing import Any

import pytest
from growth import LINEAR, growth
from hypothesis import given
from hypothesis import strategies as st

from assay.errors import VerifierError
from assay.verify.instructions.reading import loose_variants, read_instruction
from assay.verify.instructions.rules import RULES


def follows(name: str, kwargs: dict[str, Any], text: str, stricter: bool = False) -> bool:
    return read_instruction(name, kwargs, "row", 0).is_followed(text, stricter)


def follows_loosely(name: str, kwargs: dict[str, Any], text: str) -> bool:
    return read_instruction(name, kwargs, "row", 0).is_followed_loosely(text)


# name, arguments, texts that follow, texts that do not
CASES: list[tuple[str, dict[str, Any], list[str], list[str]]] = [
    (
        "keywords:existence",
        {"keywords": ["mom", "C++"]},
        ["Mom writes C++.", "MOMENTS of c++"],
        ["Mom writes C.", "C++ only", ""],
    ),
    (
        "keywords:frequency",
        {"keyword": " war ", "frequency": 2, "relation": "at least"},
        ["War and warriors.", "war war war"],
        ["war", "peace"],
    ),
    (
        "keywords:frequency",
        {"keyword": "war", "frequency": 2, "relation": "less than"},
        ["peace", "One war."],
        ["war war"],
    ),
    (
        "keywords:forbidden_words",
        {"forbidden_words": ["rock", "e.g."]},
        ["Rockets rocked.", "A stone, exgx"],
        ["ROCK!", "a rock-solid case"],
    ),
    (
        "keywords:letter_frequency",
        {"letter": "T", "let_frequency": 2, "let_relation": "less than"},
        ["One t.", "none"],
        ["Two ts: t", "Tt"],
    ),
    (
        "keywords:letter_frequency",
        {"letter": "#", "let_frequency": 2, "let_relation": "at least"},
        ["#one #two"],
        ["#one two, hash hash"],
    ),
    (
        "language:response_language",
        {"language": "de"},
        ["Das Wetter war heute Morgen schön, deshalb gingen wir zum Markt.", "12 + 30"],
        ["The weather was fine this morning, so we walked to the market."],
    ),
    (
        "language:response_language",
        {"language": "zh"},
        ["今天早上天气很好，所以我们沿着河边走到了市场。"],
        ["今朝は天気が良かったので、川沿いを歩いて市場まで行きました。"],
    ),
    (
        "length_constraints:number_sentences",
        {"num_sentences": 3, "relation": "at least"},
        ["One. Two! Three?", "A. B? C! D."],
        ["One. Two.", "Dr. Who met Mr. Fox at 5 p.m. today. Then he left."],
    ),
    (
        "length_constraints:number_sentences",
        {"num_sentences": 3, "relation": "less than"},
        ["One. Two.", "no mark at all"],
        ["One. Two. Three."],
    ),
    (
        "length_constraints:number_paragraphs",
        {"num_paragraphs": 2},
        ["a\n***\nb", "***\na***b\n***", "a *** b"],
        ["a", "a\n***\n***\nb", "a\n***\nb\n***\nc", "a\n\nb"],
    ),
    (
        "length_constraints:number_words",
        {"num_words": 3, "relation": "at least"},
        ["one two three", "well-known fact", "it's so", "ಇಂದು ಬೆಳಿಗ್ಗೆ ಹವಾಮಾನ"],
        ["one two", "... !!! ???", "ಇಂದು ಬೆಳಿಗ್ಗೆ", "\u3164 \u3164 \u3164", "\u200d \u200d \u200d"],
    ),
    (
        "length_constraints:number_words",
        {"num_words": 3, "relation": "less than"},
        ["one two", "½ of it"],
        ["one two three"],
    ),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "However"},
        ["a\n\nHowever, b", 'a\n\n"However" b', "a\n\nhowever.b c"],
        [
            "However\n\na",
            "a\n\nb\n\nHowever",
            "a\nHowever",
            "a\n\n\n\nHowever b",
            "a\n\n**However** b",
        ],
    ),
    (
        "detectable_content:number_placeholders",
        {"num_placeholders": 2},
        ["[name] [address]", "[] [x]", "[a [b] [c]"],
        ["[name]", "[a\nb] [c]", "[[[ ]"],
    ),
    (
        "detectable_content:postscript",
        {"postscript_marker": "P.S."},
        ["Bye.\n\nP.S. One more.", "p. s. more", "Bye. P.S."],
        ["Bye. PS one more.", "Bye.\nP.P.S", "P.S no second dot"],
    ),
    (
        "detectable_content:postscript",
        {"postscript_marker": "P.P.S"},
        ["Bye.\nP.P.S I forgot.", "p. p. s"],
        ["Bye.\nP.S. I forgot."],
    ),
    (
        "detectable_content:postscript",
        {"postscript_marker": "Note:"},
        ["Bye.\nNOTE: more"],
        ["Bye.\nNote more"],
    ),
    (
        "detectable_format:number_bullet_lists",
        {"num_bullets": 2},
        ["* a\n* b", "- a\n* b", "  -a\n\t*b", "text\n* a\n* b\n** c"],
        ["* a", "* a\n* b\n* c", "• a\n• b", "1. a\n2. b", "* a\n* b\n---"],
    ),
    (
        "detectable_format:constrained_response",
        {},
        ["My answer is yes.", "**My answer is maybe.**", "Hm. My answer is no. Bye"],
        ["my answer is yes.", "Yes.", "My answer is yes"],
    ),
    (
        "detectable_format:number_highlighted_sections",
        {"num_highlights": 2},
        ["*a* and *b*", "**a** and *b*", "**a**\n**b**"],
        ["*a*", "** ** and *a*", "*a\nb* *c", "**a**"],
    ),
    (
        "detectable_format:multiple_sections",
        {"section_spliter": "SECTION", "num_sections": 2},
        ["SECTION 1\na\nSECTION 2\nb", "SECTION1 SECTION2 SECTION3"],
        ["SECTION 1\na", "Section 1\na\nSection 2", "SECTION X\nSECTION Y"],
    ),
    (
        "detectable_format:json_format",
        {},
        ['{"a": 1}', '```json\n{"a": 1}\n```', "```\n[1]\n```", "5"],
        ["```json\n```", "{'a': 1}", '{"a": 1} done', "Here: {}", "[" * 100_000, "1" * 10_000],
    ),
    (
        "detectable_format:title",
        {},
        ["<<Joy>>", "text <<a>> text <<>>", "<<<b>>>"],
        ["<<>>", "<< >>", "<Joy>", "<<Joy\n>>"],
    ),
    (
        "combination:two_responses",
        {},
        ["a\n******\nb", "******a******b******"],
        ["a", "a\n******\na", "a******b******c", "a************b", "a\n*****\nb"],
    ),
    (
        "combination:repeat_prompt",
        {"prompt_to_repeat": "Write a poem. "},
        ["Write a poem.\nRoses.", "  WRITE A POEM. Roses"],
        ["Here: Write a poem.", "Write a  poem.", '"Write a poem." Roses', "Write poem. a"],
    ),
    (
        "startend:end_checker",
        {"end_phrase": "Is that all?"},
        ["Yes. Is that all?", 'Yes. "IS THAT ALL?"\n'],
        ["Is that all? Yes.", "Is that all ?", "Yes. “Is that all?”"],
    ),
    (
        "startend:quotation",
        {},
        ['"a"', ' "a" and "b" \n', '""'],
        ['"', '"a', "“a”", "'a'", '"a".'],
    ),
    (
        "change_case:capital_word_frequency",
        {"capital_frequency": 3, "capital_relation": "at least"},
        ["I AM HERE", "DON'T GO", "A-B C/D E1", "CANNOT, WILL"],
        ["I AM here", "Don't Go Now", "12 34 56"],
    ),
    (
        "change_case:capital_word_frequency",
        {"capital_frequency": 2, "capital_relation": "less than"},
        ["I am here", "none"],
        ["I DO"],
    ),
    (
        "change_case:english_capital",
        {},
        ["THE WEATHER WAS FINE THIS MORNING SO WE WALKED ALONG THE RIVER TO THE MARKET."],
        [
            "THE WEATHER WAS FINE THIS MORNING so WE WALKED ALONG THE RIVER.",
            "ВЧЕРА БЫЛА ХОРОШАЯ ПОГОДА И МЫ ПОШЛИ ВДОЛЬ РЕКИ НА РЫНОК.",
            "123",
        ],
    ),
    (
        "change_case:english_lowercase",
        {},
        ["the weather was fine this morning so we walked along the river."],
        [
            "The weather was fine this morning so we walked along the river.",
            "das wetter war heute schön, deshalb gingen wir am fluss entlang.",
            "123",
        ],
    ),
    ("punctuation:no_comma", {}, ["a; b", "1.000", "a， b"], ["a, b", "1,000", ""]),
]


def test_every_type_has_cases() -> None:
    assert {name for name, *_ in CASES} == set(RULES)
    assert len(RULES) == 25


@pytest.mark.parametrize(
    ("name", "kwargs", "text"), [(n, k, text) for n, k, yes, _ in CASES for text in yes]
)
def test_texts_that_follow_an_instruction(name: str, kwargs: dict[str, Any], text: str) -> None:
    assert follows(name, kwargs, text)


@pytest.mark.parametrize(
    ("name", "kwargs", "text"), [(n, k, text) for n, k, _, no in CASES for text in no]
)
def test_texts_that_break_an_instruction(name: str, kwargs: dict[str, Any], text: str) -> None:
    assert not follows(name, kwargs, text)


# What the public scorer's rule accepts and no reader would.
BARELY: list[tuple[str, dict[str, Any], str, str]] = [
    ("keywords:existence", {"keywords": ["rock"]}, "Rockets fly.", "A rock flies."),
    ("keywords:existence", {"keywords": ["rock"]}, "Hi <!-- rock -->", "Hi rock"),
    (
        "keywords:frequency",
        {"keyword": "war", "frequency": 2, "relation": "at least"},
        "warm wardrobe",
        "war, war",
    ),
    ("keywords:forbidden_words", {"forbidden_words": ["rock"]}, "a ro\u200bck", "a stone"),
    (
        "keywords:letter_frequency",
        {"letter": "q", "let_frequency": 2, "let_relation": "at least"},
        "<!-- qq --> hi",
        "quick quiz",
    ),
    (
        "language:response_language",
        {"language": "fr"},
        "12345",
        "Il faisait beau ce matin, alors nous avons marché jusqu'au marché.",
    ),
    (
        "length_constraints:number_sentences",
        {"num_sentences": 3, "relation": "at least"},
        "Hm. ! ? ! ?",
        "One. Two. Three.",
    ),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "a\n***\n-", "a\n***\nb"),
    (
        "length_constraints:number_words",
        {"num_words": 3, "relation": "at least"},
        "___ __ _",
        "one two three",
    ),
    ("detectable_content:number_placeholders", {"num_placeholders": 1}, "[ ]", "[name]"),
    (
        "detectable_content:postscript",
        {"postscript_marker": "P.S."},
        "I never write a P.S.",
        "Bye.\n\nP.S. More.",
    ),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2}, "-\n---", "- a\n* b"),
    (
        "detectable_format:constrained_response",
        {},
        "My answer is yes. My answer is no.",
        "My answer is no.",
    ),
    (
        "detectable_format:number_highlighted_sections",
        {"num_highlights": 2},
        "2 * 3 * 4 *.*",
        "*a* and **b c**",
    ),
    (
        "detectable_format:multiple_sections",
        {"section_spliter": "SECTION", "num_sections": 2},
        "SECTION 1 SECTION 2",
        "SECTION 1\na\n**SECTION 2**\nb",
    ),
    ("detectable_format:json_format", {}, '"hi"', '["hi"]'),
    ("detectable_format:title", {}, "<<->>", "<<Joy>>"),
    ("combination:two_responses", {}, "a b\n******\nA  b", "a\n******\nb"),
    ("combination:two_responses", {}, "a\n******\n-", "a\n******\nb"),
    ("combination:repeat_prompt", {"prompt_to_repeat": "Say hi."}, "SAY HI.", "Say hi. Hi."),
    ("startend:end_checker", {"end_phrase": "That is All."}, "that is all.", "That is All."),
    ("startend:quotation", {}, '""', '"a"'),
    (
        "change_case:capital_word_frequency",
        {"capital_frequency": 2, "capital_relation": "at least"},
        "I, A",
        "OK GO",
    ),
    ("punctuation:no_comma", {}, "a， b", "a b"),
]


@pytest.mark.parametrize(("name", "kwargs", "barely", "well"), BARELY)
def test_stricter_asks_for_more(name: str, kwargs: dict[str, Any], barely: str, well: str) -> None:
    assert follows(name, kwargs, barely)
    assert not follows(name, kwargs, barely, stricter=True)
    assert follows(name, kwargs, well, stricter=True)


@pytest.mark.parametrize(
    ("text", "variants"),
    [
        ("a", {"a", ""}),
        ("a\nb\nc", {"a\nb\nc", "b\nc", "a\nb", "b"}),
        ("*a*\nb", {"*a*\nb", "b", "*a*", "", "a\nb", "a"}),
    ],
)
def test_loose_variants(text: str, variants: set[str]) -> None:
    assert set(loose_variants(text)) == variants


@pytest.mark.parametrize(
    ("name", "kwargs", "text"),
    [
        ("punctuation:no_comma", {}, "Sure, here it is:\nNo comma."),
        ("startend:end_checker", {"end_phrase": "The end."}, "It is.\nThe end.\nI hope so."),
        ("startend:quotation", {}, 'Sure:\n"Hi."\nBye'),
        ("combination:repeat_prompt", {"prompt_to_repeat": "Say hi."}, "**Say hi.** Hi."),
        ("detectable_format:json_format", {}, "Here:\n{}"),
    ],
)
def test_loose_forgives_preambles_and_asterisks(
    name: str, kwargs: dict[str, Any], text: str
) -> None:
    assert not follows(name, kwargs, text)
    assert follows_loosely(name, kwargs, text)


def test_loose_forgives_nothing_where_nothing_is_left() -> None:
    assert not follows_loosely("punctuation:no_comma", {}, "a, b")
    assert not follows_loosely("punctuation:no_comma", {}, " \n ")


ANY_TEXT = st.text(st.sampled_from("ab AB.,?!*-_\"'<>[]{}()0159\n\t\u200b，é"), max_size=60)


@given(st.sampled_from([case for case in CASES if "english" not in case[0]]), ANY_TEXT)
def test_any_text_gets_a_verdict_and_the_modes_are_ordered(
    case: tuple[str, dict[str, Any], list[str], list[str]], text: str
) -> None:
    instruction = read_instruction(case[0], case[1], "row", 0)
    strict, loose = instruction.is_followed(text), instruction.is_followed_loosely(text)
    assert loose or not strict
    assert strict or not instruction.is_followed(text, stricter=True)
    assert loose or not instruction.is_followed_loosely(text, stricter=True)


UNITS = ("[", "<<", "* ", "\n", "** ", "? ", ". ", "p. ", ".", " ", "\n- ", "<!--", "'", "!")


@pytest.mark.parametrize("unit", UNITS)
def test_work_grows_with_hostile_repetition(unit: str) -> None:
    detecting = ("response_language", "english_capital", "english_lowercase")
    instructions = [
        read_instruction(name, kwargs, "row", 0)
        for name, kwargs, *_ in CASES
        if not name.endswith(detecting)
    ]

    def judge(size: int) -> None:
        for instruction in instructions:
            instruction.is_followed_loosely(unit * size, stricter=True)

    assert growth(judge, 8_000) < LINEAR


@pytest.mark.parametrize(
    ("name", "kwargs", "complaint"),
    [
        ("punctuation:no_coma", {}, "did you mean punctuation:no_comma"),
        (7, {}, "found 7; accepted: one of the 25"),
        (
            "punctuation:no_comma",
            {"x": 1},
            "kwargs[3].x: found an unknown key; accepted: no argument",
        ),
        ("punctuation:no_comma", 5, "kwargs[3]: found 5; accepted: a table"),
        ("length_constraints:number_words", {"relation": "at least"}, "num_words: found missing"),
        (
            "length_constraints:number_words",
            {"relation": "at most", "num_words": 3},
            'relation: found \'at most\'; accepted: "less than" or "at least"',
        ),
        (
            "length_constraints:number_paragraphs",
            {"num_paragraphs": 2.5},
            "found 2.5; accepted: a whole",
        ),
        ("length_constraints:number_paragraphs", {"num_paragraphs": True}, "found True"),
        ("length_constraints:number_paragraphs", {"num_paragraphs": -1}, "found -1"),
        ("keywords:existence", {"keywords": "mom"}, "keywords: found 'mom'; accepted: a list"),
        ("keywords:existence", {"keywords": []}, "keywords: found []"),
        ("keywords:existence", {"keywords": ["a", " "]}, "keywords: found ['a', ' ']"),
        (
            "keywords:letter_frequency",
            {"letter": "ab", "let_frequency": 1, "let_relation": "at least"},
            "one character",
        ),
        ("language:response_language", {"language": "klingon"}, "a language code"),
        (
            "length_constraints:nth_paragraph_first_word",
            {"num_paragraphs": 2, "nth_paragraph": 3, "first_word": "a"},
            "nth_paragraph: found 3; accepted: 1 to num_paragraphs (2)",
        ),
    ],
)
def test_malformed_instructions_say_where(name: Any, kwargs: Any, complaint: str) -> None:
    with pytest.raises(VerifierError) as caught:
        read_instruction(name, kwargs, "row", 3)
    assert complaint in str(caught.value)
    assert "[3]" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_arguments_that_are_none_count_as_absent_and_whole_floats_as_numbers() -> None:
    kwargs = {"num_words": 3.0, "relation": "at least", "keywords": None, "letter": None}
    assert follows("length_constraints:number_words", kwargs, "one two three")
    assert follows("punctuation:no_comma", None, "a") is True  # type: ignore[arg-type]
