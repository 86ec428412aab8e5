"""Repetition: loops of every kind are found, honest text of every kind is left alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from growth import LINEAR, growth
from hypothesis import given
from hypothesis import strategies as st

from assay.errors import VerifierError
from assay.types import Completion, Problem
from assay.verify.base import Part
from assay.verify.style.repetition import BLOCK, LEAST, REPETITION, WINDOW, judge_repetition

HONEST = (
    "The train covers 120 km in 2 hours, so its speed is 60 km/h. At this speed, 300 km take 5 hours. "
    "It leaves at nine in the morning and so arrives at two in the afternoon. "
)


def judge(text: str, **spec: Any) -> Part:
    return judge_repetition(Problem("p", "q", spec), Completion.from_text(text))


def value(text: str, **spec: Any) -> float:
    found = judge(text, **spec).value
    assert found is not None
    return found


@pytest.mark.parametrize(
    "loop",
    [
        "Wait, let me check this again. " * 40,
        "".join(f"Step {k}: add {k} to both sides of it and simplify the sum. " for k in range(40)),
        "WAIT let me; check this AGAIN! wait, let me... check THIS again? " * 20,
        "我们再检查一遍答案是否正确。" * 30,
        "a" * 4000,
        "-" * 4000,
        "haha" * 1000,
        "0 " * 1000,
        "😀" * 800,
        "```\ncheck the result again\n" + "check the result again\n" * 40,
        "wa\u200bit now " * 200,
    ],
)
def test_loops_are_found(loop: str) -> None:
    assert value(loop) < -0.5
    assert not judge(loop).passed
    assert -1.0 <= value(loop) <= 0.0


def words(count: int) -> str:
    """Words of which no four stand twice in a row."""
    return " ".join(
        f"{chr(97 + n % 26)}{chr(97 + n // 26 % 26)}{chr(97 + n // 676)}" for n in range(count)
    )


def test_a_late_loop_costs_its_share() -> None:
    honest = words(1000)
    assert value(honest) == 0.0
    loop = " let me check this again" * 200
    assert value(honest + loop) == pytest.approx(-0.5, abs=0.1)
    assert value(loop + " " + honest) == pytest.approx(-0.5, abs=0.1)


def test_repetition_is_seen_within_the_window() -> None:
    once = words(BLOCK * 2)
    assert value(f"{once} {once}") == pytest.approx(-0.5, abs=0.05)
    far = words(WINDOW + 200)
    assert value(f"{far} {far}") == 0.0


def test_the_measure_against_a_slow_one() -> None:
    """Of a text of one block: the share of n-grams seen before, less what is allowed."""
    import random

    rng = random.Random(0)
    for _ in range(20):
        chosen = [rng.choice(["one", "two", "red", "six"]) for _ in range(rng.randint(LEAST, 120))]
        grams = [tuple(chosen[n : n + 4]) for n in range(len(chosen) - 3)]
        share = sum(gram in grams[:n] for n, gram in enumerate(grams)) / len(grams)
        found = judge(" ".join(chosen)).components["ngrams"]
        assert found == pytest.approx(max(0.0, (share - 0.4) / 0.6))


def test_short_texts_are_left_alone() -> None:
    assert value("no no no no no no no no") == 0.0
    assert judge("").passed


def test_an_answer_may_be_said_again() -> None:
    assert (
        value(
            f"{HONEST}The train arrives at two. So the train arrives at two. The train arrives at two."
        )
        == 0.0
    )
    assert value(HONEST + "The train arrives at two. " * 10) < -0.2


def test_options() -> None:
    text = HONEST * 3
    assert value(text, allowed=0.0) < value(text) <= 0.0
    assert judge(text, tolerance=0.99).passed
    assert value("x y " * 40, ngram=2) < -0.9
    for spec in (
        {"ngram": 1},
        {"ngram": 2.5},
        {"allowed": 1.0},
        {"tolerance": -1},
        {"allowed": "x"},
    ):
        with pytest.raises(VerifierError, match=r"spec\."):
            judge(HONEST * 3, **spec)


@pytest.mark.parametrize("known", REPETITION.known_errors, ids=lambda known: known.what)
def test_known_errors(known: Any) -> None:
    part = judge(known.completion)
    assert ("passed" if part.passed else "failed") == known.says != known.should_say


@given(st.text())
def test_any_text_is_within_bounds(text: str) -> None:
    part = judge(text * 5)
    assert part.value is not None
    assert -1.0 <= part.value <= 0.0
    assert part.score == pytest.approx(1.0 + part.value)
    assert part == judge(text * 5)


def test_honest_text_is_unchanged(shared_data: Path) -> None:
    def read(name: str, key: str) -> list[str]:
        lines = (shared_data / name).read_text(encoding="utf-8").splitlines()
        return [json.loads(line)[key] for line in lines]

    solutions = read("traces/openmathinstruct2_100.jsonl", "generated_solution")
    dialogs = read("preferences/hh_harmless.jsonl", "prompt")
    assert not [text for text in solutions + dialogs if not judge(text).passed]
    sampled = read("verifier/gsm8k_responses.jsonl", "response")
    assert 3 <= sum(not judge(text).passed for text in sampled) <= 6  # five do loop


def test_code_of_assay_is_not_examined() -> None:
    files = sorted((Path(__file__).parents[3] / "assay" / "verify" / "style").glob("*.py"))
    assert files
    for file in files:
        assert judge(file.read_text(encoding="utf-8")).passed, file.name


def test_long_texts_take_linear_time() -> None:
    for piece in ("Wait. ", "a", "-", "\n", "。", "一", ". ", "1 ", "word and ", "\u200b"):
        work = growth(lambda size, piece=piece: judge(piece * (size // len(piece))), 80_000)
        assert work < LINEAR, piece


def test_it_never_outweighs_correctness() -> None:
    assert REPETITION.bounds is not None
    assert REPETITION.weight * (REPETITION.bounds[1] - REPETITION.bounds[0]) < 1.0
