"""Keys to set along with the recommendation, each with the fact that asks for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from assay.learn.algorithms import ALGORITHMS
from assay.plan.facts import Facts
from assay.plan.table import KINDS, LIMITS, SETTINGS, figures_of, holds, percent, told

GROUP_SIZES = (4, 8, 16, 32, 64)
GROWTH = 4  # of a group in which nothing passes
KL_OF_A_COMPLETION = 10.0
"""Nats. Where a learned reward was optimized further, people liked what it liked less and less
(Stiennon et al. 2020, arXiv 2009.01325, figure 5). At a weight of 0.05, theirs, it costs half of a
right answer."""
KL_OF_A_TOKEN = 0.1
"""Nats, and the most where completions are short."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One dotted key of the configuration, its value, and why."""

    key: str
    value: Any
    because: str


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
