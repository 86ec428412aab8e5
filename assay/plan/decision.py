"""Apply the method table to facts: one recommendation, reasons against the others, and settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from assay.learn.algorithms import ALGORITHMS
from assay.plan.facts import Facts
from assay.plan.table import (
    KINDS,
    LIMITS,
    OBJECTIONS,
    RULES,
    SETTINGS,
    TITLES,
    figures_of,
    first_row,
    holds,
    known_of,
    percent,
    told,
)

GROUP_SIZES = (4, 8, 16, 32, 64)
# Largest group size as a multiple of the group size, for prompts whose completions all fail.
GROWTH = 4
KL_OF_A_COMPLETION = 10.0
"""In nats. Beyond it, optimizing a learned reward lowers human preference (Stiennon et al. 2020,
arXiv 2009.01325, figure 5). At the paper's KL weight of 0.05, 10 nats cost half the reward of one
right answer."""
KL_OF_A_TOKEN = 0.1
"""In nats. Upper bound on the KL limit of one token, for short completions."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A method and the reason for or against it. rule: name of the rule that recommended it."""

    name: str
    because: str
    source: str
    rule: str = ""

    @property
    def title(self) -> str:
        """The method's name for people."""
        return TITLES[self.name]


@dataclass(frozen=True, slots=True)
class Setting:
    """One dotted key of the configuration, its value, and why."""

    key: str
    value: Any
    because: str


@dataclass(frozen=True, slots=True)
class Decision:
    """A recommended method, its settings, and the reasons against all other methods."""

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
    """Return the recommendation of the first rule that holds, and what speaks against the others.

    Where something must come first, that is what speaks against a method that has no objection of
    its own but its last.
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


def settings_for(facts: Facts, known: Mapping[str, Any], method: str) -> tuple[Setting, ...]:
    """Return the table's settings for a method; those that have no value there get theirs here."""
    size, tokens = best_group_size(facts), facts.mean_tokens or facts.max_tokens
    most = min(KL_OF_A_TOKEN, KL_OF_A_COMPLETION / tokens)
    values = {
        "algorithm.name": method,
        "preference.method": method,
        "rl.group_size": size,
        "rl.max_group_size": GROWTH * size,
        "sampling.max_tokens": 2 * facts.max_tokens,
        "guard.max_kl": float(f"{most:.2g}"),
    }
    has_kl = KINDS[method] == "online" and ALGORITHMS[method].kl_weight > 0
    known = {**known, "other_size": size != facts.group_size, "own_kl": has_kl}
    figures = figures_of(known) | {
        "method": method,
        "size": str(size),
        "nats": f"{most * tokens:.2g}",
    }
    figures["mixed_then"] = percent(facts.mixed_share(size) or 0)
    return tuple(
        Setting(row.key, values.get(row.key, row.value), told(row.because, figures))
        for row in SETTINGS
        if row.method == method and holds(row.when, known)
    )


def best_group_size(facts: Facts) -> int:
    """Return the smallest group size, from the present one on, whose groups are mixed often enough.

    The present one where that is not known, or where more siblings would not help.
    """
    sizes = [facts.group_size, *(size for size in GROUP_SIZES if size > facts.group_size > 1)]
    enough = (size for size in sizes if (facts.mixed_share(size) or 0) >= LIMITS["FEW_MIXED"])
    return next(enough, facts.group_size)
