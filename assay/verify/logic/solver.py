"""Questions about formulas: truth tables where they are small, else z3.

z3 works under a limit that it counts itself, not under a clock, so that its answers repeat.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from assay.errors import VerifierError
from assay.host.imports import slow_import
from assay.verify.logic.formulas import Formula, LogicTerm, NotAFormula

MAX_TABLE = 16  # variables of a truth table
RLIMIT = 4_000_000  # z3's own units: some seconds

_BITS: Mapping[str, Callable[..., int]] = {
    "not": lambda part: ~part,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "implies": lambda left, right: ~left | right,
    "iff": lambda left, right: ~(left ^ right),
}
_INSTALL = "needs z3; install it with: pip install 'assay-rl[logic]'"


class Unknown(Exception):
    """z3 reached its limit without an answer."""


def satisfiable(formulas: Sequence[Formula]) -> bool:
    """Whether all formulas can be true together; raises Unknown and NotAFormula."""
    names = sorted({name for formula in formulas for name in formula.atoms})
    if len(names) <= MAX_TABLE and all(formula.is_propositional for formula in formulas):
        columns, everything = _columns(names)
        rows = everything
        for formula in formulas:
            rows &= _column(formula, columns, everything)
        return rows != 0
    return _z3_satisfiable(formulas)


def entails(premises: Sequence[Formula], conclusion: Formula) -> bool:
    """Whether the conclusion is true wherever all premises are; raises Unknown and NotAFormula."""
    return not satisfiable([*premises, Formula("not", parts=(conclusion,))])


def equivalent(one: Formula, other: Formula) -> bool:
    """Whether two formulas are true together and false together; raises Unknown and NotAFormula."""
    return not satisfiable([Formula("xor", parts=(one, other))])


def _columns(names: Sequence[str]) -> tuple[dict[str, int], int]:
    """Return each variable's column of the truth table, a bit a row, and the column of ones."""
    size = 1 << len(names)
    everything = (1 << size) - 1
    columns: dict[str, int] = {}
    for place, name in enumerate(names):
        block = 1 << place  # rows in which it keeps its value
        columns[name] = everything // ((1 << 2 * block) - 1) * (((1 << block) - 1) << block)
    return columns, everything


def _column(formula: Formula, columns: Mapping[str, int], everything: int) -> int:
    if formula.kind == "atom":
        return columns[formula.name]
    if formula.kind == "constant":
        return everything if formula.name == "true" else 0
    parts = [_column(part, columns, everything) for part in formula.parts]
    return everything & _BITS[formula.kind](*parts)


def _z3_satisfiable(formulas: Sequence[Formula]) -> bool:
    with slow_import():
        try:
            import z3
        except ImportError as error:
            raise VerifierError(_INSTALL) from error
    api: Any = z3
    context = api.Context()
    translation = _Translation(api, context)
    solver = api.Solver(ctx=context)
    solver.set("rlimit", RLIMIT)
    for formula in formulas:
        solver.add(translation.formula(formula, {}))
    answer = solver.check()
    if answer == api.unknown:
        raise Unknown(f"z3 found no answer within {RLIMIT} units ({solver.reason_unknown()})")
    return answer == api.sat


class _Translation:
    """Formulas as z3 sees them: one sort of things, and predicates over it."""

    def __init__(self, z3: Any, context: Any) -> None:
        self.z3 = z3
        self.truth = z3.BoolSort(context)
        self.sort = z3.DeclareSort("thing", context)
        self.connectives = {
            **{"not": z3.Not, "and": z3.And, "or": z3.Or, "xor": z3.Xor, "implies": z3.Implies},
            "iff": operator.eq,
        }

    def formula(self, formula: Formula, bound: Mapping[str, Any]) -> Any:
        kind, name = formula.kind, formula.name
        if kind == "constant":
            return self.z3.BoolVal(name == "true", ctx=self.truth.ctx)
        if kind == "atom":
            if name in bound:
                raise NotAFormula("a quantified variable that stands as a formula")
            return self._apply(f"is {name}", formula.terms, self.truth, bound)
        if kind == "equal":
            left, right = (self._term(term, bound) for term in formula.terms)
            return left == right
        if kind in ("forall", "exists"):
            variable = self.z3.Const(f"bound {name} {len(bound)}", self.sort)
            body = self.formula(formula.parts[0], {**bound, name: variable})
            return (self.z3.ForAll if kind == "forall" else self.z3.Exists)([variable], body)
        return self.connectives[kind](*(self.formula(part, bound) for part in formula.parts))

    def _term(self, term: LogicTerm, bound: Mapping[str, Any]) -> Any:
        if term.name in bound and not term.arguments:
            return bound[term.name]
        return self._apply(f"the {term.name}", term.arguments, self.sort, bound)

    def _apply(
        self, name: str, terms: Sequence[LogicTerm], sort: Any, bound: Mapping[str, Any]
    ) -> Any:
        arguments = [self._term(term, bound) for term in terms]
        if not arguments:
            return self.z3.Const(name, sort)
        domain = [self.sort] * len(arguments)
        return self.z3.Function(f"{name}/{len(arguments)}", *domain, sort)(*arguments)


def is_normal(formula: Formula, form: str) -> bool:
    """Whether a formula has a normal form: ``nnf``, ``cnf`` or ``dnf``."""
    for each in formula.walk():
        if each.kind in ("implies", "iff", "xor"):
            return False
        if each.kind == "not" and each.parts[0].kind not in ("atom", "equal", "constant"):
            return False
    outer, inner = ("and", "or") if form == "cnf" else ("or", "and")
    return form == "nnf" or all(
        part.kind != outer for each in formula.walk() if each.kind == inner for part in each.walk()
    )


def num_connectives(formula: Formula) -> int:
    """Return how many connectives and quantifiers a formula has."""
    return sum(each.kind not in ("atom", "equal", "constant") for each in formula.walk())
