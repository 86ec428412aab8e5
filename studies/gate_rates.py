"""Rates at which a gate refuses an equally good and a worse model: ``python -m
studies.gate_rates``.

Two models are simulated on Assay's canaries and on a set of the user's own; the checks are those of
`assay.evaluation.gate_checks`. The better model passes each problem with probability `PASSES`. The
other model's verdict differs with the probability of the churn, equally often in both directions,
so that both models are equally good. A loss additionally turns the given share of all verdicts
wrong. Problems are independent. The tables are written into docs/trust.md.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from assay.evaluation.compare_result import ComparedSet, CompareResult
from assay.evaluation.gate_checks import CANARIES, MUST_FAIL, Kinds, comparison_checks
from assay.evaluation.gate_thresholds import Thresholds
from assay.run.intervals import share_interval
from assay.run.paired import gain_of, sign_flip_p
from assay.session.evaluate import Evaluation
from studies.guard import PAGE, write_part

PASSES = 0.7
CHURNS = (0.02, 0.05, 0.1)
LOSSES = (0.05, 0.1, 0.15, 0.2, 0.3)
OWN_SIZES = (50, 200, 1000)
SEED = 20
GATES = 1000
Found = tuple[str, ...]


def kinds_of(file: Path) -> Kinds:
    """Return the kind of each canary in a file of Assay."""
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return {row["id"]: row["tags"][0] for row in rows}


def two_models(
    ids: Sequence[str], churn: float, loss: float, random: np.random.Generator
) -> tuple[Evaluation, Evaluation]:
    """Return verdicts of two models on the same problems. The second model has the given loss."""
    before = random.random(len(ids)) < PASSES
    chance = np.where(before, churn / (2 * PASSES) + loss / PASSES, churn / (2 * (1 - PASSES)))
    after = before ^ (random.random(len(ids)) < chance)
    sides = (dict(zip(ids, map(float, side), strict=True)) for side in (before, after))
    a, b = (
        Evaluation(len(ids), len(ids), 0, float(np.mean([*one.values()])), 0.0, by_problem=one)
        for one in sides
    )
    return a, b


def canaries(
    kinds: Mapping[str, Kinds],
    churn: float,
    losses: Mapping[str, float],
    random: np.random.Generator,
) -> list[ComparedSet]:
    """Return simulated files of canaries. Canaries that must never pass are failed by both
    models."""
    sets: list[ComparedSet] = []
    for name, own in kinds.items():
        honest = [id for id, kind in own.items() if kind not in MUST_FAIL]
        sides = two_models(honest, churn, losses.get(name, 0.0), random)
        none = {id: 0.0 for id, kind in own.items() if kind in MUST_FAIL}
        a, b = (
            Evaluation(len(own), len(own), 0, 0.5, 0.0, by_problem={**one.by_problem, **none})
            for one in sides
        )
        sets.append(ComparedSet(name, True, a, b, (1.0, 1.0)))
    return sets


def own_set(size: int, churn: float, loss: float, random: np.random.Generator) -> ComparedSet:
    """Return a simulated set of the user's own problems."""
    a, b = two_models([f"p{n}" for n in range(size)], churn, loss, random)
    differences = [b.by_problem[id] - a.by_problem[id] for id in a.by_problem]
    p = sign_flip_p(differences)
    return ComparedSet("own", False, a, b, (1.0, 1.0), gain_of(differences), p, p)


def failed(sets: Sequence[ComparedSet], kinds: Mapping[str, Kinds]) -> list[str]:
    """Return the names of the failed checks."""
    compared = [CompareResult("a", "b", sets)]
    _, (checks,) = comparison_checks(compared, kinds, Thresholds())
    return [one.name for one in checks if one.outcome == "failed"]


def by_kind(one: ComparedSet, kinds: Kinds) -> bool:
    """Whether the earlier rule refuses a file: a kind of canary lost more than a tenth."""
    a, b = one.a.by_problem, one.b.by_problem
    for kind in {*kinds.values()} - {*MUST_FAIL}:
        ids = [id for id in kinds if kinds[id] == kind]
        if sum(a[id] - b[id] for id in ids) > 0.1 * len(ids):
            return True
    return False


def equal_models(kinds: Mapping[str, Kinds], gates: int) -> Iterator[str]:
    """Yield the table of refusals of equally good models."""
    heads = [f"set of {size}" for size in OWN_SIZES]
    wholes = [f"gate, set of {size}" for size in OWN_SIZES]
    cells = ["churn", "canaries by kind, as before", "canaries", *heads, *wholes]
    yield f"| {' | '.join(cells)} |"
    yield f"|---{'|---:' * (len(cells) - 1)}|"
    for churn in CHURNS:
        random = np.random.default_rng(SEED)
        before = pooled = 0
        alone, whole = dict.fromkeys(OWN_SIZES, 0), dict.fromkeys(OWN_SIZES, 0)
        for _ in range(gates):
            files = canaries(kinds, churn, {}, random)
            before += any(by_kind(one, kinds[one.name]) for one in files)
            refused = bool(failed(files, kinds))
            pooled += refused
            for size in OWN_SIZES:
                own = bool(failed([own_set(size, churn, 0.0, random)], {}))
                alone[size] += own
                whole[size] += own or refused
        counts = [before, pooled, *alone.values(), *whole.values()]
        yield f"| {churn:.0%} | {' | '.join(_rate(count, gates) for count in counts)} |"


def worse_models(kinds: Mapping[str, Kinds], gates: int) -> Iterator[str]:
    """Yield the table of refusals of worse models."""
    cells = ["accuracy loss and test set", *(f"churn {churn:.0%}" for churn in CHURNS)]
    yield f"| {' | '.join(cells)} |"
    yield f"|---{'|---:' * len(CHURNS)}|"
    name = next(iter(kinds))
    for loss in LOSSES:
        where = {
            "all three canary files": dict.fromkeys(kinds, loss),
            "one canary file": {name: loss},
        }
        for words, losses in where.items():
            rates = [_power(kinds, churn, losses, gates) for churn in CHURNS]
            yield f"| {100 * loss:.0f} points on {words} | {' | '.join(rates)} |"
    for size in OWN_SIZES:
        for loss in LOSSES[:2]:
            rates = [_own_power(size, churn, loss, gates) for churn in CHURNS]
            words = f"your own set of {size} problems"
            yield f"| {100 * loss:.0f} points on {words} | {' | '.join(rates)} |"


def _power(
    kinds: Mapping[str, Kinds], churn: float, losses: Mapping[str, float], gates: int
) -> str:
    random = np.random.default_rng(SEED)
    found = (failed(canaries(kinds, churn, losses, random), kinds) for _ in range(gates))
    return _rate(sum(map(bool, found)), gates)


def _own_power(size: int, churn: float, loss: float, gates: int) -> str:
    random = np.random.default_rng(SEED)
    found = (failed([own_set(size, churn, loss, random)], {}) for _ in range(gates))
    return _rate(sum(map(bool, found)), gates)


def _rate(count: int, total: int) -> str:
    return f"{count / total:.1%}"


def main() -> None:
    """Simulate the gates and write both tables."""
    parser = argparse.ArgumentParser(prog="python -m studies.gate_rates", description=__doc__)
    parser.add_argument("--gates", type=int, default=GATES, help="of each row of the first table")
    parser.add_argument("--page", type=Path, default=PAGE)
    options = parser.parse_args()
    kinds = {name: kinds_of(file) for name, file in CANARIES.items()}
    low, high = share_interval(0.05, options.gates)
    facts = f"Each row has {options.gates} simulated gates.\n"
    facts += f"A rate of 5 % then has a 95 % interval of {low:.1%} to {high:.1%}."
    by = "studies.gate_rates"
    write_part(options.page, "equal models", [*equal_models(kinds, options.gates), "", facts], by)
    few = options.gates // 4
    facts = f"Each cell has {few} simulated gates."
    write_part(options.page, "worse models", [*worse_models(kinds, few), "", facts], by)
    print(options.page)


if __name__ == "__main__":
    main()
