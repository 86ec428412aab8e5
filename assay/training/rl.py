"""One step of reinforcement learning: `train_step` and `collect` are the whole algorithm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from assay.data.mixture import Draws
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
    """The components of a training step, such as generator and learner, each behind a protocol."""

    curriculum: Draws
    generator: Generator
    verifiers: Judge
    run: Run
    learner: Learner
    guard: Guard
    plan: BatchPlan


def train_step(loop: Loop) -> None:
    """Sample and judge one batch, update the policy, and record the step."""
    groups, verdicts = collect(loop.curriculum, loop.generator, loop.verifiers, loop.run, loop.plan)
    temperature = loop.plan.sampling_at(loop.run.step).temperature
    batch = loop.learner.score(groups, verdicts, temperature)
    advantages = compute_advantages(batch, loop.learner.algorithm)
    update = loop.learner.update(batch, advantages)
    loop.generator.load_policy(loop.learner.weights())
    loop.run.finish_step(update)
    loop.guard.check(loop.run)


def collect(
    curriculum: Draws, generator: Generator, verifiers: Judge, run: Run, plan: BatchPlan
) -> tuple[list[Group], list[Sequence[Verdict]]]:
    """Draw problems, sample and judge their groups, and record the groups before the update.

    Dynamic sampling (DAPO, equation 11) replaces groups whose judged completions are all right or
    all wrong by fresh draws, at most ``max_refills`` times. Replaced groups are also recorded. If
    no group has both right and wrong completions, all groups are returned; they enter the metrics
    but give no gradient.

    A curriculum that oversamples draws more problems than needed. The groups that finish first are
    used for training. The problems of other groups wait in the curriculum until they fill a later
    step.
    """
    kept: list[Judged] = []
    passed_over: list[Judged] = []
    sampling = plan.sampling_at(run.step)
    for number in range(1 + plan.max_refills):
        wanted, parts = plan.num_prompts - len(kept), (generator, verifiers)
        problems = curriculum.draw(wanted, refill=number > 0)
        sizes = curriculum.group_sizes(problems, plan.group_size)
        groups, verdicts = sample_groups(*parts, problems, sizes, sampling, plan, wanted)
        # The curriculum observes all groups before the selection,
        # because replaced groups also measure pass rates.
        curriculum.observe(groups, verdicts)
        for judged in zip(groups, verdicts, strict=True):
            (kept if not plan.max_refills or is_mixed(judged[1]) else passed_over).append(judged)
        if len(kept) == plan.num_prompts:
            break
    if not kept:
        # If no group has both right and wrong completions,
        # the step is recorded, but its gradient is 0.
        kept, passed_over = passed_over, []
    # The generator frees its key-value cache, because the update needs the memory.
    generator.sleep()
    # The groups are recorded before the update, so that a killed run resumes with these groups.
    run.record(*unzip([*kept, *passed_over]), sampling=sampling)
    return unzip(kept)
