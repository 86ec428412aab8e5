"""Verifier ``chemistry``: compare a formula with the expected one, or check a balanced equation."""

from __future__ import annotations

import math
import re
from typing import cast

from assay.errors import VerifierError, message
from assay.host.fields import Field, flag, list_of, listed
from assay.types import Completion, Problem
from assay.verify.answers.commitment import bare, unwrapped
from assay.verify.answers.short_answers import place
from assay.verify.base import Part, Verifier, spec_check
from assay.verify.chemistry.formulas import (
    BadFormula,
    Side,
    is_balanced,
    parse_equation,
    parse_formula,
    plain,
)

Equation = tuple[Side, Side]
_PARTS: list[str] = ["parses", "species", "balanced", "smallest"]
_BULLET = re.compile(r"^\s*(?:[-*>]|\d+[.)])\s+")


def judge_chemistry(problem: Problem, completion: Completion) -> Part:
    """Score 1 for an expected formula, or for a balanced equation of the expected species.

    Reads ``answer`` and ``smallest`` from the spec.
    """
    golds = read_golds(problem)
    found = place(completion, "auto")
    if found is None:
        return Part(0.0, detail="no answer", components={"parses": 0.0})
    if isinstance(golds[0], str):
        return _of_formula([str(gold) for gold in golds], found)
    return _of_equation(cast("list[Equation]", golds), found, SMALLEST.read(problem))


def _of_formula(golds: list[str], found: str) -> Part:
    text = _line(found)
    try:
        species = parse_formula(plain(text))
    except BadFormula as error:
        return Part(0.0, extracted=text, detail=f"{error}", components={"parses": 0.0})
    right = species in {parse_formula(plain(gold)) for gold in golds}
    detail = "" if right else "another composition or charge"
    return Part(float(right), extracted=text, detail=detail, components={"parses": 1.0})


def _of_equation(golds: list[Equation], found: str, smallest: bool) -> Part:
    text = _line(found)
    try:
        left, right = parse_equation(text)
    except BadFormula as error:
        components = dict.fromkeys(_PARTS, 0.0)
        return Part(0.0, extracted=text, detail=f"{error}", components=components)
    # Some species balance in several ways, of which only the accepted equations' proportions are a
    # real reaction.
    matching = [gold for gold in golds if _has_species((left, right), gold)]
    same, agrees = bool(matching), any(_is_multiple((left, right), gold) for gold in matching)
    balanced, whole = is_balanced(left, right), _is_smallest(left, right)
    passed = agrees and balanced and (whole or not smallest)
    faults = {
        "other species": not same,
        "not balanced": not balanced,
        "other proportions": same and balanced and not agrees,
        "coefficients that are not the smallest whole numbers": smallest and not whole,
    }
    return Part(
        float(passed),
        extracted=text,
        detail="; ".join(name for name, is_fault in faults.items() if is_fault),
        components=dict(
            zip(_PARTS, (1.0, float(same), float(balanced), float(whole)), strict=True)
        ),
    )


def _has_species(found: Equation, gold: Equation) -> bool:
    return all(one.keys() == two.keys() for one, two in zip(found, gold, strict=True))


def _is_multiple(found: Equation, gold: Equation) -> bool:
    """Whether the coefficients of the found equation are the expected coefficients times one
    factor."""
    sides = zip(found, gold, strict=True)
    return len({one[each] / two[each] for one, two in sides for each in two}) == 1


def _is_smallest(left: Side, right: Side) -> bool:
    amounts = [*left.values(), *right.values()]
    return all(one.denominator == 1 for one in amounts) and math.gcd(*map(int, amounts)) == 1


def _line(found: str) -> str:
    """Return the last line of an answer without its wrapping and without words before a colon."""
    lines = [line for line in found.splitlines() if line.strip(" `$")]
    text = _BULLET.sub("", lines[-1]) if lines else found
    # A colon ends an introduction such as "The balanced equation:".
    text = text.rpartition(":")[2].strip()
    text = unwrapped(bare(text)).strip("`* ")
    return text.removesuffix(".").strip()


def read_golds(problem: Problem) -> list[str | Equation]:
    """Return the accepted formulas as text, or the accepted equations.

    Raises VerifierError for an answer that is neither formula nor equation, and for an equation
    that is not balanced.
    """
    where = f"problem {problem.id}: spec.answer"
    golds: list[str | Equation] = []
    for gold in map(str, listed(ANSWER.read(problem))):
        try:
            if "->" not in plain(gold):
                parse_formula(plain(gold))
                golds.append(gold)
                continue
            left, right = parse_equation(gold)
        except BadFormula as error:
            found = f"{gold!r:.80} ({error})"
            raise VerifierError(message(where, found, "a formula or an equation")) from error
        if not is_balanced(left, right):
            raise VerifierError(message(where, f"{gold!r:.80}", "a balanced equation"))
        golds.append((left, right))
    if len({isinstance(gold, str) for gold in golds}) != 1:
        raise VerifierError(message(where, "both kinds", "formulas only, or equations only"))
    return golds


def _is_answer(value: object) -> bool:
    one = isinstance(value, str) and bool(value.strip())
    many = list_of(lambda each: isinstance(each, str) and bool(each.strip()), 100, least=1)
    return one or many(value)


ANSWER = Field(
    "answer",
    "a formula such as C6H12O6 or SO4^2-, or a balanced equation such as 2 H2 + O2 -> 2 H2O, or a "
    "list of accepted ones. An equation has the proportions of an accepted one",
    needed=True,
    check=_is_answer,
)
SMALLEST = flag(
    "smallest", "true: the coefficients of an equation are the smallest whole numbers", True
)
CHEMISTRY = Verifier(
    name="chemistry",
    version=1,
    judge=judge_chemistry,
    domain="chemical formulas, and balanced equations of given species",
    fields=(ANSWER, SMALLEST),
    accepts="the formula or equation in the last box, answer tag or 'the answer is', else in the "
    "last line, in plain text (H2O, SO4^2-), Unicode (H₂O, SO₄²⁻) or LaTeX (\\ce{H2O}, "
    "\\mathrm{H_2O}). States of matter and the kind of arrow do not matter. Formulas are equal if "
    "their atoms and charges are",
    partial_credit="none. The components parses, species, balanced and smallest are separate",
    text_only=True,
    cached=True,
    modules=("assay.verify.answers",),
    check_spec=spec_check(read_golds),
)
