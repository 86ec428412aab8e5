"""Effect of each term of a reward: the advantages of recorded rollouts with and without the term.

The rollout log has the value of each reward term, and the verifier's label has the weights. No
completion is judged again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from assay.errors import RunError, message
from assay.host.files import plain
from assay.host.terminal import aligned, lined
from assay.learn.baselines import group_advantages
from assay.report.loaded import LoadedRun, load_run
from assay.session.assemble import choose_algorithm
from assay.verify.expression import parse_expression, unpinned

COLUMNS = ("step", "group_id", "reward", "components", "verifier")
# Tolerance for the sum of reward terms, whose values are single-precision numbers.
CLOSE = 1e-6
# In a verifier's label, a negative weight is `name*-0.5`; in an expression, `-name*0.5`.
_NEGATIVE = re.compile(r"(^|\+ )([^\s*]+)\*-")


@dataclass(frozen=True, slots=True)
class TermFacts:
    """Effect of one reward term. mean: mean over completions of the term's weighted value.

    share: fraction of the reward's variance within groups that the term explains; the shares of all
    terms sum to 1. correlation: correlation of the advantages with the term and without the term.
    turned: fraction of the advantages whose sign changes if the term is removed. Share and
    correlation are None if all completions of each group have equal rewards.
    """

    term: str
    mean: float
    share: float | None
    correlation: float | None
    turned: float


@dataclass(frozen=True, slots=True)
class TermTable:
    """Effect of all terms.

    left_out: number of completions that were not judged, or whose reward is not the sum of its
    terms. The reward differs from the sum if a weight follows a schedule, or if a term belongs to
    another reward.
    """

    run: str
    terms: Sequence[TermFacts]
    num_completions: int
    left_out: int

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return plain({**asdict(self), "terms": [asdict(one) for one in self.terms]})

    def __str__(self) -> str:
        table = [("term", "mean", "share", "correlation without", "signs turned")]
        for one in self.terms:
            share = "-" if one.share is None else f"{one.share:.1%}"
            same = "-" if one.correlation is None else f"{one.correlation:.3f}"
            table.append((one.term, f"{one.mean:+.4f}", share, same, f"{one.turned:.1%}"))
        lines = [f"{self.run}: {self.num_completions} completions", *aligned(table)]
        if self.left_out:
            lines.append(f"{self.left_out} left out: not judged, or their terms are not the reward")
        return lined(lines)

    # Notebooks show the repr of an object, so the repr is the text for people.
    __repr__ = __str__


def term_table(run: Path | str | LoadedRun, step: int | None = None) -> TermTable:
    """Measure the effect of each reward term on the advantages of one step, or of all steps.

    Advantages use the group baseline and scale that the run is configured with. Raises RunError if
    the run has no recorded rollouts, or if no reward is a sum of terms.
    """
    loaded = run if isinstance(run, LoadedRun) else load_run(run)
    rows = loaded.rollouts(step=step, columns=COLUMNS)
    sums = [_contributions(row) for row in rows]
    kept = [(row, one) for row, one in zip(rows, sums, strict=True) if one is not None]
    names = [*dict.fromkeys(name for _, one in kept for name in one)]
    # A single term is the whole reward, so measuring its effect is pointless and an error.
    if len(names) < 2:
        found = f"{len(names)} term" if names else f"no judged completion of {len(rows)}"
        accepted = "completions with a reward of several terms, as math + think_format"
        raise RunError(message(f"{loaded.folder} rollouts --terms", found, accepted))
    values = {name: np.array([one.get(name, 0.0) for _, one in kept]) for name in names}
    rewards = np.sum([*values.values()], axis=0)
    keys = [(row["step"], row["group_id"]) for row, _ in kept]
    place = {key: n for n, key in enumerate(dict.fromkeys(keys))}
    groups = np.array([place[key] for key in keys])
    algorithm = choose_algorithm(loaded.config)

    def advantages(of: np.ndarray) -> np.ndarray:
        judged_R = torch.ones(len(of), dtype=torch.bool)
        found_R = group_advantages(
            torch.from_numpy(of),
            judged_R,
            torch.from_numpy(groups),
            len(place),
            baseline=algorithm.baseline,
            scale=algorithm.scale,
        )
        return found_R.numpy()

    # Terms are centered by group, because advantages depend only on differences within a group.
    spread = _centered(rewards, groups)
    real = advantages(rewards)
    facts = [
        _facts(name, value, spread, _centered(value, groups), real, advantages(rewards - value))
        for name, value in values.items()
    ]
    return TermTable(str(loaded.folder), facts, len(kept), len(rows) - len(kept))


def _contributions(row: Mapping[str, Any]) -> dict[str, float] | None:
    """Return weight times value of each reward term; None if the sum of terms is not the reward."""
    if row["reward"] is None:
        return None
    components, found = row["components"] or {}, dict[str, float]()
    label = _NEGATIVE.sub(r"-\2*", row["verifier"])
    for term in parse_expression(label):
        name = unpinned(term.name)
        weight = term.resolved(1.0).weight or 0.0
        found[name] = found.get(name, 0.0) + weight * components.get(name, 0.0)
    wrong = abs(sum(found.values()) - row["reward"])
    return found if wrong <= CLOSE * max(1.0, abs(row["reward"])) else None


def _centered(values: np.ndarray, groups: np.ndarray) -> np.ndarray:
    means = np.bincount(groups, values) / np.bincount(groups)
    return values - means[groups]


def _facts(
    name: str,
    value: np.ndarray,
    spread: np.ndarray,
    own: np.ndarray,
    real: np.ndarray,
    without: np.ndarray,
) -> TermFacts:
    variance = float(spread @ spread)
    # A constant series has no correlation: np.corrcoef would divide by 0.
    differ = bool(np.ptp(real) > 0 and np.ptp(without) > 0)
    return TermFacts(
        term=name,
        mean=float(value.mean()),
        # The share of a term is its covariance with the reward, so that all shares sum to 1.
        share=float(own @ spread) / variance if variance > CLOSE else None,
        correlation=float(np.corrcoef(real, without)[0, 1]) if differ else None,
        turned=float(np.mean(np.sign(real) * np.sign(without) < 0)),
    )
