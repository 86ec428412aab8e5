"""Effect of each reward term: the advantages of recorded rollouts with and without the term.

The rollout log holds the value of each term, and the verifier's label holds the weights. No
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
# Tolerance for comparing a sum of single-precision values.
CLOSE = 1e-6
# A label has a negative weight as `name*-0.5`, which an expression writes as `-name*0.5`.
_NEGATIVE = re.compile(r"(^|\+ )([^\s*]+)\*-")


@dataclass(frozen=True, slots=True)
class TermFacts:
    """Effect of one reward term. mean: mean of the term's weight times value.

    share: fraction of the reward's variance within groups that the term explains; the shares of all
    terms sum to 1. correlation: correlation of the advantages with and without the term. turned:
    fraction of advantages whose sign changes without the term. Share and correlation are None if
    all siblings have equal rewards.
    """

    term: str
    mean: float
    share: float | None
    correlation: float | None
    turned: float


@dataclass(frozen=True, slots=True)
class TermTable:
    """Effect of all terms.

    left_out: number of completions that were not judged or whose terms do not sum to the reward. A
    sum differs from the reward if a weight follows a schedule or a term belongs to another reward.
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

    # Notebooks display an object by its repr, so the repr is the text for people.
    __repr__ = __str__


def term_table(run: Path | str | LoadedRun, step: int | None = None) -> TermTable:
    """Measure the effect of each reward term on the advantages of one step, or of all steps.

    Advantages use the run's group baseline and scale. Raises RunError if the run has no recorded
    rollouts, or if no reward is a sum of terms.
    """
    loaded = run if isinstance(run, LoadedRun) else load_run(run)
    rows = loaded.rollouts(step=step, columns=COLUMNS)
    sums = [_contributions(row) for row in rows]
    kept = [(row, one) for row, one in zip(rows, sums, strict=True) if one is not None]
    names = [*dict.fromkeys(name for _, one in kept for name in one)]
    # A single term is the whole reward, so its effect needs no measurement, and an error is raised.
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

    # Terms are centered by group, because advantages depend only on differences of siblings.
    spread = _centered(rewards, groups)
    real = advantages(rewards)
    facts = [
        _facts(name, value, spread, _centered(value, groups), real, advantages(rewards - value))
        for name, value in values.items()
    ]
    return TermTable(str(loaded.folder), facts, len(kept), len(rows) - len(kept))


def _contributions(row: Mapping[str, Any]) -> dict[str, float] | None:
    """Return weight times value of each term; None if their sum is not the reward."""
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
        # The share is a covariance with the whole reward, so that the shares of all terms sum to 1.
        share=float(own @ spread) / variance if variance > CLOSE else None,
        correlation=float(np.corrcoef(real, without)[0, 1]) if differ else None,
        turned=float(np.mean(np.sign(real) * np.sign(without) < 0)),
    )
