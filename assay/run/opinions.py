"""Statistics of a second verifier's verdicts on a run's completions (``[audit]``)."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from assay.run.intervals import Interval, clustered_stderr, share_interval, stderr_of


class Opinion(NamedTuple):
    """The status of a completion's verdict, and the status of its second verdict.

    problem: id of the problem. second: status of the second verdict; None if the completion has no
    second verdict. verifier: label of the second verifier.
    """

    problem: str
    first: str
    second: str | None = None
    verifier: str | None = None

    @property
    def known(self) -> bool:
        """Whether both verifiers judged the completion."""
        return self.first != "not_judged" and self.second in ("passed", "failed")


@dataclass(frozen=True, slots=True)
class OverruledShare:
    """Share of the accepted (or rejected) completions in which the second verifier disagrees.

    value: the share of a problem's completions, as the mean over problems. interval: its 95 %
    interval. num_judged, num_overruled: numbers of completions.
    """

    value: float
    interval: Interval
    num_problems: int
    num_judged: int
    num_overruled: int


def overruled_share(opinions: Iterable[Opinion], status: str) -> OverruledShare | None:
    """Return the share of the completions with verdict ``status`` that the second verifier
    contradicts; None without second verdicts.
    """
    by_problem: dict[str, list[bool]] = defaultdict(list)
    for one in opinions:
        if one.known and one.first == status:
            by_problem[one.problem].append(one.second != status)
    if not by_problem:
        return None
    # A resumed run reads completions in another order, which would change the last bits of a sum.
    # The completions are therefore sorted.
    shares = [sum(by_problem[name]) / len(by_problem[name]) for name in sorted(by_problem)]
    value = sum(shares) / len(shares)
    interval = share_interval(value, len(shares), stderr_of(shares))
    judged = [one for own in by_problem.values() for one in own]
    return OverruledShare(value, interval, len(shares), len(judged), sum(judged))


def _of_completions(opinions: Iterable[Opinion], status: str) -> tuple[float, Interval]:
    """Return the share of a problem's completions with verdict ``status`` that the second verifier
    contradicts; at least one completion must have a second verdict."""
    by_problem: dict[str, list[float]] = defaultdict(list)
    for one in opinions:
        if one.known and one.first == status:
            by_problem[one.problem].append(float(one.second != status))
    names = sorted(by_problem)
    values, sizes = (
        [value for name in names for value in by_problem[name]],
        [len(by_problem[name]) for name in names],
    )
    share = sum(values) / len(values)
    return share, share_interval(share, len(sizes), clustered_stderr(values, sizes))


def opinion_metrics(window: Sequence[Opinion], step: Sequence[Opinion]) -> dict[str, float]:
    """Return the metrics of the second verdicts. window: verdict pairs of the completions in the
    last steps, each with its ``step``.

    The disagreement weights the shares of accepted and of rejected completions by their frequency,
    because the second verifier judges different fractions of them. The interval of the disagreement
    follows Zou and Donner (2008). Both shares are shares of completions here, because means over
    problems do not fit such weights: a problem with one accepted completion would count as much as
    one with eight.
    """
    asked = [one for one in step if one.second is not None]
    found = {"verifier/num_second": float(len(asked))}
    found["verifier/num_second_not_judged"] = float(sum(not one.known for one in asked))
    kinds = {"passed": "verifier/false_accept", "failed": "verifier/false_reject"}
    shares = {status: overruled_share(window, status) for status in kinds}
    for status, name in kinds.items():
        if (share := shares[status]) is not None:
            found |= _with_interval(name, share.value, share.interval)
    accepted, rejected = shares["passed"], shares["failed"]
    if accepted is not None:
        found["verifier/num_problems"] = float(accepted.num_problems)
    if accepted is not None and rejected is not None:
        first = [one.first for one in window if one.first != "not_judged"]
        weight = first.count("passed") / len(first)
        both = (
            (weight, *_of_completions(window, "passed")),
            (1 - weight, *_of_completions(window, "failed")),
        )
        value = sum(own * share for own, share, _ in both)
        down, up = (
            math.hypot(*(own * (share - interval[side]) for own, share, interval in both))
            for side in (0, 1)
        )
        interval = max(0.0, value - down), min(1.0, value + up)
        found |= _with_interval("verifier/disagreement", value, interval)
    return found


def _with_interval(name: str, value: float, interval: Interval) -> dict[str, float]:
    return {name: value, f"{name}_low": interval[0], f"{name}_high": interval[1]}


OPINION_COLUMNS = ("problem_id", "status", "second_status", "second_verifier")
"""Columns of the rollout log from which `opinion_of` reads."""


def opinion_of(row: Mapping[str, str | None]) -> Opinion:
    """Return the statuses of both verdicts in a row of the rollout log."""
    problem, first, second, verifier = (row[name] for name in OPINION_COLUMNS)
    return Opinion(problem or "", first or "not_judged", second, verifier)


def of_one_verifier(opinions: Iterable[Opinion], labels: Collection[str | None]) -> list[Opinion]:
    """Remove second verdicts of other second verifiers, for example from before a resume."""
    return [one if one.verifier in labels else Opinion(*one[:2]) for one in opinions]
