"""Supervised fine-tuning, the cold start: the loss is on completions, and nothing is padded."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from assay.config import TrainConfig
from assay.data.chat import PromptRenderer
from assay.data.traces import Trace, load_traces
from assay.learn.sft_update import SFTLearner
from assay.model.packing import pack
from assay.model.probe import prove_lean
from assay.run.guard import Guard
from assay.training.assemble import (
    Bench,
    fit_heldout,
    make_passes,
    open_bench,
    open_verifiers,
    read_heldout,
)
from assay.training.given import GOOD, Schedule, check_length, given_completion
from assay.training.stage import FirstLook, Kind, Stage, evaluate_heldout, open_run, steps_of
from assay.types import Group, Problem
from assay.verify.service import VerifierService


def run_sft(stage: Stage) -> Path:
    """Run the supervised stage; returns the run's folder. Raises RunStopped by a guard."""
    config = stage.config
    assert config.sft is not None
    with ExitStack() as stack:
        guard = Guard(config.guard)
        verifiers = open_verifiers(config, stack)
        traces = read_traces(config, verifiers)
        rows = read_heldout(config, verifiers)
        bench = open_bench(config, verifiers)
        heldout = fit_heldout(rows, bench)
        groups = trace_groups(traces, bench.renderer, bench.loaded.context_length)
        lengths = [len(group.completions[0].tokens) for group in groups]
        per_step = config.sft.tokens_per_step
        schedule = Schedule(len(groups), config.sft.epochs, config.run.seed, per_step, lengths)
        lean, note = prove_lean(bench.loaded.model)
        # A trace shares its prompt with no other, so a tree would only add a mask.
        learner = SFTLearner(make_passes(config, bench.loaded, schedule.num_steps, "plain", lean))
        run = open_run(stage, schedule.num_steps, bench.loaded.model, stack, bench)
        run.attach(model=learner)
        learner.clock = run.clock
        told = [f"{len(groups)} traces, {schedule.num_steps} steps", note]
        run.note("; ".join(filter(None, told)))
        for step in steps_of(run, lambda: evaluate_heldout(run, bench, heldout)):
            drawn = [groups[n] for n in schedule.draw(step)]
            update = learner.update(pack(drawn, [[GOOD]] * len(drawn), learner.device))
            run.finish_step(update)
            guard.check(run)
    return run.folder


def read_traces(config: TrainConfig, verifiers: VerifierService) -> Sequence[Trace]:
    """Open the traces; raises DataError for a bad one, or leaves it out."""
    assert config.sft is not None
    return load_traces(config.sft.traces, on_bad_row=config.data.on_bad_row)


def first_look(config: TrainConfig, bench: Bench, traces: Sequence[Trace]) -> FirstLook:
    """Say what the supervised stage would do with these traces."""
    first = f"the first completion is {traces[0].completion!r}"
    lean = prove_lean(bench.loaded.model)[1]
    notes = [f"{len(traces)} traces", first, *filter(None, [lean])]
    return FirstLook(Problem("trace", traces[0].prompt, think=traces[0].think), notes)


KIND = Kind(read_traces, first_look, run_sft)


def trace_groups(
    traces: Sequence[Trace], renderer: PromptRenderer, context_length: int | None = None
) -> list[Group]:
    """Render traces to tokens; each becomes a group of one completion that is learned as it is.

    Raises DataError for a trace that is longer than the model's context.
    """
    groups: list[Group] = []
    for number, trace in enumerate(traces):
        prompt, (completion,) = renderer.render_replies(
            trace.prompt, [trace.completion], trace.source, trace.think
        )
        where, length = f"{trace.source} completion", len(prompt.tokens) + len(completion)
        accepted = f"the model's context of {context_length}"
        check_length(where, length, context_length, accepted, "shorten it")
        problem = Problem(
            id=f"trace-{number}", prompt=trace.prompt, source=trace.source, think=trace.think
        )
        learned = given_completion(f"trace-{number}/0", trace.completion, completion)
        groups.append(Group(problem, prompt, (learned,)))
    return groups
