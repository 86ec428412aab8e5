"""Facts for a simulation from the records of a short run: lengths, verdicts, unit times."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from assay.errors import RunError, message
from assay.plan.cluster_events import ClusterCosts, ClusterWork, simulate
from assay.plan.step_seconds import FORWARD_SHARE
from assay.report.loaded import LoadedRun, load_run
from assay.run.rollout_log import RolloutLog, read_columns

SPREAD = 1.2
"""Minimum ratio of the largest to the smallest step's tokens for a fit of an update's constant."""


@dataclass(frozen=True, slots=True)
class PilotFacts:
    """Facts of a run.

    steps: lengths of completions by step, group and sibling. prompt_tokens: mean length of a
    prompt. verdict_seconds: mean seconds of a verdict in a worker. name: the run's name.
    """

    name: str
    steps: Sequence[Sequence[Sequence[int]]]
    prompt_tokens: float
    verdict_seconds: float

    @property
    def groups(self) -> list[Sequence[int]]:
        """The lengths of all groups."""
        return [group for step in self.steps for group in step]


def read_pilot(path: Path) -> PilotFacts:
    """Read the facts of a run that has sampled. Raises RunError."""
    run = load_run(path)
    log = RolloutLog(run.folder / "rollouts")
    steps: list[list[list[int]]] = []
    prompts: list[int] = []
    seconds: list[list[float]] = []
    for step in log.steps():
        columns = ["group", "num_tokens", "prompt_tokens", "judge_seconds"]
        groups: dict[int, list[int]] = {}
        judged: list[float] = []
        for row in read_columns(log.path(step), columns) or ():
            if row["group"] not in groups:
                prompts.append(len(row["prompt_tokens"]))
            groups.setdefault(row["group"], []).append(row["num_tokens"])
            judged.append(row["judge_seconds"] or 0.0)
        if groups:
            steps.append(list(groups.values()))
            seconds.append(judged)
    if not steps:
        found = "no recorded completions"
        raise RunError(message(f"--pilot {path}", found, "a run that has sampled a step"))
    # In the first step, verifiers import their modules.
    verdict = statistics.fmean(one for judged in seconds[1:] or seconds for one in judged)
    return PilotFacts(run.folder.name, steps, statistics.mean(prompts), verdict)


def fit_costs(run: LoadedRun, facts: PilotFacts, slots: int) -> ClusterCosts:
    """Fit unit times to the steps of a run of one process without actors.

    The first step is left out, because it warms caches. slots: slots of the run's engine.
    """
    rows = list(run.metrics)[1:]
    lengths = facts.steps[1 : 1 + len(rows)]
    if not rows or len(rows) != len(lengths):
        raise RunError(
            message(f"--pilot {run.folder}", f"{len(run.metrics)} finished steps", "at least 2")
        )
    prompts = [len(step) * facts.prompt_tokens for step in lengths]
    tokens = [sum(map(sum, step)) for step in lengths]
    trained = [a + b for a, b in zip(prompts, tokens, strict=True)]
    learned = [_seconds(row, "score", "update") for row in rows]
    if max(trained) >= SPREAD * min(trained):
        fixed, of_token = _fit([[1.0] * len(rows), trained], learned)
    else:
        fixed, of_token = 0.0, sum(learned) / sum(trained)
    read = FORWARD_SHARE * of_token
    decoded = [_decoding_steps(step, slots) for step in lengths]
    generated = [
        max(0.0, _seconds(row, "generate") - n * read) for row, n in zip(rows, prompts, strict=True)
    ]
    decode, of_slot = _fit([decoded, tokens], generated)
    phases = ("generate", "verify", "score", "update")
    others = [row["time/step"] - _seconds(row, *phases) for row in rows]
    return ClusterCosts(
        prompt_token=read,
        decode=decode,
        decode_slot=of_slot,
        update_token=of_token,
        update_fixed=fixed,
        verdict=facts.verdict_seconds,
        other=max(0.0, statistics.median(others)),
    )


def _seconds(row: Mapping[str, Any], *phases: str) -> float:
    return sum(row.get(f"time/{phase}") or 0.0 for phase in phases)


def _decoding_steps(step: Sequence[Sequence[int]], slots: int) -> float:
    """Return the number of decoding steps of one sampler."""
    work = ClusterWork(len(step), 1, 0.0, slots=slots)
    return simulate(work, ClusterCosts(decode=1.0), [step]).steps[0].sampled


def _fit(columns: Sequence[Sequence[float]], seconds: Sequence[float]) -> tuple[float, float]:
    """Return the nonnegative coefficients of two columns with the least squared relative error."""
    weights = np.asarray([1 / max(one, 1e-9) for one in seconds])
    table, target = np.asarray(columns, dtype=float).T * weights[:, None], np.ones(len(seconds))
    both, *_ = np.linalg.lstsq(table, target, rcond=None)
    if min(both) >= 0:
        return float(both[0]), float(both[1])
    # At the bound one coefficient is 0, and the other one is fitted alone.
    alone = [max(0.0, float(one @ target / (one @ one))) for one in table.T]
    errors = [float(((one * a - target) ** 2).sum()) for one, a in zip(table.T, alone, strict=True)]
    return (alone[0], 0.0) if errors[0] < errors[1] else (0.0, alone[1])
