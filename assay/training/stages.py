"""A whole run of one stage: open the parts, create or resume the run, loop, evaluate, report."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from assay.config import TrainConfig
from assay.data.curriculum import Curriculum
from assay.data.traces import load_traces
from assay.errors import VerifierError
from assay.learn.sft_update import SFTLearner
from assay.model.probe import prove_lean
from assay.plan.record import run_decision
from assay.run.directory import Run
from assay.run.environment import read_environment
from assay.run.guard import Guard
from assay.run.metrics import kind_of
from assay.run.report import write_report
from assay.training.assemble import (
    Bench,
    choose_algorithm,
    choose_layout,
    fit_heldout,
    fit_problems,
    make_learner,
    make_passes,
    open_bench,
    open_verifiers,
    rate_words,
    read_heldout,
    read_problems,
)
from assay.training.batch_plan import BatchPlan
from assay.training.evaluate import evaluate
from assay.training.replay import RunGenerator, RunVerifiers
from assay.training.rl import Loop, train_step
from assay.training.sft import SFTLoop, TraceSchedule, sft_step, trace_groups
from assay.types import Problem
from assay.verify.base import resolve
from assay.verify.selftest import SelfTest, labelled_names, sampled_self_test
from assay.verify.service import VerifierService

SELF_TEST_ROWS = 12
COLD_START_FLOOR = 0.08


@dataclass(frozen=True)
class Source:
    """Where a run comes from: a new directory, or one to go on with."""

    config_path: Path | None = None
    resume: Path | None = None
    overrides: Sequence[str] = ()
    accept_changed_verifiers: bool = False
    quiet: bool = False


def run_rl(config: TrainConfig, source: Source) -> Path:
    """Run the reinforcement learning stage; returns the run's folder. Raises RunStopped by a guard."""
    assert config.rl is not None
    algorithm = choose_algorithm(config)
    with ExitStack() as stack:
        events = EventRelay()
        guard = Guard(config.guard)
        verifiers = open_verifiers(config, stack, events)
        rows = read_problems(config, verifiers)
        bench = open_bench(config, verifiers)
        problems = fit_problems(rows, bench)
        tested = try_verifiers(config, bench.verifiers)
        layout = choose_layout(config, bench, problems.train)
        learner = make_learner(config, bench, algorithm, layout)
        curriculum = Curriculum(problems.train, config.run.seed)
        run = open_run(config, source, bench, config.rl.steps, stack)
        events.run = run
        run.add_metrics(bench.verifiers.take_metrics)
        run.attach(model=learner, curriculum=curriculum)
        keep_judges(run, bench.verifiers, stack)
        learner.clock = run.clock
        for note in (*problems.notes, layout.reason):
            run.note(note)
        run.event(
            "assembled",
            layout=asdict(layout),
            slots=config.engine.slots,
            threads=bench.config.engine.threads,
        )
        run.event("self_test", verifiers=[one.as_dict() for one in tested])
        for warning in bench.verifiers.warnings():
            run.note(f"warning: {warning}")
        bench.generator.load_policy(learner.policy, learner.policy_version)
        loop = Loop(
            curriculum=curriculum,
            generator=RunGenerator(bench.generator, run),
            verifiers=RunVerifiers(bench.verifiers, run, bench.verifiers.describe),
            run=run,
            learner=learner,
            guard=guard,
            plan=BatchPlan(
                num_prompts=config.rl.num_prompts,
                group_size=config.rl.group_size,
                sampling=config.sampling,
                max_refills=config.rl.max_refills if algorithm.dynamic_sampling else 0,
                max_group_size=config.rl.max_group_size,
                temperatures=config.rl.temperature_schedule,
            ),
        )
        advance(run, lambda: train_step(loop), bench, problems.heldout)
    return run.folder


def run_sft(config: TrainConfig, source: Source) -> Path:
    """Run the supervised stage; returns the run's folder."""
    assert config.sft is not None
    with ExitStack() as stack:
        events = EventRelay()
        guard = Guard(config.guard)
        verifiers = open_verifiers(config, stack, events)
        traces = load_traces(config.sft.traces, on_bad_row=config.data.on_bad_row)
        rows = read_heldout(config, verifiers)
        bench = open_bench(config, verifiers)
        heldout = fit_heldout(rows, bench)
        groups = trace_groups(traces, bench.renderer, bench.loaded.context_length)
        schedule = TraceSchedule(groups, config.sft, config.run.seed)
        lean, note = prove_lean(bench.loaded.model)
        most = config.sft.max_tokens_per_micro_batch
        # A trace shares its prompt with no other, so that a tree would only add a mask.
        passes = make_passes(config, bench, schedule.num_steps, "sft", most, "plain", lean)
        learner = SFTLearner(passes)
        run = open_run(config, source, bench, schedule.num_steps, stack)
        events.run = run
        run.attach(model=learner)
        learner.clock = run.clock
        run.note(
            "; ".join(filter(None, [f"{len(groups)} traces, {schedule.num_steps} steps", note]))
        )
        loop = SFTLoop(schedule, run, learner, guard)
        advance(run, lambda: sft_step(loop), bench, heldout)
    return run.folder


def open_run(
    config: TrainConfig, source: Source, bench: Bench, num_steps: int, stack: ExitStack
) -> Run:
    """Create the run's directory, or open the one to go on with; its report is written as it closes."""
    if source.resume is not None:
        used = filter(bench.verifiers.allows, verifiers_of(source.resume))
        bench.verifiers.check(used)  # so that `describe` has them too
        run = Run.resume(
            source.resume,
            overrides=source.overrides,
            verifiers=bench.verifiers.describe(),
            accept_changed_verifiers=source.accept_changed_verifiers,
            num_steps=num_steps,
            quiet=source.quiet,
        )
    else:
        run = Run.create(
            bench.config,
            config_path=source.config_path,
            verifiers=bench.verifiers.describe(),
            num_steps=num_steps,
            decision=run_decision(
                config, source.config_path, rate_words(config, bench.loaded.model)
            ),
            quiet=source.quiet,
        )
    bench.generator.watch = run.progress.sampling
    stack.callback(report_if_possible, run.folder)
    return stack.enter_context(run)


def report_if_possible(folder: Path) -> None:
    """Write the report; a run that is over is not failed by a page that cannot be written."""
    try:
        write_report(folder)
    except OSError as error:
        print(f"warning: {folder}: no report ({error}); see assay report", file=sys.stderr)


def advance(
    run: Run,
    step: Callable[[], None],
    bench: Bench,
    heldout: Sequence[Problem],
    evaluate_more: Callable[[], None] | None = None,
) -> None:
    """Take steps until the run is done or must stop; evaluate before, when due, and after.

    evaluate_more: what else there is to evaluate, behind the held-out problems.
    """

    def evaluate_now() -> None:
        evaluate_heldout(run, bench, heldout)
        if evaluate_more is not None and run.stop_reason != "interrupted":
            evaluate_more()

    assert run.num_steps is not None
    if run.step >= run.num_steps:
        run.note(
            f"all {run.step} steps are done; to extend the run:"
            f" assay train --resume {run.folder} --set {_longer(run)}"
        )
    if evaluation_due(run):  # before the first step; later where the run was killed just before it
        evaluate_now()
    run.begin_step()
    while run.step < run.num_steps and run.stop_reason is None:
        step()
        if run.step == 1:
            warn_of_cold_start(run)
        if evaluation_due(run):
            evaluate_now()


def _longer(run: Run) -> str:
    """Return the override that makes a run longer."""
    config = run.config
    if config.rl is not None:
        return f"rl.steps={2 * run.step}"
    if config.preference is not None:
        return "preference.epochs=N" if config.preference.pairs else "preference.steps=N"
    return "sft.epochs=N"


def evaluation_due(run: Run) -> bool:
    """Whether held-out problems are to be evaluated now, after ``run.step`` steps."""
    every = run.config.evaluation.every
    if run.step in (0, run.num_steps) or run.stop_reason == "max_minutes":
        return True
    return every is not None and run.step % every == 0


def evaluate_heldout(run: Run, bench: Bench, heldout: Sequence[Problem]) -> None:
    """Evaluate at every configured temperature, unless this step's evaluation is there already."""
    done = {row.get("eval/temperature") for row in run.evaluations(run.step)}
    settings = run.config.evaluation
    for temperature in settings.temperatures if heldout else ():
        if temperature not in done and run.stop_reason != "interrupted":
            sampling = run.config.sampling.model_copy(update={"temperature": temperature})
            what = f"held-out problems, {kind_of({'eval/temperature': temperature})}"
            with run.progress.sampling.doing(what, len(heldout) * settings.num_samples):
                result = evaluate(
                    bench.generator, bench.verifiers, heldout, sampling, settings.num_samples
                )
            run.record_evaluation(result.as_row())


def try_verifiers(config: TrainConfig, service: VerifierService) -> list[SelfTest]:
    """Ask the built-in verifiers in use a sample of their labelled rows, as their authors did.

    Raises VerifierError where one gives a wrong verdict: a run must not learn from it. The options of
    the configuration are left out, since labels are those of the defaults, but for what only it can say.
    """
    names = [name for name in service.describe() if name in labelled_names()]
    asked = [name for name in names if resolve(name).lane == "worker"]
    if not asked:
        return []
    options = {
        name: {
            field.name: config.verification.options[name][field.name]
            for field in resolve(name).fields
            if not field.from_row and field.name in config.verification.options[name]
        }
        for name in asked
        if name in config.verification.options
    }
    with VerifierService(asked[0], num_workers=1, deadline=60.0, options=options) as fresh:
        found = sampled_self_test(fresh, asked, SELF_TEST_ROWS, config.run.seed)
    for result in found:
        if result.false_accepts or result.false_rejects:
            raise VerifierError(
                f"{result}; the verifier does not do here what it did where it was made; "
                f"see: assay verify --self-test --verifier {result.verifier.partition('@')[0]}"
            )
    return found


def keep_judges(run: Run, service: VerifierService, stack: ExitStack, always: bool = False) -> None:
    """Keep the raw replies of remote judges in the run, so that their verdicts can be reproduced.

    always: also where none of the verifiers is one.
    """
    if always or "judge" in service.describe():
        from assay.verify.judge.panel import close_judges, keep_replies

        keep_replies(run.folder / "judge_replies.jsonl")
        stack.callback(close_judges)


def verifiers_of(run: Path) -> list[str]:
    """Return the names of the verifiers that a run has used so far."""
    return list((read_environment(run) or {}).get("verifiers") or {})


def warn_of_cold_start(run: Run) -> None:
    """Warn where the first step found too little success to reinforce.

    Verdicts that compare siblings are no pass rate: most of them lose by their nature.
    """
    passed, settings = run.metrics.get("verdict/passed"), run.config.preference
    if passed is None or (settings is not None and settings.judge == "pairwise"):
        return
    if passed < COLD_START_FLOOR:
        run.event("cold_start", passed=passed)
        run.note(
            f"warning: only {passed:.1%} of the first step's completions are right (below"
            f" {COLD_START_FLOOR:.0%}): there is little to reinforce, and the run may learn nothing or"
            " collapse; train on easier problems, or cold-start with [sft] first"
        )


class EventRelay:
    """Takes events before the run exists, and hands them to it once it does."""

    def __init__(self) -> None:
        self.run: Run | None = None

    def __call__(self, kind: str, **facts: Any) -> None:
        """Write an event down; what happens before there is a run has no place to stand in."""
        if self.run is not None:
            self.run.event(kind, **facts)
