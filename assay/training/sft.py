"""Supervised fine-tuning: the loss covers completions only, and batches have no padding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from assay.config import DistillConfig, PretrainConfig, SFTConfig, TrainConfig
from assay.data.chat import PromptRenderer
from assay.data.traces import Trace
from assay.errors import DataError, message
from assay.host.startup import doing
from assay.learn.passes import Passes
from assay.learn.ranks import ALONE, Ranks
from assay.learn.sft_update import SFTLearner, Teacher
from assay.learn.teacher import TeacherElsewhere, TeacherModel
from assay.model.load import LoadedModel
from assay.model.packing import Batch, Layout, pack
from assay.model.probe import NUM_PROMPTS, prove_lean
from assay.plan.step_seconds import GivenWork
from assay.run.directory import Run
from assay.run.evaluations import TRACES
from assay.run.guard import Guard
from assay.session.assemble import Session, fit_heldout, open_session, open_verifiers
from assay.session.learners import make_passes
from assay.session.placement import open_learner_ranks
from assay.session.stage import FirstLook, Kind, Stage, evaluate_heldout, open_run, steps_of
from assay.training.heldout_loss import evaluate_traces, recorded
from assay.training.row_schedule import GOOD, RowSchedule, check_length
from assay.training.trace_rows import Traces, read_traces
from assay.types import Completion, Group, Problem
from assay.verify.service import VerifierService

# Number of traces whose lengths a dry run measures.
LOOKED_AT = 64


@dataclass(frozen=True)
class RenderedRows:
    """Training data of a supervised stage, rendered to tokens.

    lengths: number of trained tokens of each group. what: description of the data. notes: further
    lines of text that the run reports. evaluate: function that evaluates the stage; None: the stage
    is evaluated on held-out problems only. cross_entropy: see `SFTLearner`. beside: further models,
    such as a teacher, that score the same batches as the policy. teach: function that opens the
    teacher after the run is opened; None: there is no teacher. teacher_of: see `sft_learner`, for
    learner ranks other than 0.
    """

    groups: Sequence[Group]
    lengths: Sequence[int]
    what: str
    notes: Sequence[str] = ()
    evaluate: Callable[[Run, SFTLearner], None] | None = None
    cross_entropy: float = 1.0
    beside: Sequence[Any] = ()
    teach: Callable[[Passes, Run], Callable[[Sequence[int]], Teacher]] | None = None
    teacher_of: Callable[[LoadedModel], Any] | None = None


def run_sft(stage: Stage) -> Path:
    """Run the supervised stage; return the run's folder. Raises RunStopped, by a guard."""
    assert stage.config.sft is not None
    return learn_given(stage, stage.config.sft, read_traces, lay_out_traces)


def learn_given(
    stage: Stage,
    settings: SFTConfig | PretrainConfig | DistillConfig,
    read: Callable[[TrainConfig, VerifierService], Any],
    lay_out: Callable[[Session, Any], RenderedRows],
) -> Path:
    """Run a supervised stage, which trains on fixed rows; return the run's folder.

    read: function that opens the rows before a model is loaded. lay_out: function that renders the
    rows to tokens. Raises RunStopped if a guard stops the run.
    """
    config = stage.config
    with ExitStack() as stack:
        guard = Guard(config.watched)
        verifiers = open_verifiers(config, stack, actors=True)
        with doing("checking the rows"):
            given = read(config, verifiers)
        session = open_session(config, verifiers)
        heldout, canaries = (
            fit_heldout(rows, session) for rows in (given.problems, given.canaries)
        )
        with doing("rendering the rows"):
            rendered = lay_out(session, given)
        groups, per_step = rendered.groups, settings.tokens_per_step
        schedule = RowSchedule(
            len(groups), settings.epochs, config.run.seed, per_step, rendered.lengths
        )
        first = [groups[n].prompt.tokens for n in range(min(NUM_PROMPTS, len(groups)))]
        # Some models scale their logits outside the output head,
        # and the lean (faster) forward path skips this scaling.
        # The distributions would then be wrong, so the lean path is checked on this model.
        lean, note = prove_lean(session.loaded.model, *rendered.beside, prompts=first)
        make = partial(
            sft_learner, steps=schedule.num_steps, lean=lean, cross_entropy=rendered.cross_entropy
        )
        elsewhere = partial(make, teacher_of=rendered.teacher_of)
        ranks = open_learner_ranks(config, session.loaded, elsewhere, stack)
        learner = make(config, session.loaded, ranks)
        run = open_run(stage, schedule.num_steps, session.loaded.model, stack, session)
        run.attach(model=learner)
        learner.clock = run.clock
        notes = [f"{rendered.what}, {schedule.num_steps} steps", *rendered.notes, note]
        run.note("; ".join(filter(None, notes)))
        teach = None if rendered.teach is None else rendered.teach(learner.passes, run)

        def evaluate_now() -> None:
            # Sharded weights are gathered for the generator.
            learner.weights()
            # The first evaluation of a run determines the kind that decides on the best step.
            # The perplexity of documents decides, but accuracy decides before the loss of traces.
            loss_first = config.pretrain is not None
            if rendered.evaluate is not None and loss_first:
                rendered.evaluate(run, learner)
            evaluate_heldout(run, session, heldout, canaries)
            if rendered.evaluate is not None and not loss_first:
                rendered.evaluate(run, learner)

        for step in steps_of(run, guard, evaluate_now):
            rows = schedule.draw(step)
            batch = pack([groups[n] for n in rows], [[GOOD]] * len(rows), learner.device)
            teacher = None if teach is None else teaching(teach(rows), learner, batch)
            run.finish_step(learner.update(batch, teacher))
            guard.check(run)
    return run.folder


def sft_learner(
    config: TrainConfig,
    loaded: LoadedModel,
    ranks: Ranks = ALONE,
    *,
    steps: int,
    lean: bool,
    cross_entropy: float,
    layout: Layout = "plain",
    teacher_of: Callable[[LoadedModel], Any] | None = None,
) -> SFTLearner:
    """Return the supervised learner of one process.

    layout: batch layout. Rows of a file share no prompts, so the layout ``tree`` would only add the
    cost of an attention mask. teacher_of: function that returns one teacher for all updates; None:
    each update is given its teacher.
    """
    passes = make_passes(config, loaded, steps, layout, lean, ranks=ranks)
    return SFTLearner(passes, cross_entropy, None if teacher_of is None else teacher_of(loaded))


def teaching(teacher: Any, learner: SFTLearner, batch: Batch) -> Teacher | None:
    """Return the teacher for an update. With several learner ranks, a teacher in other processes is
    replaced by its results, which can be sent to the ranks.

    A local teacher model is not sent, because every learner rank has loaded it.
    """
    if learner.passes.ranks.size == 1:
        return teacher
    if isinstance(teacher, TeacherElsewhere):
        return teacher.cached(batch, learner.passes)
    if isinstance(teacher, TeacherModel):
        learner.teacher = teacher
        return None
    return teacher


def lay_out_traces(
    session: Session, traces: Traces, context_length: int | None = None
) -> RenderedRows:
    """Render all traces to tokens.

    context_length: context length of the teacher model, which also limits the length of a trace.
    """
    longest = min(filter(None, (session.loaded.context_length, context_length)), default=None)
    groups = trace_groups(traces.train, session.renderer, longest)
    lengths = [len(group.completions[0].tokens) for group in groups]
    what = f"{len(groups)} traces"
    if not traces.heldout:
        return RenderedRows(groups, lengths, what, traces.notes)
    heldout = _heldout_groups(traces, session.renderer, longest)
    measure = recorded(TRACES, lambda learner: evaluate_traces(learner, heldout, traces.heldout))
    return RenderedRows(groups, lengths, f"{what}, {len(heldout)} held out", traces.notes, measure)


def _heldout_groups(traces: Traces, renderer: PromptRenderer, longest: int | None) -> list[Group]:
    groups = trace_groups(traces.heldout, renderer, longest)
    for trace, group in zip(traces.heldout, groups, strict=True):
        if not np.any(group.completions[0].sampled):
            found = "spans without a token, so that the trace has no loss"
            accepted = "a span with text of the assistant"
            raise DataError(message(f"{trace.source} said", found, accepted, "remove the row"))
    return groups


def first_look(config: TrainConfig, session: Session, rows: Traces) -> FirstLook:
    """Preview the supervised stage with these traces."""
    traces = rows.train
    first = f"the first completion is {traces[0].completion!r}"
    probed = [traces[n] for n in range(min(NUM_PROMPTS, len(traces)))]
    prompts = [group.prompt.tokens for group in trace_groups(probed, session.renderer)]
    lean, note = prove_lean(session.loaded.model, prompts=prompts)
    held = f", {len(rows.heldout)} held out" if rows.heldout else ""
    # The run measures each held-out trace, so an error in one of them must not wait for the run.
    _heldout_groups(rows, session.renderer, session.loaded.context_length)
    notes = [f"{len(traces)} traces{held}", first, *rows.notes, *filter(None, [note])]
    settings = config.sft or config.distill
    assert settings is not None
    looked_at = [traces[n] for n in range(min(LOOKED_AT, len(traces)))]
    work = given_work(trace_groups(looked_at, session.renderer), len(traces), settings)
    first_problem = Problem(
        "trace", traces[0].prompt, think=traces[0].think, effort=traces[0].effort
    )
    return FirstLook(first_problem, notes, lean=lean, work=work)


def given_work(
    groups: Sequence[Group], count: int, settings: SFTConfig | PretrainConfig | DistillConfig
) -> GivenWork:
    """From the lengths of the sampled ``groups``, estimate the steps and tokens of a run with
    ``count`` rows."""
    learned = sum(len(one.completions[0].tokens) for one in groups) / len(groups)
    # Prompt tokens are counted, because they cost a forward
    # and a backward pass although they have no loss.
    prompt = sum(len(one.prompt.tokens) for one in groups) / len(groups)
    tokens = settings.epochs * count * learned
    steps = max(1, round(tokens / settings.tokens_per_step))
    return GivenWork(steps, tokens / steps * (1 + prompt / max(1.0, learned)))


KIND = Kind(read_traces, first_look, run_sft)


def trace_groups(
    traces: Sequence[Trace], renderer: PromptRenderer, context_length: int | None = None
) -> list[Group]:
    """Render traces to tokens; each trace becomes a group with one completion.

    Raises DataError for a trace that is longer than the model's context.
    """
    groups: list[Group] = []
    for number, trace in enumerate(traces):
        prompt, completion, said = renderer.render_turns(trace)
        where, length = f"{trace.source} completion", len(prompt.tokens) + len(completion)
        accepted = f"the model's context of {context_length}"
        check_length(where, length, context_length, accepted, "shorten it")
        problem = Problem(
            id=f"trace-{number}", prompt=trace.prompt, source=trace.source, think=trace.think
        )
        # Tokens that the policy does not generate, such as tool results, have no loss.
        learned = Completion.from_tokens(f"trace-{number}/0", completion, trace.completion)
        groups.append(Group(problem, prompt, (replace(learned, sampled=said),)))
    return groups
