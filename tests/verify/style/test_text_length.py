"""Length verifiers, held against their papers' formulas computed by hand and by loops."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.errors import VerifierError
from assay.types import Completion, Group, Problem, Prompt
from assay.verify.base import Part
from assay.verify.expression import parse_expression
from assay.verify.style.length import (
    KIMI_LENGTH,
    LENGTH_IF_CORRECT,
    LENGTH_TARGET,
    OVERLONG,
    judge_kimi_length,
    judge_length_if_correct,
    judge_length_target,
    judge_overlong,
    num_words,
)


def of_length(length: int, text: str = "x") -> Completion:
    return replace(Completion.from_text(text), tokens=np.zeros(length, np.int32))


def group(*lengths: int) -> Group:
    completions = tuple(of_length(length) for length in lengths)
    return Group(Problem("p", "q"), Prompt("q", np.zeros(1, np.int32)), completions)


def target(length: int, **spec: Any) -> Part:
    return judge_length_target(Problem("p", "q", spec), of_length(length))


def overlong(length: int, **spec: Any) -> Part:
    return judge_overlong(Problem("p", "q", spec), of_length(length))


@pytest.mark.parametrize(
    ("length", "value", "passed"),
    [(100, 0.0, True), (110, -0.1, True), (90, -0.1, True), (150, -0.5, False), (300, -1.0, False)],
)
def test_exact_target(length: int, value: float, passed: bool) -> None:
    part = target(length, target_tokens=100)
    assert part.value == pytest.approx(value)
    assert part.passed is passed
    assert part.components == {"length": length}


@given(st.integers(1, 9000), st.integers(1, 9000))
def test_the_papers_alpha(length: int, wanted: int) -> None:
    exact = target(length, target_tokens=wanted, alpha=0.0003)
    assert exact.value == pytest.approx(max(-1.0, -0.0003 * abs(wanted - length)))
    most = target(length, target_tokens=wanted, alpha=0.0003, variant="max")
    factor = min(1.0, max(0.0, 0.0003 * (wanted - length) + 0.5))
    assert most.value == pytest.approx(factor - 1.0)


def test_max_accepts_whatever_is_shorter() -> None:
    assert target(5, target_tokens=100, variant="max").passed
    assert target(110, target_tokens=100, variant="max").passed
    assert not target(111, target_tokens=100, variant="max").passed


def test_words_and_tokens() -> None:
    text = "Two words, und 中文字 3.5"
    assert num_words(text) == 3 + 3 + 2
    completion = Completion.from_text(text)
    part = judge_length_target(Problem("p", "q", {"target_words": 8}), completion)
    assert (part.value, part.passed) == (0.0, True)
    part = judge_length_target(Problem("p", "q", {"target_tokens": 8}), completion)
    assert (part.value, part.reason) == (None, "unavailable")
    both = {"target_tokens": 3, "target_words": 8}
    assert judge_length_target(Problem("p", "q", both), completion).value == 0.0
    assert judge_length_target(Problem("p", "q", both), of_length(3, text)).value == 0.0


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"target_tokens": 0},
        {"target_tokens": "5"},
        {"target_tokens": True},
        {"target_tokens": -5},
        {"target_tokens": float("nan")},
        {"target_tokens": 5, "variant": "min"},
        {"target_tokens": 5, "alpha": -1},
        {"target_tokens": 5, "tolerance": "wide"},
    ],
)
def test_a_malformed_target_is_refused(spec: dict[str, Any]) -> None:
    with pytest.raises(VerifierError) as caught:
        target(5, **spec)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("length", "value"),
    [(1, 0.0), (80, 0.0), (85, -0.25), (90, -0.5), (100, -1.0), (150, -1.0)],
)
def test_overlong(length: int, value: float) -> None:
    part = overlong(length, max_tokens=100)
    assert part.value == pytest.approx(value)
    assert part.score == pytest.approx(1 + value)


@given(st.integers(0, 300), st.integers(1, 200), st.data())
def test_the_overlong_penalty_equals_the_learners(
    length: int, limit: int, data: st.DataObject
) -> None:
    import torch

    from assay.learn.rewards import overlong_penalty

    buffer = data.draw(st.integers(1, limit))
    expected = float(overlong_penalty(torch.tensor([length + 1]), limit, buffer)[0])
    found = overlong(length + 1, max_tokens=limit, buffer=buffer).value
    assert found == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("buffer", [0, 101, -1, "a", True])
def test_a_buffer_beyond_the_limit_is_refused(buffer: Any) -> None:
    with pytest.raises(VerifierError, match="buffer"):
        overlong(5, max_tokens=100, buffer=buffer)


RIGHT, WRONG, UNKNOWN = Part(1.0), Part(0.0), Part.not_judged("timeout", "killed")


def values(parts: list[Part]) -> list[float | None]:
    return [part.value for part in parts]


def test_kimi_by_hand() -> None:
    parts = judge_kimi_length(
        Problem("p", "q"), group(10, 30, 20, 10, 30), [RIGHT, RIGHT, RIGHT, WRONG, WRONG]
    )
    assert values(parts) == [0.5, -0.5, 0.0, 0.0, -0.5]


def test_kimi_of_equal_lengths_is_zero() -> None:
    parts = judge_kimi_length(Problem("p", "q"), group(7, 7), [RIGHT, WRONG])
    assert values(parts) == [0.0, 0.0]
    assert values(judge_kimi_length(Problem("p", "q"), group(7), [RIGHT])) == [0.0]


def test_siblings_not_judged_set_no_bounds() -> None:
    with_it = judge_kimi_length(Problem("p", "q"), group(1000, 10, 20), [UNKNOWN, RIGHT, RIGHT])
    assert values(with_it) == [None, 0.5, -0.5]
    assert with_it[0].reason == "unavailable"
    none = judge_kimi_length(Problem("p", "q"), group(1, 2), [UNKNOWN, UNKNOWN])
    assert values(none) == [None, None]


def test_characters_where_a_sibling_has_no_tokens() -> None:
    completions = (of_length(10, "abcdef"), Completion.from_text("abc"))
    both = Group(Problem("p", "q"), Prompt("q", np.zeros(1, np.int32)), completions)
    assert values(judge_kimi_length(both.problem, both, [RIGHT, RIGHT])) == [-0.5, 0.5]


SIBLINGS = st.lists(
    st.tuples(st.integers(1, 5000), st.sampled_from([RIGHT, WRONG, UNKNOWN])),
    min_size=1,
    max_size=9,
)


@given(SIBLINGS)
def test_kimi_against_a_loop(siblings: list[tuple[int, Part]]) -> None:
    lengths, given_parts = [length for length, _ in siblings], [part for _, part in siblings]
    found = judge_kimi_length(Problem("p", "q"), group(*lengths), given_parts)
    judged = [length for length, part in siblings if part.value is not None]
    for (length, part), mine in zip(siblings, found, strict=True):
        if part.value is None:
            assert mine.value is None
            continue
        value = 0.0
        if max(judged) > min(judged):
            value = 0.5 - (length - min(judged)) / (max(judged) - min(judged))
        if part is WRONG:
            value = min(0.0, value)
        assert mine.value == pytest.approx(value, abs=1e-12)
        assert KIMI_LENGTH.bounds is not None
        assert KIMI_LENGTH.bounds[0] <= mine.value <= KIMI_LENGTH.bounds[1]


def test_partial_credit_is_no_pass_for_kimi() -> None:
    parts = [Part(0.9), Part(1.0), Part(0.9, passed=True)]
    found = judge_kimi_length(Problem("p", "q"), group(10, 30, 10), parts)
    assert values(found) == [0.0, -0.5, 0.5]


def test_length_if_correct_is_the_papers_product() -> None:
    spec = {"target_tokens": 100, "variant": "max", "alpha": 0.01}
    siblings = group(100, 60, 200, 60)
    parts = [RIGHT, RIGHT, RIGHT, WRONG]
    found = judge_length_if_correct(Problem("p", "q", spec), siblings, parts)
    terms = parse_expression("math*1.0 + length_if_correct*1.0")
    rewards = [
        sum(
            (term.weight or 0.0) * (part.value or 0.0)
            for term, part in zip(terms, pair, strict=True)
        )
        for pair in zip(parts, found, strict=True)
    ]
    assert rewards == pytest.approx([0.5, 0.9, 0.0, 0.0])
    unknown = judge_length_if_correct(Problem("p", "q", spec), group(100), [UNKNOWN])
    assert values(unknown) == [None]


@pytest.mark.parametrize("verifier", [LENGTH_TARGET, OVERLONG], ids=lambda verifier: verifier.name)
def test_known_errors(verifier: Any) -> None:
    for known in verifier.known_errors:
        part = verifier.judge(Problem("p", "q", known.spec), Completion.from_text(known.completion))
        passed = part.score >= 1.0 if part.passed is None else part.passed
        assert ("passed" if passed else "failed") == known.says != known.should_say


@pytest.mark.parametrize("verifier", [LENGTH_TARGET, OVERLONG, KIMI_LENGTH, LENGTH_IF_CORRECT])
def test_no_length_verifier_outweighs_correctness(verifier: Any) -> None:
    low, high = verifier.bounds
    assert verifier.weight * (high - low) < 1.0
