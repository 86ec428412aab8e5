"""Reinforcement learning: THE page. `train_step` and `collect` are the whole of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from assay.data.curriculum import Curriculum
from assay.generate.base import Generator
from assay.learn.advantages import compute_advantages
from assay.learn.base import Learner
from assay.run.directory import Run
from assay.run.guard import Guard
from assay.session.evaluate import Judge
from assay.training.batch_plan import BatchPlan, Judged, is_mixed, sample_groups, unzip
from assay.types import Group, Verdict


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
    temperature = loop.plan.sampling_at(loop.run.step).temperature
    batch = loop.learner.score(groups, verdicts, temperature)
    advantages = compute_advantages(batch, loop.learner.algorithm)
    update = loop.learner.update(batch, advantages)
    loop.generator.load_policy(loop.learner.weights())
    loop.run.finish_step(update)
    loop.guard.check(loop.run)


def collect(
    curriculum: Curriculum, generator: Generator, verifiers: Judge, run: Run, plan: BatchPlan
) -> tuple[list[Group], list[Sequence[Verdict]]]:
    """Draw problems, sample and judge their groups, and write them down before they are used.

    Under dynamic sampling (DAPO eq. 11) groups whose judged completions are all right or all wrong
    are replaced by fresh draws, at most ``max_refills`` times; they are recorded all the same.
    Where no group is mixed they are what is returned: measured, and not learned from.

    A curriculum that over-samples draws more problems than are wanted. The groups that end first
    are taken; the others' problems wait in the curriculum until they fill a step of their own.
    """
    kept: list[Judged] = []
    passed_over: list[Judged] = []
    sampling = plan.sampling_at(run.step)
    for number in range(1 + plan.max_refills):
        wanted, parts = plan.num_prompts - len(kept), (generator, verifiers)
        problems = curriculum.draw(wanted, refill=number > 0)
        sizes = curriculum.group_sizes(problems, plan.group_size)
        groups, verdicts = sample_groups(*parts, problems, sizes, sampling, plan, wanted)
        curriculum.observe(groups, verdicts)
        for judged in zip(groups, verdicts, strict=True):
            (kept if not plan.max_refills or is_mixed(judged[1]) else passed_over).append(judged)
        if len(kept) == plan.num_prompts:
            break
    if not kept:
        kept, passed_over = passed_over, []
    generator.sleep()  # an update needs the memory
    run.record(*unzip([*kept, *passed_over]), sampling=sampling)
    return unzip(kept)
