"""One recommendation, and of every other method the reason why not: the table applied to facts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from assay.plan.facts import Facts
from assay.plan.settings import Setting, settings_for
from assay.plan.table import KINDS, OBJECTIONS, RULES, TITLES, figures_of, first_row, known_of, told


@dataclass(frozen=True, slots=True)
class Finding:
    """A method with what decided for or against it. rule: the rule's name, of the recommended one."""

    name: str
    because: str
    source: str
    rule: str = ""

    @property
    def title(self) -> str:
        """The method's name for people."""
        return TITLES[self.name]


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do, what to set along with it, and why nothing else. facts: what it was decided by."""

    facts: Facts
    recommended: Finding
    rejected: Sequence[Finding]
    settings: Sequence[Setting]

    @property
    def name(self) -> str:
        """The recommended method's name."""
        return self.recommended.name

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {
            "recommended": self.name,
            "because": self.recommended.because,
            "rule": self.recommended.rule,
            "source": self.recommended.source,
            "settings": [asdict(one) for one in self.settings],
            "rejected": {one.name: one.because for one in self.rejected},
            "facts": self.facts.as_dict(),
        }


def decide(facts: Facts) -> Decision:
    """Return the recommendation of the first rule that holds, and an objection to every other method.

    Where something must come first, that is what speaks against a method that has no objection of its
    own but its last.
    """
    known = known_of(facts)
    figures = figures_of(known)
    rule = first_row(RULES, known)
    best = Finding(rule.method, told(rule.because, figures), rule.source, rule.rule)
    rejected: list[Finding] = []
    for name in KINDS:
        if name == best.name:
            continue
        row = first_row(OBJECTIONS, known, name)
        because, source = told(row.because, figures), row.source
        if KINDS[best.name] == "first" and not row.when:
            because, source = f"not before this: {best.title} ({best.because})", best.source
        rejected.append(Finding(name, because, source))
    return Decision(facts, best, tuple(rejected), settings_for(facts, known, best.name))
