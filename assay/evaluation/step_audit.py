"""Find right answers with wrong reasoning: judge the reasoning steps of passed completions at
milestones of training.
"""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from assay.errors import ConfigError, RunError, message
from assay.evaluation.rejudge import JudgeOptions, Rejudged, rejudge
from assay.host.files import plain, write_json
from assay.host.records import read_record
from assay.host.terminal import aligned
from assay.report.loaded import load_run
from assay.run.intervals import share_interval
from assay.types import Verdict

STEPS = "steps.json"


@dataclass(frozen=True, slots=True)
class Milestone:
    """Counts of audited passed completions near one training step, the milestone.

    step: the training step. steps: first and last training step of the audited completions. wrong:
    number of passed completions that have a reasoning step with a score below the limit. no_steps:
    number of passed completions in which the verifier found no reasoning steps. share, interval:
    among passed completions with step scores, the share with a wrong step, and its 95 % interval.
    """

    step: int
    steps: Sequence[int]
    passes: int
    judged: int
    wrong: int
    no_steps: int
    share: float | None
    interval: Sequence[float] | None

    @property
    def not_judged(self) -> int:
        """Number of passed completions whose reasoning steps were not judged."""
        return self.passes - self.judged - self.no_steps


@dataclass(frozen=True, slots=True)
class StepAudit:
    """Result of a step audit at each milestone.

    below: limit of the step scores; a reasoning step with a lower score counts as wrong. reasons:
    number of unjudged passed completions, by the reason in the verdict.
    """

    verifier: str
    below: float
    milestones: Sequence[Milestone]
    reasons: Mapping[str, int] = field(default_factory=dict[str, int])

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        found = plain(asdict(self))
        for one, row in zip(self.milestones, found["milestones"], strict=True):
            row["not_judged"] = one.not_judged
        return found

    def lines(self) -> list[str]:
        """Return the table of milestones, and the reasons for *not judged*, as lines of text."""
        head = f"steps of passes, by {self.verifier}; wrong is a score below {self.below:g}"
        rows = [("milestone", "steps", "passes", "not judged", "no steps", "a step is wrong")]
        rows += [
            (
                f"step {one.step}",
                "-".join(map(str, dict.fromkeys(one.steps))),
                f"{one.passes}",
                f"{one.not_judged}",
                f"{one.no_steps}",
                f"{one.wrong} of {one.judged}" + _words(one),
            )
            for one in self.milestones
        ]
        why = [f"  not judged: {count}: {reason}" for reason, count in self.reasons.items()]
        return [head, *aligned(rows), *why]


def _words(one: Milestone) -> str:
    if one.share is None or one.interval is None:
        return ""
    low, high = one.interval
    return f" ({one.share:.0%}, 95% interval {low:.0%} to {high:.0%})"


def audit_steps(
    folder: Path,
    verifier: str,
    *,
    at: Sequence[int] = (),
    passes: int = 50,
    below: float = 0.5,
    seed: int = 0,
    how: JudgeOptions,
) -> tuple[StepAudit, list[Rejudged]]:
    """Judge the reasoning steps of random passed completions; return the audit, and the completions
    with wrong steps.

    verifier: verifier whose verdicts have `step_scores`; it replaces verifiers that rows name, and
    judges each completion alone. at: milestones (training steps); empty: the first, the middle and
    the last recorded step. passes: maximum number of passed completions per milestone, one per
    problem, from the nearest training steps. how: see `rejudge`. Raises RunError for a training
    step that was not recorded and for a verifier without step scores.
    """
    # Comparisons with NaN are false, so with a limit of NaN no step would be wrong.
    if not math.isfinite(below):
        raise ConfigError(message("assay run audit --below", below, "a number, as 0.5"))
    sample = _draw(folder, at, passes, seed)
    drawn = {one for each in sample.values() for one in each}
    wrong: list[Rejudged] = []
    found: dict[tuple[int, str], Verdict] = {}
    if steps := sorted({step for step, _ in drawn}):
        asked = {"steps": steps, "only": drawn, "instead_of_rows": True}
        with rejudge(folder, verifier, **asked, **how) as again:
            for pair in chain.from_iterable(again):
                found[pair.step, pair.completion.id] = pair.new
                if _is_wrong(pair.new, below):
                    wrong.append(pair)
    judged = [one for one in found.values() if one.judged]
    # A verifier without step scores would find no steps in any completion: this is an error.
    if judged and not any(one.step_scores for one in judged):
        accepted = "a verifier that scores steps: process_reward_model, or your own"
        remedy = "set step_scores in its verdicts, and check that it finds the steps of these texts"
        where = f"assay run audit --steps {verifier}"
        raise RunError(
            message(where, f"no step scores in {len(judged)} verdicts", accepted, remedy)
        )
    reasons = Counter(one.detail or str(one.reason) for one in found.values() if not one.judged)
    if missing := len(drawn) - len(found):
        reasons["the problem is gone, or the file cannot be read"] = missing
    milestones = [_milestone(step, each, found, below) for step, each in sample.items()]
    kept = StepAudit(verifier, below, milestones, dict(reasons.most_common()))
    (folder / "audit").mkdir(exist_ok=True)
    write_json(folder / "audit" / STEPS, kept.as_dict())
    return kept, wrong


def read_step_audit(folder: Path) -> StepAudit | None:
    """Return the latest step audit of a run; None if there was no audit. Raises RunError."""
    return read_record(folder / "audit" / STEPS, StepAudit)


def _is_wrong(verdict: Verdict, below: float) -> bool:
    return verdict.judged and any(one.score < below for one in verdict.step_scores)


def _milestone(
    step: int,
    drawn: Sequence[tuple[int, str]],
    found: Mapping[tuple[int, str], Verdict],
    below: float,
) -> Milestone:
    verdicts = [found[one] for one in drawn if one in found and found[one].judged]
    judged = [one for one in verdicts if one.step_scores]
    wrong = sum(_is_wrong(one, below) for one in judged)
    share = wrong / len(judged) if judged else None
    steps = [number for number, _ in drawn]
    return Milestone(
        step=step,
        steps=[min(steps), max(steps)] if steps else [],
        passes=len(drawn),
        judged=len(judged),
        wrong=wrong,
        no_steps=len(verdicts) - len(judged),
        share=share,
        interval=None if share is None else share_interval(share, len(judged)),
    )


def _draw(
    folder: Path, at: Sequence[int], passes: int, seed: int
) -> dict[int, list[tuple[int, str]]]:
    """Draw passed completions near each milestone, at most one per problem.

    Returns the drawn completions as pairs (training step, completion id), by milestone. Passed
    completions of the training steps nearest to the milestone come first.
    """
    rows = load_run(folder).rollouts(columns=["step", "problem_id", "completion_id", "status"])
    steps = sorted({row["step"] for row in rows})
    if not steps:
        raise RunError(f"{folder}: holds no rollouts to judge again; name a run that has sampled")
    if unknown := [step for step in at if step not in steps]:
        accepted = f"a recorded step, {steps[0]} to {steps[-1]}"
        raise RunError(message("assay run audit --at", unknown[0], accepted))
    milestones = sorted({*at}) or sorted({steps[0], steps[(len(steps) - 1) // 2], steps[-1]})
    # Each training step belongs to its nearest milestone, so no completion is in two samples.
    near: dict[int, list[Any]] = defaultdict(list)
    for row in rows:
        if row["status"] == "passed":
            near[min(milestones, key=lambda one: abs(one - row["step"]))].append(row)
    sample: dict[int, list[tuple[int, str]]] = {}
    for milestone in milestones:
        # Each milestone has a random stream, so that adding a milestone changes no other sample.
        chance = random.Random(f"{seed} steps of {milestone}")
        # Shuffling before the stable sort puts completions of one step in random order.
        mixed = chance.sample(near[milestone], len(near[milestone]))
        mixed.sort(key=lambda row: abs(row["step"] - milestone))
        # Several passed completions of a problem often repeat the same mistakes.
        # Only one passed completion per problem is therefore audited.
        first: dict[str, tuple[int, str]] = {}
        for row in mixed:
            first.setdefault(row["problem_id"], (row["step"], row["completion_id"]))
        sample[milestone] = [*first.values()][:passes]
    return sample
