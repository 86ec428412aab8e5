"""Questions of policy: each option, both ways."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from assay.errors import VerifierError
from assay.verify.answers.equality import equivalent
from assay.verify.answers.math_answer import MATH
from assay.verify.answers.math_policy import DEFAULT, OPTIONS, Policy, read_policy
from assay.verify.base import ANSWER


def test_an_option_that_is_not_set_is_the_policys_own() -> None:
    assert {option.name: option.default for option in OPTIONS} == asdict(DEFAULT)


@pytest.mark.parametrize(
    ("gold", "text", "accepting", "refusing"),
    [
        ("10%", "0.1", {"percent": "either"}, {"percent": "number"}),
        ("10%", "10", {"percent": "either"}, {"percent": "fraction"}),
        ("20", "20%", {"percent": "number"}, {"percent": "fraction"}),
        ("5 cm", "5", {"units": "optional"}, {"units": "required"}),
        (r"12\pi \text{ cm}^2", r"12\pi", {"units": "optional"}, {"units": "required"}),
        ("1, 2", "2, 1", {"ordered": False}, {"ordered": True}),
        ("3.14", "3.14159", {"rounding": "gold"}, {"rounding": "exact"}),
        ("100", "100.5", {"tolerance": 0.01}, {"tolerance": 0.001}),
        ("Paris", "paris", {"case": False}, {"case": True}),
        ("1234.5", "1.234,5", {"european_numbers": "always"}, {"european_numbers": "auto"}),
        ("1000.99", "1000,99", {"european_numbers": "auto"}, {"european_numbers": "never"}),
        ("5", "2+3", {"unevaluated": True}, {"unevaluated": False}),
    ],
)
def test_an_option_decides_the_verdict(
    gold: str, text: str, accepting: dict[str, Any], refusing: dict[str, Any]
) -> None:
    assert equivalent(gold, text, Policy(**accepting))
    assert not equivalent(gold, text, Policy(**refusing))


@pytest.mark.parametrize(
    ("gold", "text", "options"),
    [
        ("5 cm", "5 kg", {"units": "optional"}),
        ("0", "0.001", {"tolerance": 0.1}),
        ("3.14", "3.15", {"rounding": "gold"}),
        ("5", "2+4", {"unevaluated": True}),
        ("2A", "2a", {"case": False}),
    ],
)
def test_answers_that_no_option_accepts(gold: str, text: str, options: dict[str, Any]) -> None:
    assert not equivalent(gold, text, Policy(**options))


@pytest.mark.parametrize(
    "spec",
    [
        {"percent": "maybe"},
        {"units": True},
        {"ordered": "yes"},
        {"tolerance": 0.5},
        {"tolerance": True},
        {"rounding": 2},
        {"fallback": "guess"},
        {"extra_text": 1},
        {"european_numbers": None},
    ],
)
def test_a_malformed_option_is_an_error_that_names_it(spec: dict[str, Any]) -> None:
    with pytest.raises(VerifierError, match=f"spec.{next(iter(spec))}"):
        read_policy(spec)


def test_every_option_is_a_field_with_its_default() -> None:
    assert read_policy({"answer": "5"}) is DEFAULT
    assert [field.name for field in MATH.fields] == ["answer", *(field.name for field in OPTIONS)]
    for field in OPTIONS:
        assert field.check is not None and field.check(field.default)
        assert field.default == getattr(DEFAULT, field.name)


@pytest.mark.parametrize("answer", ["5", 5, 0.5, ["5", 6], ("5",)])
def test_answers(answer: Any) -> None:
    assert ANSWER.check is not None and ANSWER.check(answer)


@pytest.mark.parametrize("answer", [None, "", " ", [], [None], True, {"a": 1}])
def test_what_is_no_answer(answer: Any) -> None:
    assert ANSWER.check is not None and not ANSWER.check(answer)


@pytest.mark.parametrize(("gold", "answer"), [("10/3", "3.333333"), (r"\pi", "3.14159265")])
def test_a_tolerance_of_zero_is_exact(gold: str, answer: str) -> None:
    assert equivalent(gold, answer)
    assert not equivalent(gold, answer, Policy(tolerance=0.0))


@pytest.mark.parametrize(
    ("gold", "answer"), [("10/3", "20/6"), (r"0.5\pi", r"\frac{\pi}{2}"), ("0.1x", r"\frac{x}{10}")]
)
def test_exact_decimals_stay_equal(gold: str, answer: str) -> None:
    assert equivalent(gold, answer, Policy(tolerance=0.0))


def test_a_tolerance_holds_for_formulas_too() -> None:
    assert equivalent(r"\sqrt{2}", "1.42", Policy(tolerance=0.01))
    assert not equivalent(r"\sqrt{2}", "1.42", Policy(tolerance=0.001))
