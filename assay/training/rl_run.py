"""RL stage: load the model, the data and the verifiers, create the run folder, train and
evaluate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from assay.config import TrainConfig
from assay.data.draws_ahead import DrawsAhead
from assay.errors import ConfigError, message
from assay.learn.algorithms import Algorithm, describe, for_generator
from assay.run.directory import Run
from assay.run.guard import Guard
from assay.scale.ahead import AheadGenerator
from assay.scale.rollouts import ActorGenerator
from assay.session.assemble import (
    Problems,
    Session,
    choose_algorithm,
    choose_layout,
    fit_problems,
    read_problems,
)
from assay.session.learners import rl_learner
from assay.session.placement import open_learner_ranks
from assay.session.stage import (
    FirstLook,
    Kind,
    Stage,
    evaluate_heldout,
    open_on_policy,
    steps_of,
)
from assay.session.teachers import model_of, notes_on, open_reference, teacher_of_ranks
from assay.training.batch_plan import BatchPlan, ahead_calls
from assay.training.rl import Loop, train_step
from assay.types import Group, Problem


def run_rl(stage: Stage) -> Path:
    """Run the RL stage; return the run's folder. Raises RunStopped, by a guard."""
    with ExitStack() as stack:
        loop, evaluate_now = open_loop(stage, stack)
        for _ in steps_of(loop.run, loop.guard, evaluate_now):
            train_step(loop)
    return loop.run.folder


def open_loop(stage: Stage, stack: ExitStack) -> tuple[Loop, Callable[[], None]]:
    """Load everything that an RL run needs; return (loop, evaluation function). ``stack`` closes
    the opened resources."""
    config = stage.config
    assert config.rl is not None
    algorithm = choose_algorithm(config)
    refuse_mixed_temperatures(config, algorithm)
    # The guard is opened first, so that a rule that cannot be imported fails before a model is
    # loaded.
    guard = Guard(config.watched)
    opened = open_on_policy(stage, stack)
    session, problems = opened.session, opened.problems
    teacher = open_reference(session, algorithm)
    layout = choose_layout(session, problems.train, config.largest_group, model_of(teacher))
    # If the generator's log-probabilities are inexact,
    # the preset gets importance weights that correct them.
    row = for_generator(algorithm, session.sampler.exact)
    make = partial(rl_learner, row=row, layout=layout)
    elsewhere = partial(make, teacher_of=teacher_of_ranks(session, teacher))
    ranks = open_learner_ranks(session.config, session.loaded, elsewhere, stack)
    # The other ranks start first and load their models while this process builds its learner.
    here = None if teacher is None else lambda policy: teacher
    learner = make(session.config, session.loaded, ranks, teacher_of=here)
    started = opened.start(config.rl.steps, learner, layout, notes_on(teacher))
    run, curriculum, generator, judge = started
    plan = BatchPlan(
        num_prompts=config.rl.num_prompts,
        group_size=config.rl.group_size,
        sampling=config.sampling,
        max_refills=config.rl.max_refills if algorithm.dynamic_sampling else 0,
        max_group_size=config.rl.max_group_size,
        temperatures=config.rl.temperature_schedule,
        parts=config.data.mixture,
    )
    if isinstance(curriculum, DrawsAhead) and isinstance(session.actors, AheadGenerator):
        start_ahead(curriculum, session.actors, run, plan)
    if isinstance(session.actors, ActorGenerator):
        run.add_metrics(session.actors.take_metrics)
    loop = Loop(
        curriculum=curriculum,
        generator=generator,
        verifiers=judge,
        run=run,
        learner=learner,
        guard=guard,
        plan=plan,
    )
    return loop, lambda: evaluate_heldout(run, session, problems.heldout, problems.canaries)


def refuse_mixed_temperatures(config: TrainConfig, algorithm: Algorithm) -> None:
    """Raise ConfigError if dynamic sampling would take groups that were sampled for a later step
    with another temperature."""
    assert config.rl is not None
    points = config.rl.temperature_schedule
    if config.scale.steps_ahead and points and algorithm.dynamic_sampling and config.rl.max_refills:
        accepted = f"none with scale.steps_ahead and the refills of {algorithm.name}"
        remedy = "remove it, or set rl.max_refills = 0"
        raise ConfigError(message("rl.temperature_schedule", [*points], accepted, remedy))


def start_ahead(curriculum: DrawsAhead, actors: AheadGenerator, run: Run, plan: BatchPlan) -> None:
    """Let Ray actors sample the problems of later steps, except problems whose groups are already
    in the log."""
    log = run.rollouts.sampled
    log.has_later_steps = True
    # Dynamic sampling may use a group before its planned step,
    # so a group can be in the log of an earlier step.
    known, step = set[str](), run.step + 1
    while (recorded := run.recorded(step)) is not None:
        known |= {group.id for group in recorded.groups}
        step += 1

    def begin(problems: Sequence[Problem], sizes: Sequence[int], step: int) -> None:
        log.turn_to(run.step + 1, actors.policy_version)
        missing = [
            n
            for n, one in enumerate(problems)
            if one.group_id not in known and log.whole(one, range(sizes[n])) is None
        ]
        some = [problems[n] for n in missing], [sizes[n] for n in missing]
        actors.begin(ahead_calls(plan, *some, step))

    def finished(group: Group) -> None:
        for one in group.completions:
            log.add(group.problem, group.prompt, one)

    curriculum.begin, actors.on_finished = begin, finished
    curriculum.continue_at(run.step)


def first_look(config: TrainConfig, session: Session, rows: Problems) -> FirstLook:
    """Preview the RL stage with these problems."""
    assert config.rl is not None
    row, problems = choose_algorithm(config), fit_problems(rows, session)
    teacher = open_reference(session, row)
    layout = choose_layout(session, problems.train, config.largest_group, model_of(teacher))
    notes = [
        *problems.notes,
        *notes_on(teacher),
        f"{row.name}: {row.paper}, {row.equation}",
        f"{row.name} here sets: {describe(row) or 'only defaults'}",
        layout.reason,
        f"{config.rl.steps} steps of {config.completions_a_step} completions",
        *(f"warning: {text}" for text in session.verifiers.warnings()),
    ]
    return FirstLook(
        problems.train[0], notes, row.kl_weight > 0, row.has_critic, teacher, lean=layout.lean
    )


KIND = Kind(read_problems, first_look, run_rl)
