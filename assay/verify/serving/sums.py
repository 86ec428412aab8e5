"""Combine the parts of an expression's verifiers into a verdict."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from assay.types import Verdict
from assay.verify.base import Part
from assay.verify.expression import Term, gate_text, parse_expression, unpinned
from assay.verify.serving.configured import Configured, RowCheck
from assay.verify.serving.schedule import Schedule

NOT_ASKED = Part.not_judged("unavailable", "not asked")
"""The part of an alternative that was not called, because an earlier alternative accepted."""


def names_in(expression: str) -> tuple[str, ...]:
    """Return the names of an expression's verifiers without duplicates. Raises VerifierError."""
    names = (name for term in parse_expression(expression) for name in term.names)
    return tuple(dict.fromkeys(names))


class Sum:
    """The weighted terms of a verifier expression, and the verifiers of all terms without
    duplicates.

    verifiers: the verifiers, aligned with `names`.
    chains: for each term, the indices of its verifiers in `verifiers`.
    later: indices of the verifiers that are called only after another alternative.
    """

    def __init__(
        self, terms: Sequence[Term], verifiers: Mapping[str, Configured], schedule: Schedule
    ) -> None:
        self.names = tuple(verifiers)
        self._given = tuple(terms)
        self.chains = tuple(tuple(self.names.index(name) for name in term.names) for term in terms)
        self.verifiers = tuple(
            self._placed(index, one) for index, one in enumerate(verifiers.values())
        )
        # The first term of a sum measures correctness, so its verifier's default weight is ignored.
        weights = [1.0, *(self.verifiers[c[0]].verifier.weight for c in self.chains[1:])]
        self.terms = tuple(term.resolved(own) for term, own in zip(terms, weights, strict=True))
        # All verifiers of a conjunction are called, so that each has its own metric.
        firsts = {
            index
            for term, chain in zip(self.terms, self.chains, strict=True)
            for index in (chain if term.is_conjunction else chain[:1])
        }
        self.later = frozenset(range(len(self.names))) - firsts
        self.error = next((one.error for one in self.verifiers if one.error), "")
        self.check_row = RowCheck(self.verifiers)
        self.label = self._label()
        self._schedule = schedule

    @classmethod
    def of_error(cls, expression: str, error: str) -> Sum:
        """Return a sum for an expression that cannot be used.

        Every verdict of an unusable expression is *not judged*.
        """
        one = Configured.unusable(expression, error)
        # A term splits its name at "|", but here the term has only one verifier.
        name = re.sub("[|&]", "/", expression).replace(">=", " from ")
        return cls((Term(name, 1.0),), {name: one}, Schedule({}))

    def _placed(self, index: int, one: Configured) -> Configured:
        """Return the verifier; the verifier has an error if it takes verdicts but is in the first
        term.

        A verifier that takes verdicts must not be joined to others or have a gate either.
        """
        is_joined = any(
            index in chain and (len(chain) > 1 or term.thresholds[0] is not None)
            for chain, term in zip(self.chains, self._given, strict=True)
        )
        placed_well = not is_joined and index not in self.chains[0]
        if one.verifier.takes != "verdicts" or one.error or placed_well:
            return one
        error = (
            f"verifier {one.name}: found as the correctness or as an alternative, in a "
            "conjunction or with a gate; "
            f"accepted: a later term, as math + {one.name}; it reads the first term's verdicts"
        )
        return replace(one, error=error)

    def _label(self) -> str:
        """Return ``math@1`` for one term of weight 1, else the sum with versions and weights."""
        labels = [
            ("&" if term.is_conjunction else "|").join(
                f"{self.verifiers[n].label}{_gate(threshold)}"
                for n, threshold in zip(chain, term.thresholds, strict=True)
            )
            for chain, term in zip(self.chains, self.terms, strict=True)
        ]
        if len(self.terms) == 1 and self.terms[0].weight == 1.0:
            return labels[0]
        pairs = zip(labels, self.terms, strict=True)
        return " + ".join(f"{label}*{term.weight:g}" for label, term in pairs)

    def weights_at(self, policy_version: int) -> list[float]:
        """Return the weights of the terms at a policy version."""
        times = self._schedule.multiplier
        return [(term.weight or 0.0) * times(term, policy_version) for term in self.terms]

    def first_part(self, parts: Sequence[Part]) -> Part:
        """Return the first term's part, computed from the parts of all verifiers."""
        return self._part_of(0, parts)

    def verdict(self, parts: Sequence[Part], policy_version: int) -> Verdict:
        """Return the verdict on a completion from its parts, which are in the order of `names`.

        The first term gives the score, status, extracted text and detail. The reward is the sum
        over the terms of weight * value. A verdict is *not judged* if the first term, or any term
        of nonzero weight, was not judged.
        """
        terms = [unpinned(term.name) for term in self.terms]
        found = [self._part_of(number, parts) for number in range(len(terms))]
        components: dict[str, float] = {}
        for name, part in [*zip(terms, found, strict=True), *self._asked_in_turn(parts)]:
            if part.value is not None:
                components[name] = part.value
                components |= {f"{name}.{key}": value for key, value in part.components.items()}
        seconds = math.fsum(part.seconds for part in parts)
        rest: dict[str, Any] = {"components": components, "seconds": seconds}
        first, score = found[0], found[0].correctness
        if score is not None and not 0.0 <= score <= 1.0:
            detail = f"{terms[0]}: returned {score}; accepted: a correctness from 0 to 1"
            return Verdict.not_judged("error", self.label, detail=detail, **rest)
        weights = self.weights_at(policy_version)
        for index, (name, part) in enumerate(zip(terms, found, strict=True)):
            # A failed term of weight 0 costs no verdict, because the term is only a metric.
            if part.value is None and (weights[index] != 0.0 or index == 0):
                many = len(self.names) > 1 or len(terms) > 1
                detail = f"{name}: {part.detail}" if many else part.detail
                return Verdict.not_judged(part.reason or "error", self.label, detail=detail, **rest)
        assert score is not None
        values = [part.value or 0.0 for part in found]
        return Verdict(
            score=score,
            status="passed" if first.accepted else "failed",
            verifier=self.label,
            reward=math.fsum(weight * value for weight, value in zip(weights, values, strict=True)),
            step_scores=first.step_scores,
            step_weight=weights[0],
            extracted=first.extracted,
            detail=first.detail,
            **rest,
        )

    def _asked_in_turn(self, parts: Sequence[Part]) -> list[tuple[str, Part]]:
        """Return (name, part) of each joined verifier, and of each verifier with a gate.

        The part of a later alternative gets the component ``rescued``: 1 if the alternative
        accepted, else 0.
        """
        found: list[tuple[str, Part]] = []
        for term, chain in zip(self.terms, self.chains, strict=True):
            gated = any(threshold is not None for threshold in term.thresholds)
            for place, index in enumerate(chain if len(chain) > 1 or gated else ()):
                part = parts[index]
                if place and part is not NOT_ASKED and not term.is_conjunction:
                    rescued = {"rescued": float(_through(part, term.thresholds[place]).accepted)}
                    part = replace(part, components={**part.components, **rescued})
                found.append((unpinned(self.names[index]), part))
        return found

    def accepts(self, number: int, place: int, part: Part) -> bool:
        """Whether the verifier at a position of a term accepts, after the verifier's gate."""
        return _through(part, self.terms[number].thresholds[place]).accepted

    def accepts_later(self, index: int, part: Part) -> bool:
        """Whether a verifier accepts as a later alternative of a term, after the verifier's
        gate."""
        return any(
            self.accepts(number, chain.index(index), part)
            for number, chain in enumerate(self.chains)
            if index in chain[1:]
        )

    def _part_of(self, number: int, parts: Sequence[Part]) -> Part:
        """Return a term's part, which combines the parts of the term's verifiers after their gates.

        If a term has alternatives, the first part that accepts is the result. If no part accepts
        and the last alternative did not judge, the result is *not judged*, because the last
        alternative reviews the rejections. If all alternatives reject a completion, the part with
        the highest score is the result.
        """
        term, chain = self.terms[number], self.chains[number]
        own = [
            _through(parts[index], threshold)
            for index, threshold in zip(chain, term.thresholds, strict=True)
        ]
        if len(chain) == 1:
            return own[0]
        names = [unpinned(self.names[index]) for index in chain]
        if term.is_conjunction:
            return _conjunction(names, own)
        asked = [place for place, index in enumerate(chain) if parts[index] is not NOT_ASKED]
        for place in asked:
            if own[place].accepted:
                said = own[place].detail
                detail = said if place == 0 else f"{names[place]} accepted: {said}"
                return replace(own[place], detail=detail, components={})
        last = own[asked[-1]]
        if last.value is None:
            return replace(last, detail=f"{names[asked[-1]]}: {last.detail}", components={})
        judged = [own[place] for place in asked if own[place].value is not None]
        best = max(judged, key=lambda part: part.correctness or 0.0)
        return replace(best, detail=last.detail or best.detail, components={})

    def warnings(self) -> list[str]:
        """Return warnings about shaping that can outweigh correctness and about schedules without a
        term."""
        total, unbounded = 0.0, list[str]()
        for term, chain in zip(self.terms[1:], self.chains[1:], strict=True):
            weight = abs(term.weight or 0.0) * self._schedule.largest(term)
            # A gate has only the values 0 and 1, whatever the bounds of its verifier are.
            bounds = [
                self.verifiers[index].verifier.bounds if threshold is None else (0.0, 1.0)
                for index, threshold in zip(chain, term.thresholds, strict=True)
            ]
            known = [bound for bound in bounds if bound is not None]
            if weight and None in bounds:
                unbounded.append(unpinned(term.name))
            if known:
                total += weight * (max(b[1] for b in known) - min(b[0] for b in known))
        first = abs(self.terms[0].weight or 0.0)
        found: list[str] = []
        if total >= first and len(self.terms) > 1:
            found.append(
                f"verifier {self.label}: the terms after the first can add up to {total:g}, as "
                f"much as correctness ({first:g}) or more; lower their weights, or the policy may "
                "be paid for form instead of answers"
            )
        found += [
            f"verifier {self.label}: {name} has no bounds, so it can outweigh correctness; "
            f"normalize it, or watch reward/{name}"
            for name in unbounded
        ]
        unused = set(self._schedule.points) - {self._schedule.key_of(term) for term in self.terms}
        return found + [
            f"verification.schedule.{name}: no term of {self.label}; it changes nothing there"
            for name in sorted(unused)
        ]


def _gate(threshold: float | None) -> str:
    return "" if threshold is None else gate_text(float(threshold))


def _through(part: Part, threshold: float | None) -> Part:
    """Apply a gate to a part: the value is 1 and the part passed from the threshold on, else 0 and
    failed."""
    if threshold is None or part.value is None:
        return part
    # A rounding error alone can put the mean of several answers below a threshold.
    opened = part.value >= threshold - 1e-12
    detail = part.detail if opened else f"{part.value:g} is below {threshold:g}; {part.detail}"
    value = float(opened)
    return replace(part, value=value, score=value, passed=opened, detail=detail.rstrip("; "))


def _conjunction(names: Sequence[str], parts: Sequence[Part]) -> Part:
    """Return the part of a conjunction: the smallest value; passed if all parts accept.

    A part that was not judged makes the result *not judged*, unless a judged part is 0 or below: no
    verdict of the missing part could let the completion pass or raise the value.
    """
    judged = [
        (name, part) for name, part in zip(names, parts, strict=True) if part.value is not None
    ]
    lowest = min((part.value or 0.0 for _, part in judged), default=1.0)
    if len(judged) < len(parts) and lowest > 0.0:
        name, part = next(
            (name, part) for name, part in zip(names, parts, strict=True) if part.value is None
        )
        return replace(part, detail=f"{name}: {part.detail}", components={})
    refusals = [f"{name}: {part.detail}" for name, part in judged if not part.accepted]
    first = next((part for part in parts if part.value is not None), parts[0])
    return replace(
        first,
        value=lowest,
        score=min((part.correctness or 0.0) for _, part in judged),
        passed=len(judged) == len(parts) and not refusals,
        detail="; ".join(refusals) or first.detail,
        components={},
        seconds=0.0,
    )
