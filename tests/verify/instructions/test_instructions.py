"""Verifier ``instructions`` as a whole: verdicts, components, modes, think blocks, malformed specs."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from assay.data.completions import Record
from assay.errors import VerifierError
from assay.types import Completion, Problem, ThinkFormat
from assay.verify.base import Part, resolve
from assay.verify.instructions.instructions import INSTRUCTIONS, judge_instructions
from assay.verify.instructions.rules import RULES
from assay.verify.selftest import labelled_rows

NO_COMMA = ("punctuation:no_comma", {})
THREE_WORDS = ("length_constraints:number_words", {"num_words": 3, "relation": "at least"})
QUOTED = ("startend:quotation", {})


def judged(text: str, *instructions: tuple[str, Any], think: str = "off", **spec: Any) -> Part:
    return judge_instructions(
        Problem("p", "prompt", {**spec_of(*instructions), **spec}),
        Completion.from_text(text, think=ThinkFormat(think)),  # type: ignore[arg-type]
    )


def spec_of(*instructions: tuple[str, Any]) -> dict[str, Any]:
    return {
        "instruction_id_list": [name for name, _ in instructions],
        "kwargs": [kwargs for _, kwargs in instructions],
    }


def test_it_is_built_in_and_complete() -> None:
    verifier = resolve("instructions@1")
    assert verifier is INSTRUCTIONS
    assert verifier.domain and verifier.accepts and verifier.known_errors
    assert len(verifier.hash) == 12


def test_all_instructions_must_be_followed() -> None:
    part = judged("one two three", NO_COMMA, THREE_WORDS)
    assert (part.value, part.score, part.passed, part.detail) == (1.0, 1.0, True, "")
    assert part.components == {
        "strict": 1.0,
        "loose": 1.0,
        "share_followed": 1.0,
        "punctuation:no_comma": 1.0,
        "length_constraints:number_words": 1.0,
    }


def test_what_is_not_followed_is_named() -> None:
    part = judged("one, two", NO_COMMA, THREE_WORDS, QUOTED)
    assert (part.score, part.passed) == (0.0, False)
    assert part.detail == (
        "not followed: punctuation:no_comma, length_constraints:number_words, startend:quotation"
    )
    assert part.components["share_followed"] == 0.0


def test_credit_may_be_the_fraction_and_still_only_all_passes() -> None:
    part = judged("one two, three", NO_COMMA, THREE_WORDS, credit="fraction")
    assert (part.value, part.score, part.passed) == (0.5, 0.5, False)
    assert judged("one two three", NO_COMMA, THREE_WORDS, credit="fraction").passed


def test_the_mode_decides_and_the_other_one_is_a_component() -> None:
    text = "Sure, gladly:\none two three"
    strict, loose = judged(text, NO_COMMA), judged(text, NO_COMMA, mode="loose")
    assert (strict.passed, loose.passed) == (False, True)
    for part in (strict, loose):
        assert (part.components["strict"], part.components["loose"]) == (0.0, 1.0)
    assert strict.components["punctuation:no_comma"] == 0.0
    assert loose.components["punctuation:no_comma"] == loose.components["share_followed"] == 1.0


def test_loose_asks_each_instruction_of_its_own_variant() -> None:
    # Without its first line the text has no comma, and only with it a quotation's two marks.
    assert judged('"a, b\nc"', NO_COMMA, QUOTED, mode="loose").passed


def test_stricter_is_an_option() -> None:
    assert judged('""', QUOTED).passed
    assert not judged('""', QUOTED, stricter=True).passed
    assert not judged('""', QUOTED, stricter=True, mode="loose").passed


def test_an_id_that_stands_twice_is_followed_where_both_are() -> None:
    twice = [("keywords:existence", {"keywords": [word]}) for word in ("a", "b")]
    assert judged("a", *twice).components["keywords:existence"] == 0.0
    assert judged("a", *twice).components["share_followed"] == 0.5
    assert judged("a b", *twice).components["keywords:existence"] == 1.0


@pytest.mark.parametrize(
    "text", ["", " \n ", "<think>one two three</think>", "<think>one two three"]
)
def test_an_empty_answer_follows_nothing(text: str) -> None:
    for think in ("off", "free"):
        part = judged(text, NO_COMMA, THREE_WORDS, think=think)
        assert part.score == part.components["loose"] == part.components["share_followed"] == 0.0


@pytest.mark.parametrize("think", ["off", "free", "opened"])
def test_only_the_answer_counts(think: str) -> None:
    opening = "" if think == "opened" else "<think>"
    text = f"{opening}Well, well, well.</think>\n\nfirst\n\nsecond comes"
    nth = (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "second"},
    )
    assert judged(text, NO_COMMA, THREE_WORDS, nth, think=think).passed
    assert not judged(text, ("keywords:existence", {"keywords": ["well"]}), think=think).passed


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        (
            {},
            "spec.instruction_id_list: found missing; accepted: a list of 1 to 60 of the",
        ),
        (
            {"instruction_id_list": "punctuation:no_comma", "kwargs": [{}]},
            "spec.instruction_id_list",
        ),
        ({"instruction_id_list": [], "kwargs": []}, "found []; accepted: a list of 1 to 60"),
        ({"instruction_id_list": ["punctuation:no_comma"]}, "spec.kwargs: found missing"),
        ({"instruction_id_list": ["punctuation:no_comma"], "kwargs": {}}, "spec.kwargs: found {}"),
        (
            {"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}, {}]},
            "spec.kwargs: found 2 tables; accepted: 1, one for each",
        ),
        (
            {
                "instruction_id_list": ["startend:quotation", "punctuation:comma"],
                "kwargs": [{}, {}],
            },
            "spec.instruction_id_list[1]: found 'punctuation:comma'",
        ),
        ({**spec_of(NO_COMMA), "mode": "lose"}, "spec.mode: found 'lose'; accepted: strict, loose"),
        (
            {**spec_of(NO_COMMA), "credit": 1},
            "spec.credit: found 1; accepted: all_or_nothing, fraction",
        ),
        ({**spec_of(NO_COMMA), "stricter": 1}, "spec.stricter: found 1; accepted: false, true"),
    ],
)
def test_a_malformed_spec_is_one_line_that_says_where(spec: dict[str, Any], complaint: str) -> None:
    with pytest.raises(VerifierError) as caught:
        judge_instructions(Problem("p7", "prompt", spec), Completion.from_text("text"))
    assert str(caught.value).startswith("problem p7: spec.")
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        (
            "instruction_id_list",
            [list(RULES), ["startend:quotation"]],
            [[], "a", None, 3],
        ),
        ("kwargs", [[], [{}], [None, {"a": 1}]], ["a", {}, [1], None]),
        ("mode", ["strict", "loose"], ["x", 1, None]),
        ("credit", ["all_or_nothing", "fraction"], ["x", 0.5]),
        ("stricter", [True, False], [1, "true"]),
    ],
)
def test_fields_are_checked_at_load(name: str, good: list[Any], bad: list[Any]) -> None:
    field = next(field for field in INSTRUCTIONS.fields if field.name == name)
    assert field.check is not None
    assert all(field.check(value) is True for value in good)
    assert all(field.check(value) is False for value in bad)


def test_each_default_is_one_that_the_field_accepts() -> None:
    for field in INSTRUCTIONS.fields:
        assert field.needed or (field.check is not None and field.check(field.default))


@pytest.mark.parametrize("known", INSTRUCTIONS.known_errors, ids=lambda known: known.what)
def test_known_errors(known: Any) -> None:
    completion = Completion.from_text(known.completion)
    verdicts = [
        judge_instructions(Problem("p", "prompt", {**known.spec, "stricter": stricter}), completion)
        for stricter in (False, True)
    ]
    says, stricter_says = ("passed" if verdict.passed else "failed" for verdict in verdicts)
    assert says == known.says != known.should_say
    assert (stricter_says == known.should_say) == known.what.startswith("Without stricter")


@pytest.mark.parametrize("row", list(labelled_rows("instructions")), ids=lambda row: row["id"])
def test_labelled_rows(row: dict[str, Any]) -> None:
    problem, completion = Record.read(
        {**row, "verifier": "instructions"}, "row", row["id"]
    ).to_judge()
    assert judge_instructions(problem, completion).passed is (row["expected"] == "passed")


def test_the_labelled_set_covers_every_type_and_kind() -> None:
    rows = list(labelled_rows("instructions"))
    assert len(rows) >= 60
    assert {name for row in rows for name in row["instruction_id_list"]} == set(RULES)
    assert {row["kind"] for row in rows} == {"ordinary", "odd_style", "hack"}
    assert all(row["expected"] == "failed" for row in rows if row["kind"] == "hack")
    for name in RULES:
        verdicts = {row["expected"] for row in rows if row["instruction_id_list"] == [name]}
        assert verdicts == {"passed", "failed"}, name


# Verdicts of instructions@1: text, then (strict, loose) of each instruction. A change is a new version.
PINNED_INSTRUCTIONS = (
    NO_COMMA,
    THREE_WORDS,
    QUOTED,
    ("length_constraints:number_sentences", {"num_sentences": 2, "relation": "at least"}),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 1}),
    (
        "change_case:capital_word_frequency",
        {"capital_frequency": 2, "capital_relation": "less than"},
    ),
    ("detectable_format:number_bullet_lists", {"num_bullets": 1}),
    ("language:response_language", {"language": "en"}),
)
PINNED = [
    ("One, two. *Three* OK.", "00 11 00 11 11 11 00 11"),
    ('"The fog lifted. A heron flew off."', "11 11 11 11 00 11 00 11"),
    ("Sure, here:\n- an old mill\n- a quiet pond.", "01 11 00 00 00 11 01 11"),
    ("I DON'T know e.g. this **one**.", "11 11 00 11 11 00 00 11"),
    ("5 p.m. is LATE", "11 11 00 00 00 11 00 00"),
]


@pytest.mark.parametrize(("text", "verdicts"), PINNED)
def test_pinned_verdicts(text: str, verdicts: str) -> None:
    found: list[str] = []
    for instruction in PINNED_INSTRUCTIONS:
        components = judged(text, instruction).components
        found.append(f"{components['strict']:.0f}{components['loose']:.0f}")
    assert INSTRUCTIONS.label == "instructions@1"
    assert " ".join(found) == verdicts


def test_public_rows_are_read_as_they_stand(shared_data: Path) -> None:
    lines = (shared_data / "ifeval" / "first_150.jsonl").read_text(encoding="utf-8").splitlines()
    for row in map(json.loads, lines):
        # The hub's table fills every row's arguments up with the keys of all the others.
        filled = [
            {**dict.fromkeys(("num_words", "keywords", "letter")), **each} for each in row["kwargs"]
        ]
        for kwargs in (row["kwargs"], filled):
            instructions = zip(row["instruction_id_list"], kwargs, strict=True)
            part = judged("A short answer, which follows little.", *instructions)
            assert 0.0 <= part.components["share_followed"] <= 1.0
            assert part.components["strict"] <= part.components["loose"]


def test_the_modules_import_nothing_heavy() -> None:
    code = (
        "import sys, assay.verify.instructions.instructions; heavy = {'langdetect', 'nltk', 'torch', 'sympy'}; "
        "sys.exit(bool(heavy & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_hash_stands_where_the_extra_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(package: str) -> str:
        raise importlib.metadata.PackageNotFoundError(package)

    installed = replace(INSTRUCTIONS).hash
    monkeypatch.setattr(importlib.metadata, "version", absent)
    assert len(replace(INSTRUCTIONS).hash) == 12
    assert replace(INSTRUCTIONS).hash != installed


def test_without_langdetect_only_the_types_that_need_it_complain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from assay.verify.instructions import languages

    monkeypatch.setitem(sys.modules, "langdetect.detector_factory", None)
    languages._factory.cache_clear()
    languages.detect_language.cache_clear()
    try:
        assert judged("one two three", NO_COMMA, THREE_WORDS).passed
        with pytest.raises(VerifierError, match=r"assay-rl\[language\]"):
            judged("one two three", ("language:response_language", {"language": "en"}))
    finally:
        languages._factory.cache_clear()
