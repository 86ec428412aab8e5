"""Distillation: learn a teacher's distributions on traces or on the student's completions."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

from assay.config import TrainConfig
from assay.model.packing import pack
from assay.run.guard import Guard
from assay.session.assemble import Problems, Session, choose_layout, fit_problems, read_problems
from assay.session.placement import open_learner_ranks
from assay.session.stage import (
    FirstLook,
    Kind,
    Stage,
    evaluate_heldout,
    open_on_policy,
    steps_of,
)
from assay.session.teachers import divergence_of, open_teacher, teacher_of_ranks
from assay.training import sft
from assay.training.batch_plan import BatchPlan
from assay.training.rl import collect
from assay.training.sft import (
    RenderedRows,
    lay_out_traces,
    learn_given,
    sft_learner,
    teaching,
)
from assay.training.teacher_cache import TeacherCache
from assay.training.trace_rows import Traces, read_traces
from assay.verify.service import VerifierService

Rows = Traces | Problems
"""Data of a distillation stage: traces, or problems for the student to answer."""


def run_distill(stage: Stage) -> Path:
    """Run the distillation stage; return the run's folder. Raises RunStopped, by a guard."""
    settings = stage.config.distill
    assert settings is not None
    if settings.traces:
        return learn_given(stage, settings, read_traces, lay_out_taught)
    return run_on_policy(stage)


def read_rows(config: TrainConfig, verifiers: VerifierService) -> Rows:
    """Open the traces or problems; a bad row raises DataError or is skipped (data.on_bad_row)."""
    assert config.distill is not None
    read = read_traces if config.distill.traces else read_problems
    return read(config, verifiers)


def lay_out_taught(session: Session, traces: Traces) -> RenderedRows:
    """Render the traces to tokens and open the teacher model that scores them."""
    settings = session.config.distill
    assert settings is not None
    if settings.keep is not None:
        rendered = lay_out_traces(session, traces)
        cache = TeacherCache(session, rendered.groups, traces.train)
        rendered = replace(rendered, teach=cache.open)
    else:
        teacher = open_teacher(session)
        rendered = lay_out_traces(session, traces, teacher.context_length)
        # The teacher scores the rows of each step during the step,
        # so one teacher object serves all steps.
        teach = lambda passes, run: lambda rows: teacher  # noqa: E731
        beside = [] if teacher.model is None else [teacher.model]
        of_ranks = teacher_of_ranks(session, teacher)
        rendered = replace(rendered, beside=beside, teach=teach, teacher_of=of_ranks)
    notes = [taught_words(session.config), *rendered.notes]
    return replace(rendered, notes=notes, cross_entropy=settings.cross_entropy)


def run_on_policy(stage: Stage) -> Path:
    """Run on-policy distillation, in which the student samples; return the run's folder."""
    config = stage.config
    settings = config.distill
    assert settings is not None
    with ExitStack() as stack:
        guard = Guard(config.watched)
        opened = open_on_policy(stage, stack)
        session, problems = opened.session, opened.problems
        teacher = open_teacher(session)
        layout = choose_layout(session, problems.train, settings.group_size, teacher.model)
        # The loss has no cross-entropy: a student must not imitate its own completions.
        make = partial(
            sft_learner,
            steps=settings.steps,
            lean=layout.lean,
            cross_entropy=0.0,
            layout=layout.layout,
        )
        elsewhere = partial(make, teacher_of=teacher_of_ranks(session, teacher))
        ranks = open_learner_ranks(config, session.loaded, elsewhere, stack)
        learner = make(config, session.loaded, ranks)
        started = opened.start(settings.steps, learner, layout, [taught_words(config)])
        run, curriculum, generator, verifiers = started
        plan = BatchPlan(settings.num_prompts, settings.group_size, config.sampling)
        evaluated = (problems.heldout, problems.canaries)
        for _ in steps_of(run, guard, lambda: evaluate_heldout(run, session, *evaluated)):
            groups, verdicts = collect(curriculum, generator, verifiers, run, plan)
            # Answers and tests of the problems are removed,
            # because other learner ranks do not need them.
            batch = replace(pack(groups, verdicts, learner.device), problems=())
            update = learner.update(batch, teaching(teacher, learner, batch))
            generator.load_policy(learner.weights())
            run.finish_step(update)
            guard.check(run)
    return run.folder


def taught_words(config: TrainConfig) -> str:
    """Return a text that names the configured divergence and the teacher."""
    assert config.distill is not None
    settings = config.distill
    share = settings.cross_entropy
    beside = f", and {share:g} of cross-entropy" if share else ""
    teacher = "a teacher" if config.teacher is None else config.teacher.path
    if config.teacher is not None and config.teacher.url is not None:
        teacher += f" at {config.teacher.url}"
    if settings.keep is not None:
        teacher += f", whose top {settings.keep_top} logits are cached in {settings.keep}"
    return f"{divergence_of(config)} from {teacher}{beside}"


def first_look(config: TrainConfig, session: Session, rows: Rows) -> FirstLook:
    """Preview the stage with these rows."""
    settings = config.distill
    assert settings is not None
    words = taught_words(config)
    if not isinstance(rows, Problems):
        look = sft.first_look(config, session, rows)
        look = replace(look, notes=[*look.notes, words])
        if settings.keep is None:
            teacher = open_teacher(session)
            # The result is not used: the call raises DataError for a trace that exceeds the
            # teacher's context.
            lay_out_traces(session, rows, teacher.context_length)
            return replace(look, teacher=teacher)
        cache = TeacherCache(session, lay_out_traces(session, rows).groups, rows.train)
        return replace(look, teacher=cache.teacher, asked=cache.asked)
    problems, teacher = fit_problems(rows, session), open_teacher(session)
    layout = choose_layout(session, problems.train, settings.group_size, teacher.model)
    steps = f"{settings.steps} steps of {config.completions_a_step} completions"
    notes = [*problems.notes, words, layout.reason, steps]
    return FirstLook(problems.train[0], notes, teacher=teacher, lean=layout.lean)


KIND = Kind(read_rows, first_look, run_distill)
