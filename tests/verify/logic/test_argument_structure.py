"""The form of an argument: supported steps, a conclusion at the end, and nothing for repetition."""

from __future__ import annotations

from typing import Any

import pytest
from growth import LINEAR, growth
from hypothesis import given
from hypothesis import strategies as st

from assay.errors import VerifierError
from assay.types import Completion, Problem, ThinkFormat
from assay.verify.base import Part
from assay.verify.logic.argument_structure import (
    ARGUMENT_STRUCTURE,
    MAX_TEXT,
    judge_argument,
    steps_of,
)

PREMISES = ["All cats are mammals.", "No mammal is a plant.", "Tom is a cat."]
STEPS = [
    "Tom is a cat, and all cats are mammals.",
    "So Tom is a mammal, from 1.",
    "Since no mammal is a plant, Tom is no plant.",
    "Therefore Tom needs no sunlight to grow.",
]


def part(text: str, **spec: Any) -> Part:
    completion = Completion.from_text(text, think=ThinkFormat("free"))
    return judge_argument(Problem("p", "q", {"premises": PREMISES, **spec}), completion)


def value(steps: list[str]) -> float:
    found = part("\n".join(f"{n}. {step}" for n, step in enumerate(steps, 1))).value
    assert found is not None
    return found


def test_a_supported_argument_scores_one() -> None:
    assert value(STEPS) == 1


def test_it_never_outweighs_correctness() -> None:
    assert ARGUMENT_STRUCTURE.weight <= 0.1 and ARGUMENT_STRUCTURE.bounds == (0.0, 1.0)


def test_without_a_conclusion_half_is_lost() -> None:
    loose = [*STEPS[:3], "Tom needs no sunlight, see step 3."]
    assert 0 < value(loose) <= 0.5


def test_a_conclusion_that_was_assumed_earns_nothing() -> None:
    assert value(["Tom is no plant.", STEPS[1], "Therefore Tom is no plant."]) == 0


@given(st.lists(st.sampled_from(STEPS), min_size=1, max_size=30))
def test_repetition_earns_nothing(more: list[str]) -> None:
    assert value([*STEPS, *more]) < value(STEPS)


@given(st.lists(st.sampled_from(STEPS), min_size=2, max_size=5, unique=True), st.integers(1, 20))
def test_repeating_a_step_never_helps(steps: list[str], times: int) -> None:
    assert value([*steps, *steps[:1] * times]) <= value(steps)


@pytest.mark.parametrize("text", ["", "Yes.", "Therefore. " * 30, "\n".join(f"{n}. So step {n} follows from {n - 1}." for n in range(1, 60)), "1. So.\n2. So.\n3. So."])  # fmt: skip
def test_filler_earns_nothing(text: str) -> None:
    assert part(text).value == 0


def test_references_must_lead_somewhere() -> None:
    assert value(["Tom is a mammal (1, 3).", "Tom is no plant, by step 1."]) > 0
    assert value(["Tom is a mammal (77).", "Tom is no plant, by step 88."]) == 0


def test_steps() -> None:
    assert steps_of("Step 1: one\nmore\nStep 2: two\nHence three") == [(1, "one more"), (2, "two"), (3, "Hence three")]  # fmt: skip
    assert steps_of("One. Two.\nThree") == [(1, "One."), (2, "Two."), (3, "Three")]


def test_the_think_block_only_where_it_is_asked_for() -> None:
    text = "<think>" + "\n".join(STEPS) + "</think>No."
    assert part(text).value == 0
    assert part(text, part="reasoning").value == 1
    assert part(text.replace("think", "THINK"), part="reasoning").value == 1


@pytest.mark.parametrize("spec", [{"part": "all"}, {"premises": "A"}, {"premises": [1]}])
def test_malformed_specs(spec: dict[str, Any]) -> None:
    with pytest.raises(VerifierError, match="accepted"):
        part("x", **spec)


@pytest.mark.parametrize("text", ["1. so\n" * 15_000, "so. So " * 14_000, "from (" * 16_000, "1" * 100_000, "(1) " * 25_000])  # fmt: skip
def test_work_grows_with_the_text(text: str) -> None:
    assert part(text).value == 0
    assert growth(lambda size: part(text[:size]), min(len(text), MAX_TEXT)) < LINEAR


@given(st.text(alphabet="So. 12)\n(from thusTom", max_size=80))
def test_any_text_is_judged(text: str) -> None:
    found = part(text).value
    assert found is not None and 0 <= found <= 1
