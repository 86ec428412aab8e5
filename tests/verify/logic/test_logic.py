"""Formulas: how they are read, when they are equivalent, and what follows from premises."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from growth import LINEAR, growth
from hypothesis import given
from hypothesis import strategies as st

from assay.errors import VerifierError
from assay.types import Completion, Problem, ThinkFormat
from assay.verify.base import Part
from assay.verify.logic.formulas import Formula, NotAFormula, parse_formula
from assay.verify.logic.solver import Unknown, entails, equivalent, is_normal, satisfiable
from assay.verify.logic.verifiers import find_label, judge_boolean, judge_entailment


def boolean(text: str, formula: Any, **spec: Any) -> Part:
    completion = Completion.from_text(text, think=ThinkFormat("free"))
    return judge_boolean(Problem("p", "q", {"formula": formula, **spec}), completion)


def entailment(text: str, **spec: Any) -> Part:
    completion = Completion.from_text(text, think=ThinkFormat("free"))
    return judge_entailment(Problem("p", "q", spec), completion)


def truth(formula: Formula, values: dict[str, bool]) -> bool:
    """The obvious evaluation, against which the truth tables are held."""
    if formula.kind == "atom":
        return values[formula.name]
    if formula.kind == "constant":
        return formula.name == "true"
    parts = [truth(part, values) for part in formula.parts]
    return {
        "not": lambda: not parts[0],
        "and": lambda: all(parts),
        "or": lambda: any(parts),
        "xor": lambda: parts[0] != parts[1],
        "implies": lambda: not parts[0] or parts[1],
        "iff": lambda: parts[0] == parts[1],
    }[formula.kind]()


formulas = st.recursive(
    st.sampled_from(["A", "B", "C", "true", "false"]),
    lambda inner: st.one_of(
        inner.map(lambda f: f"~{f}"),
        st.tuples(inner, st.sampled_from(["&", "|", "->", "<->", "xor"]), inner).map(
            lambda t: f"({t[0]} {t[1]} {t[2]})"
        ),
    ),
    max_leaves=8,
)


@given(formulas, formulas)
def test_tables_agree_with_evaluation(one: str, other: str) -> None:
    left, right = parse_formula(one), parse_formula(other)
    rows = [
        dict(zip("ABC", row, strict=True)) for row in itertools.product([False, True], repeat=3)
    ]
    assert equivalent(left, right) == all(truth(left, row) == truth(right, row) for row in rows)
    assert satisfiable([left]) == any(truth(left, row) for row in rows)
    assert entails([left], right) == all(truth(right, row) for row in rows if truth(left, row))


@given(formulas)
def test_z3_agrees_with_tables(text: str) -> None:
    wide = "(" + " & ".join(f"x{n}" for n in range(20)) + ") & "
    assert satisfiable([parse_formula(wide + text)]) == satisfiable([parse_formula(text)])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("A -> B -> C", "A -> (B -> C)"),
        ("~A & B", "(~A) & B"),
        ("A | B & C", "A | (B & C)"),
        ("A -> B | C", "A -> (B | C)"),
        ("A' + B*C", r"\neg A \lor (B \land C)"),
        (r"\overline{A \cdot B}", "not A or not B"),
        (r"$\left( A \Rightarrow B \right)$", "A → B"),
        ("not (A and B)", "¬(A ∧ B)"),
        ("A <=> B", "A ≡ B"),
        ("A /\\ B", "A && B"),
        ("A \\/ B", "A || B"),
        ("forall x, P(x) -> Q(x)", "∀x (P(x) → Q(x))"),
        ("∀x P(x) → Q(a)", "(∀x P(x)) → Q(a)"),
        ("∃xP(x)", "exists y P(y)"),
        ("a != b", "¬(a = b)"),
    ],
)
def test_spellings(one: str, other: str) -> None:
    assert equivalent(parse_formula(one), parse_formula(other))


@pytest.mark.parametrize("text", ["", "()", "A B", "A &", "(A", "A)", "∀ P", "A @ B", "\\frac{A}{B}", "P(x", "P()", "~" * 100 + "A", "A" * 5000])  # fmt: skip
def test_no_formulas(text: str) -> None:
    with pytest.raises(NotAFormula):
        parse_formula(text)


@given(st.text(alphabet="ABx()&|~->∀∃=,.' \\{}", max_size=40))
def test_any_text_is_judged(text: str) -> None:
    assert boolean(text, "A -> B").value in (0, 1)


def test_syllogisms() -> None:
    premises = [parse_formula(text) for text in ("∀x (Man(x) → Mortal(x))", "Man(socrates)")]
    assert entails(premises, parse_formula("Mortal(socrates)"))
    assert entails(premises, parse_formula("∃x Mortal(x)"))
    assert not entails(premises, parse_formula("∀x Mortal(x)"))
    assert entails([parse_formula("a = b"), parse_formula("P(a)")], parse_formula("P(b)"))
    assert entails([parse_formula("∃x ∀y R(x, y)")], parse_formula("∀y ∃x R(x, y)"))
    assert not entails([parse_formula("∀y ∃x R(x, y)")], parse_formula("∃x ∀y R(x, y)"))


def test_computed_labels() -> None:
    premises = ["∀x (Cat(x) ⊕ Dog(x))", "∀x (Dog(x) → Bark(x))", "¬Cat(rex)"]
    for conclusion, label in (
        ("Bark(rex)", "True"),
        ("¬Bark(rex)", "False"),
        ("Bark(tom)", "Uncertain"),
    ):
        for said in ("True", "False", "Uncertain"):
            found = entailment(said, premises=premises, conclusion=conclusion)
            assert found.value == (said == label)


def test_formulas_that_follow() -> None:
    spec = {"premises": ["A | B", "~A", "B -> C"], "target": "C"}
    assert entailment(r"\boxed{C}", **spec).value == 1
    assert entailment("B & C", **spec).value == 1
    for text in (
        "A",
        "B",
        "C | A",
        "A | ~A",
        "false",
        "true",
        "C or A",
        "C, B",
        r"\boxed{C} or \boxed{A}",
    ):
        assert entailment(text, **spec).value == 0, text


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("True", "True"),
        ("**False**", "False"),
        (r"\boxed{\text{Uncertain}}", "Uncertain"),
        ("The answer is true because it is not false.", "True"),
        ("A long story.\nTherefore, the statement is unknown.", "Uncertain"),
        ("True or False", None),
        ("The answer is not true", None),
        ("True\nFalse", "False"),
        ("neither true nor false", None),
        ("", None),
    ],
)
def test_labels(text: str, label: str | None) -> None:
    assert find_label(text) == label


def test_normal_forms() -> None:
    for text, forms in (("A & (B | ~C)", {"nnf", "cnf"}), ("A | B & C", {"nnf", "dnf"}), ("A & B", {"nnf", "cnf", "dnf"}), ("~(A & B)", set()), ("A -> B", set()), ("A & (B | C & D)", {"nnf"})):  # fmt: skip
        assert {
            form for form in ("nnf", "cnf", "dnf") if is_normal(parse_formula(text), form)
        } == forms


def test_detail_does_not_tell_the_answer() -> None:
    assert "True" not in entailment("False", answer="True").detail
    verdict = entailment("B", premises=["A", "A -> Secret", "B"], target="Secret")
    assert "Secret" not in verdict.detail


def test_without_an_answer_a_completion_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    def give_up(*_: Any) -> bool:
        raise Unknown("limit")

    monkeypatch.setattr("assay.verify.logic.verifiers.equivalent", give_up)
    verdict = boolean("A", "A & A")
    assert verdict.value is None and verdict.reason == "timeout"


def test_real_premises_parse_and_agree(shared_data: Path) -> None:
    lines = (shared_data / "logic" / "folio_train.jsonl").read_text(encoding="utf-8").splitlines()
    texts = [text for line in lines for text in json.loads(line)["premises-FOL"]]
    parsed = 0
    for text in texts:
        try:
            parse_formula(text)
            parsed += 1
        except NotAFormula:  # names of two words, parentheses that do not match
            pass
    assert parsed / len(texts) > 0.985


@pytest.mark.parametrize("text", ["(" * 3900, "~" * 3900, "A & " * 900, "A <-> (" * 500, "forall x " * 400, "<answer>" * 9000])  # fmt: skip
def test_work_grows_with_the_text(text: str) -> None:
    def judge(size: int) -> None:
        assert boolean(text[:size], "A -> B").value == 0
        assert entailment(text[:size], premises=["A"], target="A").value == 0

    assert growth(judge, len(text)) < LINEAR


@pytest.mark.parametrize(
    "spec",
    [{"answer": "perhaps"}, {}, {"premises": "A", "conclusion": "A"}, {"premises": ["A &"], "conclusion": "A"}, {"premises": ["A", "~A"], "target": "B"}, {"premises": ["A", "~A"], "conclusion": "B"}],
)  # fmt: skip
def test_malformed_entailments(spec: dict[str, Any]) -> None:
    with pytest.raises(VerifierError, match="accepted") as caught:
        entailment("True", **spec)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("formula", [None, "", "A &", "forall x P(x)", 3])
def test_malformed_formulas(formula: Any) -> None:
    with pytest.raises(VerifierError, match="accepted"):
        boolean("A", formula)
