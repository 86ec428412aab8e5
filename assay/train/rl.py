"""Reinforcement learning: THE page. `train_step` and `collect` are the whole of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from assay.config import SamplingConfig
from assay.data.curriculum import Curriculum
from assay.generate.base import Generator
from assay.learn.advantages import compute_advantages
from assay.learn.update import Learner
from assay.model.packing import pack
from assay.run.directory import Run
from assay.run.guard import Guard
from assay.train.evaluate import Judge
from assay.types import Group, Verdict

Judged = tuple[Group, Sequence[Verdict]]


@dataclass(frozen=True)
class BatchPlan:
    """What is collected each step. max_refills: of dynamic sampling; 0 where the algorithm has none."""

    num_prompts: int
    group_size: int
    sampling: SamplingConfig
    max_refills: int = 0


@dataclass(frozen=True)
class Loop:
    """What a step works with: each part behind its own protocol, wherever it runs."""

    curriculum: Curriculum
    generator: Generator
    verifiers: Judge
    run: Run
    learner: Learner
    guard: Guard
    plan: BatchPlan


def train_step(loop: Loop) -> None:
    """Collect one batch, learn from it, write it all down."""
    groups, verdicts = collect(loop.curriculum, loop.generator, loop.verifiers, loop.run, loop.plan)
    batch = loop.learner.score(pack(groups, verdicts, loop.learner.device))
    advantages_T = compute_advantages(batch, loop.learner.algorithm)
    update = loop.learner.update(batch, advantages_T)
    loop.generator.load_policy(loop.learner.policy, update.policy_version)
    loop.run.finish_step(update)
    loop.guard.check(loop.run)


def collect(
    curriculum: Curriculum, generator: Generator, verifiers: Judge, run: Run, plan: BatchPlan
) -> tuple[list[Group], list[Sequence[Verdict]]]:
    """Draw problems, sample their groups, judge them, and write them down before they are learned from.

    Under dynamic sampling (DAPO eq. 11) groups whose judged completions are all right or all wrong
    are replaced by fresh draws, at most ``max_refills`` times; they are recorded all the same.
    """
    kept: list[Judged] = []
    passed_over: list[Judged] = []
    for _ in range(1 + plan.max_refills):
        problems = curriculum.draw(plan.num_prompts - len(kept))
        groups = generator.generate(problems, plan.sampling, plan.group_size)
        verdicts = verifiers.judge(groups)
        curriculum.observe(groups, verdicts)
        for judged in zip(groups, verdicts, strict=True):
            (kept if not plan.max_refills or is_mixed(judged[1]) else passed_over).append(judged)
        if len(kept) == plan.num_prompts:
            break
    if not kept:  # nothing to learn from, but a step is a step: its gradient is zero
        kept, passed_over = passed_over, []
    run.record(*unzip([*kept, *passed_over]))
    return unzip(kept)


def is_mixed(verdicts: Sequence[Verdict]) -> bool:
    """Return whether some judged completions are right and some are wrong."""
    return len({verdict.correct for verdict in verdicts if verdict.judged}) == 2


def unzip(judged: Sequence[Judged]) -> tuple[list[Group], list[Sequence[Verdict]]]:
    """Return the groups and their verdicts apart."""
    return [group for group, _ in judged], [verdicts for _, verdicts in judged]
