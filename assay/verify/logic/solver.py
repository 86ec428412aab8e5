"""Decide satisfiability and entailment by truth tables for few variables, else by z3."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from assay.errors import VerifierError
from assay.host.imports import slow_import
from assay.verify.logic.formulas import Formula, LogicTerm, NotAFormula

# Maximum number of variables of a truth table.
MAX_TABLE = 16
# Limit of z3's own resource units, which takes some seconds to reach.
# A limit in z3's resource units gives the same verdict on any machine, unlike a limit of wall-clock
# time.
RLIMIT = 4_000_000

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
    """Raised if z3 reaches its resource limit without a result."""


def satisfiable(formulas: Sequence[Formula]) -> bool:
    """Return whether all formulas can be true together. Raises Unknown and NotAFormula."""
    names = sorted({name for formula in formulas for name in formula.atoms})
    # A column of a truth table is one large integer, with one bit for each row.
    # With such columns, a connective is a single operation for all rows of the truth table.
    # For few variables, the table is faster than z3 and works without z3.
    if len(names) <= MAX_TABLE and all(formula.is_propositional for formula in formulas):
        columns, everything = _columns(names)
        rows = everything
        for formula in formulas:
            rows &= _column(formula, columns, everything)
        return rows != 0
    return _z3_satisfiable(formulas)


def entails(premises: Sequence[Formula], conclusion: Formula) -> bool:
    """Return whether the premises imply the conclusion. Raises Unknown and NotAFormula."""
    return not satisfiable([*premises, Formula("not", parts=(conclusion,))])


def equivalent(one: Formula, other: Formula) -> bool:
    """Return whether two formulas always have the same truth value.

    Raises Unknown and NotAFormula.
    """
    return not satisfiable([Formula("xor", parts=(one, other))])


def _columns(names: Sequence[str]) -> tuple[dict[str, int], int]:
    """Return the truth-table column of each variable, and a column of ones.

    A column is an integer with one bit for each row of the table.
    """
    size = 1 << len(names)
    everything = (1 << size) - 1
    columns: dict[str, int] = {}
    for place, name in enumerate(names):
        # The column alternates between runs of `block` zeros and `block` ones.
        block = 1 << place
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
    # The default context of z3 is global and not safe to use from several threads.
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
    """Translate formulas to z3, with a single sort for all objects."""

    # z3 identifies a symbol by its name.
    # Prefixes and arities in the z3 names keep predicates, terms and bound variables apart.

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
                raise NotAFormula("a quantified variable used as a formula")
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
    """Return whether a formula is in a normal form: ``nnf``, ``cnf`` or ``dnf``."""
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
    """Return the number of connectives and quantifiers in a formula."""
    return sum(each.kind not in ("atom", "equal", "constant") for each in formula.walk())
