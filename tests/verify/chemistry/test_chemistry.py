"""Formulas are equal by atoms and charges, and equations are checked for balance."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.errors import VerifierError
from assay.types import Completion, Problem
from assay.verify.base import Part
from assay.verify.chemistry.chemistry import CHEMISTRY, judge_chemistry
from assay.verify.chemistry.formulas import (
    ELEMENTS,
    BadFormula,
    Species,
    is_balanced,
    parse_equation,
    parse_formula,
    plain,
)
from assay.verify.redteam.suite import shipped_suites
from assay.verify.selftest import labelled_pair, labelled_rows

WATER = "2 H2 + O2 -> 2 H2O"


def judge(text: str, answer: Any = WATER, **spec: Any) -> Part:
    problem = Problem("p", "q", {"answer": answer, **spec})
    return judge_chemistry(problem, Completion.from_text(text))


def formula(text: str) -> tuple[dict[str, int], int]:
    species = parse_formula(plain(text))
    return dict(species.atoms), species.charge


@pytest.mark.parametrize("row", [*labelled_rows("chemistry")], ids=lambda row: row["id"])
def test_labelled_rows_have_the_expected_verdicts(row: dict[str, Any]) -> None:
    part = judge_chemistry(*labelled_pair("chemistry", row))
    assert ("passed" if part.accepted else "failed") == row["expected"], part


@pytest.mark.parametrize("error", CHEMISTRY.known_errors, ids=lambda error: error.what[:40])
def test_known_errors_are_as_described(error: Any) -> None:
    part = judge_chemistry(Problem("p", "q", error.spec), Completion.from_text(error.completion))
    assert ("passed" if part.accepted else "failed") == error.says


def test_no_attack_passes_and_every_control_does() -> None:
    suite = shipped_suites()["chemistry"]
    cases = [case for problem in suite.problems for case in suite.cases(problem)]
    wrong = [
        (case.attack, case.completion[:80])
        for case in cases
        if judge_chemistry(case.problem, Completion.from_text(case.completion)).accepted
        is not case.honest
    ]
    assert not wrong and sum(not case.honest for case in cases) >= 40


@pytest.mark.parametrize(
    ("text", "atoms", "charge"),
    [
        ("Ca3(PO4)2", {"Ca": 3, "P": 2, "O": 8}, 0),
        ("CuSO4·5H2O", {"Cu": 1, "S": 1, "O": 9, "H": 10}, 0),
        ("[Fe(CN)6]^3-", {"Fe": 1, "C": 6, "N": 6}, -3),
        ("NH₄⁺", {"N": 1, "H": 4}, 1),
        (r"\ce{Cr2O7^{2-}}", {"Cr": 2, "O": 7}, -2),
        ("CO", {"C": 1, "O": 1}, 0),
        ("Co", {"Co": 1}, 0),
        ("Ca(2+)", {"Ca": 1}, 2),
        ("e^-", {}, -1),
    ],
)
def test_formulas(text: str, atoms: dict[str, int], charge: int) -> None:
    assert formula(text) == (atoms, charge)


@pytest.mark.parametrize(
    "text", ["", "Xx2", "H02", "(H2", "H2)", "()2", "2H2O", "H-O", "H99999", "a"]
)
def test_other_texts_are_no_formulas(text: str) -> None:
    with pytest.raises(BadFormula):
        formula(text)


def test_components_say_what_is_wrong() -> None:
    names = ("parses", "species", "balanced", "smallest")
    for text, said in {
        WATER: (1, 1, 1, 1),
        "H2 + O2 -> H2O": (1, 1, 0, 1),
        "4 H2 + 2 O2 -> 4 H2O": (1, 1, 1, 0),
        "H2 + O2 -> H2O2": (1, 0, 1, 1),
        "water": (0, 0, 0, 0),
    }.items():
        assert tuple(judge(text).components[name] for name in names) == said, text


def test_charges_must_balance_too() -> None:
    left, right = parse_equation("Fe^3+ + e^- -> Fe^2+")
    assert is_balanced(left, right)
    assert not is_balanced(*parse_equation("Fe^3+ -> Fe^2+"))
    assert Species((), -1) in left


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("H2 + O2 -> H2O", "spec.answer: found 'H2 + O2 -> H2O'; accepted: a balanced equation"),
        ("glucose", "spec.answer: found 'glucose' ("),
        (["H2O", WATER], "spec.answer: found both kinds"),
        ("", "spec.answer"),
        ([], "spec.answer"),
    ],
)
def test_a_malformed_answer_is_the_rows_fault(answer: Any, why: str) -> None:
    with pytest.raises(VerifierError) as caught:
        judge("H2O", answer)
    assert why in str(caught.value)


SYMBOL = st.sampled_from(sorted(ELEMENTS))
COUNTS = st.dictionaries(SYMBOL, st.integers(1, 99), min_size=1, max_size=5)


@given(COUNTS, st.integers(-4, 4))
def test_a_written_formula_is_read(counts: dict[str, int], charge: int) -> None:
    text = "".join(f"{name}{count}" for name, count in counts.items())
    text += f"^{abs(charge)}{'+' if charge > 0 else '-'}" if charge else ""
    assert formula(text) == (dict(sorted(counts.items())), charge)


@given(st.text(alphabet="HOCNae2+-^()[]{}_\\>=.* 0", max_size=30))
def test_no_text_breaks_the_parser(text: str) -> None:
    part = judge(text)
    assert part.value in (0.0, 1.0) and part.components.get("parses", 1.0) >= part.value
