"""Verifiers ``boolean_equivalence`` and ``entailment``, which decide by logic."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import Any

from assay.errors import VerifierError, message
from assay.host.fields import Field, choice, is_text, list_of, whole
from assay.types import Completion, Problem
from assay.verify.answers.commitment import bare, clipped, uncommented
from assay.verify.base import Limits, Part, Verifier, spec_check
from assay.verify.logic.countdown import marked_or_last
from assay.verify.logic.formulas import (
    MAX_FORMULA,
    Formula,
    NotAFormula,
    parse_formula,
    parse_letters,
)
from assay.verify.logic.labels import LABEL_OF, LABELS, find_label
from assay.verify.logic.solver import (
    MAX_TABLE,
    RLIMIT,
    Unknown,
    entails,
    equivalent,
    is_normal,
    num_connectives,
    satisfiable,
)

# Maximum number of connectives and quantifiers in a model's formula.
MAX_NODES = 400

_NAMED = re.compile(r"\A(?!.{0,60}(?:forall|exists))[A-Za-z][A-Za-z ]{0,60}[:：]\s*", re.IGNORECASE)
_SAID = re.compile(
    r"\A(?:(?:so|thus|hence|therefore|the|my|a|an|final|simplified|simplest|minimal|minimized|reduced"
    r"|equivalent|resulting|logical|boolean|propositional|formula|expression|form|version|result"
    r"|answer|it|this|cnf|dnf|nnf),?\s+){1,8}(?:is|becomes|simplifies\s+to|reduces\s+to)\b\s*[:：]?\s*",
    re.IGNORECASE,
)
# A text with a word and a sign for one connective is two formulas, such as "A & B and C".
_BOTH = [
    (re.compile(rf"\b{word}\b", re.IGNORECASE), re.compile(sign))
    for word, sign in (
        ("or", r"[|∨⋁+]|\\/|\\(?:lor|vee)(?![a-z])"),
        ("and", r"[&∧⋀*·]|/\\|\\(?:land|wedge|cdot)(?![a-z])"),
    )
]
_ASSIGNED = re.compile(r"(?<![<>!=:])=(?![>=])")
_CONTRADICTION = ("premises that contradict each other", "premises that can be true together")


def is_label(value: Any) -> bool:
    """Return whether a row's value names a label: True, False, Uncertain or a synonym."""
    return isinstance(value, str | bool) and str(value).strip().casefold() in LABEL_OF


_FORMULA = "a formula, as A & (B -> ~C), in ASCII, words, Unicode or LaTeX"
FORMULA = Field("formula", _FORMULA, needed=True, check=is_text, equates=True)
_FORM = "any, or the normal form that the answer must have: nnf, cnf, dnf"
FORM = choice("form", "any", "nnf", "cnf", "dnf", accepts=_FORM)
MAX_CONNECTIVES = Field(
    "max_connectives",
    "how many connectives the answer may have, a whole number",
    check=whole(0),
)
ANSWER = Field(
    "answer",
    f"the label: {', '.join(LABELS)} (also Unknown); absent: derived from premises and conclusion",
    check=is_label,
)
PREMISES = Field(
    "premises", "a list of formulas, as forall x (P(x) -> Q(x))", check=list_of(is_text, 100)
)
CONCLUSION = Field("conclusion", _FORMULA, check=is_text)
TARGET = Field(
    "target",
    "a formula: the completion must give a formula that follows from the premises and entails it",
    check=is_text,
)


def judge_boolean(problem: Problem, completion: Completion) -> Part:
    """Score 1 if the completion's formula is equivalent to the expected formula, else 0.

    Reads ``formula``, ``form`` and ``max_connectives`` from the spec. The completion's formula may
    add or omit variables that do not change the truth value. The case of variables counts only if
    two variables of the expected formula differ only in case.
    """
    gold, form, bound = read_boolean(problem)
    text = _committed_formula(completion)
    if text is None:
        return Part(0.0, detail="no formula, or several")
    # An answer can be "F = ..." or a chain of transformations, whose last formula counts.
    text = _ASSIGNED.split(text)[-1].strip()
    if any(word.search(text) and sign.search(text) for word, sign in _BOTH):
        detail = "words and signs for one connective: several formulas"
        return Part(0.0, extracted=text, detail=detail)
    formula, fault = _parsed(text, gold)
    if formula is not None:
        if not formula.is_propositional:
            fault = "not a propositional formula"
        elif form != "any" and not is_normal(formula, form):
            fault = f"not in {form}"
        elif bound is not None and num_connectives(formula) > bound:
            fault = "more connectives than allowed"
    if formula is None or fault:
        return Part(0.0, extracted=text, detail=fault)
    try:
        return Part(float(equivalent(gold, _spelled_as(gold, formula))), extracted=text)
    except Unknown as error:
        return Part.not_judged("timeout", f"{error}")


def read_boolean(problem: Problem) -> tuple[Formula, str, int | None]:
    """Return (formula, form, max_connectives) of a problem. Raises VerifierError."""
    where = f"problem {problem.id}: spec.formula"
    gold = _gold(FORMULA.read(problem), where)
    if not gold.is_propositional:
        raise VerifierError(message(where, "quantifiers, terms or =", "a propositional formula"))
    return gold, FORM.read(problem), MAX_CONNECTIVES.read(problem)


def judge_entailment(problem: Problem, completion: Completion) -> Part:
    """Score 1 if the completion's label or formula is correct, else 0.

    If the spec has a ``target``, the completion must give a formula. The premises must entail the
    formula, the formula alone must entail the target, and a tautology fails. If the spec has no
    ``target``, the completion must give a label. The correct label is ``answer``, or is derived
    from ``premises`` and ``conclusion``.
    """
    label, premises, goal = read_entailment(problem)
    try:
        if goal is not None and TARGET.read(problem) is not None:
            _check_consistent(tuple(premises), f"problem {problem.id}: spec.premises")
            return _judge_formula(completion, premises, goal)
        gold = label if goal is None else label_of(premises, goal)
    except Unknown as error:
        return Part.not_judged("timeout", f"{error}")
    found = find_label(uncommented(clipped(completion.answer_text)))
    detail = "" if found else "no label, or several"
    return Part(float(found == gold), extracted=found, detail=detail)


def read_entailment(problem: Problem) -> tuple[str | None, list[Formula], Formula | None]:
    """Return (label, premises, goal) of a problem.

    The goal of a proof is the target or the conclusion.

    If the row names a label, only the label is returned. Raises VerifierError.
    """
    where = f"problem {problem.id}: spec"
    answer, goal = ANSWER.read(problem), TARGET
    if TARGET.read(problem) is None:
        if answer is not None:
            return LABEL_OF[str(answer).strip().casefold()], [], None
        goal = CONCLUSION
        if goal.read(problem) is None:
            accepts = f"{', '.join(LABELS)}; else premises, and a conclusion or a target"
            raise VerifierError(message(f"{where}.answer", "missing", accepts))
    texts: Sequence[str] = replace(PREMISES, needed=True).read(problem)
    premises = [_gold(text, f"{where}.premises") for text in texts]
    return None, premises, _gold(goal.read(problem), f"{where}.{goal.name}")


def _judge_formula(completion: Completion, premises: Sequence[Formula], target: Formula) -> Part:
    text = _committed_formula(completion)
    if text is None:
        return Part(0.0, detail="no formula, or several")
    formula, fault = _parsed(text)
    if formula is None:
        return Part(0.0, extracted=text, detail=fault)
    try:
        if entails([], formula):
            fault = "a tautology carries no information"
        elif not entails(premises, formula):
            fault = "does not follow from the premises"
        elif not entails([formula], target):
            fault = "follows from the premises, but does not entail the target"
    except NotAFormula as error:
        fault = f"{error}"
    return Part(0.0 if fault else 1.0, extracted=text, detail=fault)


def label_of(premises: Sequence[Formula], conclusion: Formula) -> str:
    """Return "True" for a proved conclusion, "False" for a refuted one, else "Uncertain".

    Raises Unknown if z3 reaches its limit, and VerifierError if the premises contradict each other.
    """
    proved = entails(premises, conclusion)
    refuted = entails(premises, Formula("not", parts=(conclusion,)))
    if proved and refuted:
        raise VerifierError(message("spec.premises", *_CONTRADICTION))
    return "True" if proved else "False" if refuted else "Uncertain"


def _committed_formula(completion: Completion) -> str | None:
    found = marked_or_last(uncommented(clipped(completion.answer_text)))
    content = bare(found[0]) if len(found) == 1 else ""
    return bare(_SAID.sub("", _NAMED.sub("", content, count=1), count=1)) or None


def _parsed(text: str, gold: Formula | None = None) -> tuple[Formula | None, str]:
    """Parse a formula.

    Return (formula, "") for a valid formula, or (None, description of the fault).

    gold: the expected formula. If all variables of a formula are single letters, AB means A and B.
    """
    formula, fault = None, ""
    try:
        formula = parse_formula(text)
    except NotAFormula as error:
        fault = f"no formula: {error}"
    letters = frozenset(name.casefold() for name in gold.atoms) if gold else frozenset[str]()
    atoms = {name.casefold() for name in formula.atoms} if formula else None
    known = (
        atoms is not None and formula is not None and formula.is_propositional and atoms <= letters
    )
    if letters and not known and all(len(letter) == 1 for letter in letters):
        with suppress(NotAFormula):
            formula = parse_letters(text, letters)
    if formula is None:
        return None, fault
    if num_connectives(formula) > MAX_NODES:
        return None, f"more than {MAX_NODES} connectives"
    return formula, ""


def _spelled_as(gold: Formula, formula: Formula) -> Formula:
    """Return a formula with the case of variables changed to that in ``gold``, if unambiguous."""
    folded = {name.casefold(): name for name in gold.atoms}
    taken = {name.casefold() for name in formula.atoms}
    if len(folded) < len(gold.atoms) or len(taken) < len(formula.atoms):
        return formula
    return _renamed(formula, folded)


def _renamed(formula: Formula, names: Mapping[str, str]) -> Formula:
    name = formula.name
    if formula.kind == "atom":
        name = names.get(name.casefold(), name)
    return replace(formula, name=name, parts=tuple(_renamed(part, names) for part in formula.parts))


@lru_cache(maxsize=4096)
def _gold(text: str, where: str) -> Formula:
    try:
        return parse_formula(text)
    except NotAFormula as error:
        raise VerifierError(message(where, f"{text[:60]!r} ({error})", _FORMULA)) from error


@lru_cache(maxsize=256)
def _check_consistent(premises: tuple[Formula, ...], where: str) -> None:
    # If the premises contradict each other, every formula follows from them, so any completion
    # would pass.
    if not satisfiable(premises):
        raise VerifierError(message(where, *_CONTRADICTION))


_SIZES = f"formulas of at most {MAX_FORMULA} characters and {MAX_NODES} connectives"
_SHARED: Mapping[str, Any] = {
    "limits": Limits(memory_mib=4096),
    "text_only": True,
    "cached": True,
    "modules": ("assay.verify.answers",),
    "packages": ("z3-solver",),
    "extra": "logic",
}

BOOLEAN_EQUIVALENCE = Verifier(
    name="boolean_equivalence",
    version=3,
    judge=judge_boolean,
    check_spec=spec_check(read_boolean),
    domain="propositional formulas: equivalence, normal forms, simplification",
    fields=(FORMULA, FORM, MAX_CONNECTIVES),
    accepts="the formula in a box, in answer tags or after 'the answer is', else in the last line; "
    f"only the text after the last = counts; {_SIZES}; a truth table decides up to {MAX_TABLE} "
    "variables, and z3 decides more",
    **_SHARED,
)

ENTAILMENT = Verifier(
    name="entailment",
    version=3,
    judge=judge_entailment,
    check_spec=spec_check(read_entailment),
    domain="what follows from premises: a label (True, False, Uncertain), or a formula that "
    "follows",
    fields=(ANSWER, PREMISES, CONCLUSION, TARGET),
    accepts="a label or a formula in a box, in answer tags or after 'the answer is', else in the "
    f"last line; propositional or first-order with one sort, functions and equality; {_SIZES}; a "
    f"completion for which z3 needs more than {RLIMIT} resource units is not judged",
    **_SHARED,
)
