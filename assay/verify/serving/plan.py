"""How an expression is judged: which verifiers are asked, when, and what verdict their parts make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from assay.types import Verdict
from assay.verify.base import Part, combine
from assay.verify.expression import Term, parse_expression
from assay.verify.serving.cards import Card
from assay.verify.serving.options import RowCheck, config_only
from assay.verify.serving.schedule import Schedule, unpinned

NOT_ASKED = Part.not_judged("unavailable", "not asked")
"""The part of an alternative that was not needed."""

MAX_VERSIONS = 1024  # policy versions whose weights are kept


class Plan:
    """The terms of an expression with their weights, and each of its verifiers once.

    chains: of each term, the indices of its alternatives. later: indices of verifiers that are only
    alternatives. after: indices of those that take the first term's verdicts.
    """

    def __init__(
        self, terms: Sequence[Term], names: Sequence[str], cards: Sequence[Card], schedule: Schedule
    ) -> None:
        self.names = tuple(names)
        where = {name: index for index, name in enumerate(self.names)}
        self.chains = tuple(tuple(where[name] for name in term.names) for term in terms)
        self.cards = tuple(self._placed(index, card) for index, card in enumerate(cards))
        weights = [1.0, *(self.cards[chain[0]].weight for chain in self.chains[1:])]
        self.terms = tuple(
            term.resolved(weight) for term, weight in zip(terms, weights, strict=True)
        )
        firsts = {chain[0] for chain in self.chains}
        self.later = tuple(index for index in range(len(names)) if index not in firsts)
        self.after = tuple(
            index
            for index, card in enumerate(self.cards)
            if card.takes == "verdicts" and not card.error
        )
        self.has_alternatives = any(len(chain) > 1 for chain in self.chains)
        self.forbidden = frozenset(name for card in self.cards for name in config_only(card.fields))
        self.check_row = RowCheck(
            (card.fields, card.options, card.verifier.check_spec if card.verifier else None)
            for card in self.cards
        )
        self.error = next((card.error for card in self.cards if card.error), "")
        self.label = self._label()
        self._schedule = schedule
        self._terms_at: dict[int, tuple[Term, ...]] = {}

    @classmethod
    def of_error(cls, expression: str, error: str) -> Plan:
        """Return the plan of an expression that cannot be used: nothing is judged by it."""
        card = Card(expression, error=error)
        return cls((Term(expression, 1.0),), (expression,), (card,), Schedule({}))

    def _placed(self, index: int, card: Card) -> Card:
        """Refuse a verifier that needs the first term's verdicts where there are none."""
        alone = any(index in chain and len(chain) > 1 for chain in self.chains)
        if card.takes != "verdicts" or card.error or not (alone or index in self.chains[0]):
            return card
        error = (
            f"verifier {card.name}: found where the correctness or an alternative stands; "
            f"accepted: a later term, as math + {card.name}; it reads the first term's verdicts"
        )
        return replace(card, error=error)

    def _label(self) -> str:
        """``math@1`` of a single term, else the sum with versions."""
        labels = ["|".join(self.cards[index].label for index in chain) for chain in self.chains]
        if len(self.terms) == 1 and self.terms[0].weight == 1.0:
            return labels[0]
        pairs = zip(labels, self.terms, strict=True)
        return " + ".join(f"{label}*{term.weight:g}" for label, term in pairs)

    def terms_at(self, policy_version: int) -> tuple[Term, ...]:
        """Return the terms with their weights under a policy."""
        if not self._schedule:
            return self.terms
        if policy_version not in self._terms_at:
            if len(self._terms_at) >= MAX_VERSIONS:
                self._terms_at.clear()
            self._terms_at[policy_version] = tuple(
                replace(term, weight=weight * self._schedule.multiplier(term, policy_version))
                for term in self.terms
                if (weight := term.weight) is not None
            )
        return self._terms_at[policy_version]

    def first_part(self, parts: Sequence[Part]) -> Part:
        """Return the part of the first term from those of all verifiers."""
        return self._part_of(self.chains[0], parts)

    def verdict(self, parts: Sequence[Part], policy_version: int) -> Verdict:
        """Return the verdict that one completion's parts make, in the order of `names`."""
        terms = self.terms_at(policy_version)
        if not self.has_alternatives:
            return combine(terms, [parts[chain[0]] for chain in self.chains], self.label)
        terms = [replace(term, name=unpinned(term.name)) for term in terms]
        found = [self._part_of(chain, parts) for chain in self.chains]
        counted = {chain[0] for chain in self.chains if len(chain) == 1}
        for chain in self.chains:
            for place, index in enumerate(chain if len(chain) > 1 else ()):
                part = parts[index]
                if part is NOT_ASKED:
                    continue
                part = replace(part, seconds=0.0) if index in counted else part
                counted.add(index)
                terms.append(
                    Term(self.names[index], 0.0)
                )  # so that its components are in the verdict
                found.append(_with_rescue(part) if place else part)
        return combine(terms, found, self.label)

    def _part_of(self, chain: Sequence[int], parts: Sequence[Part]) -> Part:
        """Return what alternatives say together: the first that accepts, else the last one's word.

        Where none accepts and the last is not judged, nothing is: the earlier ones' rejection is what
        the last was to look at. Where all reject, the highest score stands.
        """
        if len(chain) == 1:
            return parts[chain[0]]
        asked = [index for index in chain if parts[index] is not NOT_ASKED]
        for index in asked:
            if accepts(parts[index]):
                part = parts[index]
                name = unpinned(self.names[index])
                detail = part.detail if index == chain[0] else f"{name} accepted: {part.detail}"
                return replace(part, detail=detail, components={}, seconds=0.0)
        last = parts[asked[-1]]
        if last.value is None:
            detail = f"{unpinned(self.names[asked[-1]])}: {last.detail}"
            return replace(last, detail=detail, components={}, seconds=0.0)
        judged = [parts[index] for index in asked if parts[index].value is not None]
        best = max(judged, key=_score)
        return replace(best, detail=last.detail or best.detail, components={}, seconds=0.0)

    def warnings(self) -> list[str]:
        """Return what is doubtful about the sum: shaping that can outweigh the correctness."""
        found: list[str] = []
        total, unbounded = 0.0, list[str]()
        for term, chain in zip(self.terms[1:], self.chains[1:], strict=True):
            weight = abs(term.weight or 0.0) * self._schedule.largest(term)
            bounds = [self.cards[index].bounds for index in chain]
            if weight and None in bounds:
                unbounded.append(unpinned(term.name))
            known = [bound for bound in bounds if bound is not None]
            if known:
                highest, lowest = max(b[1] for b in known), min(b[0] for b in known)
                total += weight * (highest - lowest)
        first = abs(self.terms[0].weight or 0.0)
        if total >= first and len(self.terms) > 1:
            found.append(
                f"verifier {self.label}: the terms after the first can add up to {total:g}, as much as "
                f"correctness ({first:g}) or more; lower their weights, or the policy may be paid for "
                "form in place of answers"
            )
        for name in unbounded:
            found.append(
                f"verifier {self.label}: {name} has no bounds, so it can outweigh correctness; "
                "normalize it, or watch reward/" + name
            )
        unused = set(self._schedule.points) - {self._schedule.key_of(term) for term in self.terms}
        found += [
            f"verification.schedule.{name}: no term of {self.label}; it changes nothing there"
            for name in sorted(unused)
        ]
        return found


def plan_terms(expression: str) -> tuple[tuple[Term, ...], tuple[str, ...]]:
    """Return the terms of an expression and each verifier's name once; raises VerifierError."""
    terms = parse_expression(expression)
    return terms, tuple(dict.fromkeys(name for term in terms for name in term.names))


def accepts(part: Part) -> bool:
    """Whether a part is a judgement that the completion passed."""
    if part.value is None:
        return False
    return part.passed if part.passed is not None else _score(part) >= 1.0


def _score(part: Part) -> float:
    return (part.value or 0.0) if part.score is None else part.score


def _with_rescue(part: Part) -> Part:
    """Say of a later alternative that was asked whether it accepted what the earlier had not."""
    return replace(part, components={**part.components, "rescued": float(accepts(part))})
