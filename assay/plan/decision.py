"""One recommendation, and of every other candidate the reason why not: the rules applied to facts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from assay.plan.candidates import CANDIDATES, Candidate
from assay.plan.facts import Facts
from assay.plan.objections import OBJECTIONS
from assay.plan.rules import RULES
from assay.plan.settings import Setting, settings_for


@dataclass(frozen=True, slots=True)
class Finding:
    """A candidate with what decided for or against it. rule: the rule's name, for the recommended one."""

    candidate: Candidate
    because: str
    source: str
    rule: str = ""


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do, what to set along with it, and why nothing else. facts: what it was decided by."""

    facts: Facts
    recommended: Finding
    rejected: Sequence[Finding]
    settings: Sequence[Setting]

    @property
    def name(self) -> str:
        """The recommended candidate's name."""
        return self.recommended.candidate.name

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {
            "recommended": self.name,
            "because": self.recommended.because,
            "rule": self.recommended.rule,
            "source": self.recommended.source,
            "settings": [asdict(one) for one in self.settings],
            "rejected": {one.candidate.name: one.because for one in self.rejected},
            "facts": self.facts.as_dict(),
        }


def decide(facts: Facts) -> Decision:
    """Return the recommendation of the first rule that holds, and an objection to every other candidate.

    Where something must come first, that is what speaks against a method that has no objection of its
    own but its last.
    """
    rule = next(rule for rule in RULES if rule.when(facts))
    chosen = Finding(CANDIDATES[rule.verdict], rule.because(facts), rule.source, rule.name)
    rejected = [_objection(name, facts, chosen) for name in CANDIDATES if name != rule.verdict]
    settings = settings_for(facts, rule.verdict, chosen.candidate.kind)
    return Decision(facts, chosen, tuple(rejected), settings)


def _objection(name: str, facts: Facts, chosen: Finding) -> Finding:
    of_it = [one for one in OBJECTIONS if one.candidate == name]
    found = next(one for one in of_it if one.when(facts))
    if chosen.candidate.kind == "first" and found is of_it[-1]:
        because = f"not before this: {chosen.candidate.title} ({chosen.because})"
        return Finding(CANDIDATES[name], because, chosen.source)
    return Finding(CANDIDATES[name], found.because(facts), found.source)
