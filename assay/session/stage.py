"""The frame that all training stages share: inputs, run directory, and the loop over training
steps.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from assay.config import SamplingConfig, TrainConfig
from assay.data.mixture import Draws
from assay.errors import RunError, VerifierError
from assay.generate.engine_stats import EngineStats
from assay.host.startup import doing
from assay.host.terminal import warn
from assay.learn.spans import AnyTeacher
from assay.model.probe import LayoutChoice
from assay.plan.decision import LIMITS, reason_of
from assay.plan.facts import facts_of_config
from assay.plan.record import run_decision
from assay.plan.step_seconds import GivenWork
from assay.report.alerts import send_alerts
from assay.report.decision_record import write_record
from assay.report.report import write_report
from assay.report.trackers import report_to_trackers
from assay.run.directory import Run
from assay.run.environment import read_environment
from assay.run.evaluation_log import record_answers
from assay.run.evaluations import CANARIES, MUST_FAIL_CANARIES, kind_of
from assay.run.guard import Guard
from assay.run.startup import end_startup
from assay.session.assemble import (
    Problems,
    Session,
    fit_problems,
    open_session,
    open_verifiers,
    read_problems,
)
from assay.session.curricula import open_curriculum
from assay.session.evaluate import evaluate
from assay.session.heldout_rows import must_fail
from assay.session.learners import rate_words
from assay.session.placement import on_actors
from assay.session.second_opinion import SecondOpinion, mark_audited
from assay.session.step_log import RunGenerator, RunVerifiers
from assay.types import Group, Problem, Verdict
from assay.verify.base import resolve
from assay.verify.selftest import SelfTest, labelled_names, sampled_self_test
from assay.verify.service import VerifierService

SELF_TEST_ROWS = 12
_TESTED: dict[str, list[SelfTest]] = {}
"""Self-test results of this process, by verifier code, options and sampled rows."""


@dataclass(frozen=True)
class Stage:
    """Inputs of a training stage.

    config_path: path of the configuration file, if there is one. resume: directory of the run to
    resume; None starts a new run. overrides: changes that the user makes to the configuration.
    replay: whether to repeat the recorded steps of ``resume``; changed verifiers are then ignored,
    and no report is written.
    """

    config: TrainConfig
    config_path: Path | None = None
    resume: Path | None = None
    overrides: Sequence[str] = ()
    accept_changed_verifiers: bool = False
    quiet: bool = False
    replay: bool = False


@dataclass(frozen=True)
class FirstLook:
    """Preview of a training stage: its first problem, notes, and the models that need memory.

    teacher: teacher model that scores completions, if the stage has one. asked: number of tokens
    that the teacher scores before the first step, for each cache file. lean: whether the start-up
    probe accepted the lean decoder. work: token counts of a stage that trains on fixed rows.
    """

    problem: Problem
    notes: Sequence[str]
    has_reference: bool = False
    has_critic: bool = False
    teacher: AnyTeacher | None = None
    asked: Sequence[int] = ()
    lean: bool = True
    work: GivenWork | None = None


@dataclass(frozen=True)
class Kind:
    """Functions that implement one kind of training stage.

    read: function that opens and checks the rows, before a model is loaded. look: function that
    previews a run, from a model and the rows of ``read``. run: function that trains as configured,
    and returns the folder of the run. Raises RunStopped if a guard rule stops the run.
    """

    read: Callable[[TrainConfig, VerifierService], Any]
    look: Callable[[TrainConfig, Session, Any], FirstLook]
    run: Callable[[Stage], Path]


def open_run(
    stage: Stage,
    num_steps: int,
    model: Any,
    stack: ExitStack,
    session: Session | None = None,
    audited: Collection[str] = (),
) -> Run:
    """Create or resume a run directory; the report is written when ``stack`` closes.

    session: session whose sampler and verifiers report to the run; None if the stage does not
    sample. audited: names of verifiers that no reward uses.
    """
    end_startup()
    verifiers = None
    if session is not None and not stage.replay:
        # Rows may name verifiers that are loaded late; a resumed run also compares their versions.
        used = verifiers_of(stage.resume) if stage.resume is not None else ()
        verifiers = session.verifiers.describe(filter(session.verifiers.allows, used))
        verifiers = mark_audited(verifiers, audited)
    if stage.resume is not None:
        run = Run.resume(
            stage.resume,
            overrides=stage.overrides,
            verifiers=verifiers,
            accept_changed_verifiers=stage.accept_changed_verifiers,
            num_steps=num_steps,
            quiet=stage.quiet,
        )
    else:
        rate = rate_words(stage.config, model)
        run = Run.create(
            session.config if session is not None else stage.config,
            config_path=stage.config_path,
            verifiers=verifiers,
            num_steps=num_steps,
            decision=run_decision(stage.config, stage.config_path, rate),
            quiet=stage.quiet,
        )
    if session is not None:
        session.sampler.watch = partial(_watch_sampling, run)
        session.verifiers.listen(run.event)
        if session.actors is not None:
            session.actors.on_event = run.event
    if stage.config.scale.num_followers:
        run.event("learner_ranks", size=stage.config.scale.learner_ranks)
    # A replay runs in a temporary copy, which no report, tracker or alert should show.
    if not stage.replay:
        stack.callback(report_if_possible, run.folder)
        report_to_trackers(run)
        send_alerts(run)
    return stack.enter_context(run)


def _watch_sampling(run: Run, call: EngineStats) -> None:
    """Show the generator's progress. End the current step if a stop was requested."""
    run.clock.check()
    run.clock.num_signs += 1
    run.progress.sampling(call)


@dataclass(frozen=True)
class OnPolicy:
    """The opened session and the problems of a stage that learns from its own samples.

    tested: results of `try_verifiers`.
    """

    stage: Stage
    session: Session
    problems: Problems
    tested: Sequence[SelfTest]
    stack: ExitStack

    def start(
        self, num_steps: int, learner: Any, layout: LayoutChoice, notes: Sequence[str]
    ) -> tuple[Run, Draws, RunGenerator, RunVerifiers]:
        """Open the run, and attach the objects that checkpoints contain; return (run, curriculum,
        generator, verifiers).
        """
        model, audited = self.session.loaded.model, self.problems.audited
        run = open_run(self.stage, num_steps, model, self.stack, self.session, audited)
        for note in notes:
            run.note(note)
        attached = (self.session, self.problems, learner, layout, self.tested, self.stack)
        return run, *attach_sampling(run, *attached)


def open_on_policy(stage: Stage, stack: ExitStack) -> OnPolicy:
    """Open verifiers, problems, model and actors, and test the verifiers; ``stack`` closes all of
    them.

    The rows are checked before the model is loaded. A replay samples with the local engine, and
    skips the self-test of verifiers.
    """
    config = stage.config
    # A replay opens the cluster only if the teacher or the learner ranks run there.
    joined = config.scale.teacher_actors is not None or config.scale.num_followers > 0
    used = not stage.replay or joined
    verifiers = open_verifiers(config, stack, actors=used)
    with doing("checking the rows"):
        rows = read_problems(config, verifiers)
    session = open_session(config, verifiers)
    # Samples from vLLM or from earlier policies need importance weights, which a replay recomputes.
    if stage.replay:
        by_engine = config.scale.generator == "engine"
        session.generator.exact = by_engine and not config.scale.steps_ahead
    else:
        session = on_actors(session, stack)
    problems = fit_problems(rows, session)
    tested = [] if stage.replay else try_verifiers(config, session.verifiers)
    return OnPolicy(stage, session, problems, tested, stack)


def attach_sampling(
    run: Run,
    session: Session,
    problems: Problems,
    learner: Any,
    layout: LayoutChoice,
    tested: Sequence[SelfTest],
    stack: ExitStack,
    *,
    judge: Any = None,
    **parts: Any,
) -> tuple[Draws, RunGenerator, RunVerifiers]:
    """Attach the objects that checkpoints contain, restore their state on resume, and load the
    policy.

    tested: results of `try_verifiers`. judge: judge that replaces the verifiers of the session.
    parts: further objects to save in checkpoints.
    """
    curriculum = open_curriculum(problems.train, run.config)
    run.add_metrics(session.verifiers.take_metrics)
    run.add_metrics(curriculum.metrics)
    run.attach(model=learner, curriculum=curriculum, **parts)
    keep_judges(run, session.verifiers, stack, always=judge is not None)
    learner.clock = run.clock
    for note in filter(None, (*problems.notes, layout.reason, session.generator.note)):
        run.note(note)
    run.event(
        "assembled",
        layout=asdict(layout),
        slots=run.config.engine.slots,
        decoding=session.generator.path,
        rejected=list(session.generator.reasons),
        threads=session.config.engine.threads,
    )
    run.event("self_test", verifiers=[one.as_dict() for one in tested])
    for warning in session.verifiers.warnings():
        run.note(f"warning: {warning}")
    with run.clock.working("load_policy"):
        session.sampler.load_policy(learner.weights())
    second = None
    if run.config.audit is not None:
        second = SecondOpinion(run.config.audit, session.verifiers, run)
        run.add_metrics(second.metrics)
    judge = judge or session.verifiers

    def describe() -> Mapping[str, Mapping[str, Any]]:
        return mark_audited(judge.describe(), problems.audited)

    verifiers = RunVerifiers(judge, run, describe, second)
    return curriculum, RunGenerator(session.sampler, run), verifiers


def report_if_possible(folder: Path) -> None:
    """Write the report and the decision record. The run itself is complete, so a failed write is
    only a warning.
    """
    pages = (write_report, "report"), (write_record, "decision record")
    for write, name in pages:
        try:
            write(folder)
        except (OSError, RunError) as error:
            warn(f"{folder}: no {name} ({error}); see assay run report")


def steps_of(run: Run, guard: Guard, evaluate_now: Callable[[], None]) -> Iterator[int]:
    """Yield the number of each training step, until the run is complete or must stop.

    Held-out problems are evaluated before the first step, at scheduled steps, and after the last
    step. The guard's rules are checked after each evaluation and after each step.
    """
    assert run.num_steps is not None

    def evaluate_and_ask() -> None:
        # An interrupted evaluation raises or returns early, and a resumed run repeats it.
        run.is_evaluated = False
        evaluate_now()
        run.is_evaluated = run.stop_reason != "interrupted"
        # Some guard rules read held-out accuracy, so they are checked after each evaluation.
        if run.step:
            guard.check(run)

    # A kill may have prevented the guard's check after a step, so resume checks the guard.
    if run.step:
        guard.check(run)
    if run.step >= run.num_steps:
        run.note(
            f"all {run.step} steps are done; to extend the run:"
            f" assay train --resume {run.folder} --set {_longer(run)}"
        )
    # Evaluate at step 0, or at a resumed step whose evaluation a kill prevented.
    if evaluation_due(run, run.step):
        evaluate_and_ask()
    run.begin_step()
    while run.step < run.num_steps and run.stop_reason is None:
        run.hold_state()
        yield run.step
        if run.step == 1:
            warn_of_cold_start(run)
        if evaluation_due(run, run.step):
            evaluate_and_ask()


def _longer(run: Run) -> str:
    """Return an override (``KEY=VALUE``) with which the run gets more steps."""
    stage = run.config.stage
    if stage == "rl":
        return f"rl.steps={2 * run.step}"
    return f"{stage}.{'epochs' if run.config.drawing is None else 'steps'}=N"


def evaluation_due(run: Run, step: int) -> bool:
    """Whether an evaluation is scheduled after ``step`` steps."""
    every = run.config.evaluation.every
    if step in (0, run.num_steps) or run.stop_reason == "max_minutes":
        return True
    return every is not None and step % every == 0


def evaluate_heldout(
    run: Run, session: Session, heldout: Sequence[Problem], canaries: Sequence[Problem] = ()
) -> None:
    """Evaluate held-out problems at each temperature, and canaries at the first temperature.

    Evaluations that the run already has for this step are not repeated.
    """
    temperatures = run.config.evaluation.temperatures
    named = {kind_of({"eval/temperature": one}): (heldout, one) for one in temperatures}
    # Both kinds of canaries are separate evaluations, because a pass is good only in one of them.
    hacks = [one for one in canaries if must_fail(run.config, one)]
    honest = [one for one in canaries if not must_fail(run.config, one)]
    named |= {CANARIES: (honest, temperatures[0]), MUST_FAIL_CANARIES: (hacks, temperatures[0])}
    done = {kind_of(row) for row in run.evaluations(run.step)}
    for kind, (problems, temperature) in named.items():
        if problems and kind not in done and run.stop_reason != "interrupted":
            _evaluate_at(run, session, problems, temperature, kind)


def _evaluate_at(
    run: Run, session: Session, problems: Sequence[Problem], temperature: float, kind: str
) -> None:
    settings = run.config.evaluation
    sampling = run.config.sampling.model_copy(update={"temperature": temperature})
    is_heldout, many = kind == kind_of({"eval/temperature": temperature}), settings.num_samples
    what = f"held-out problems, {kind}" if is_heldout else kind
    judged: list[tuple[Group, Sequence[Verdict]]] = []

    def sampling_of(problem: Problem) -> SamplingConfig:
        return run.config.sampling_of(problem.tags, sampling)

    def keep(group: Group, verdicts: Sequence[Verdict]) -> None:
        if settings.keep_completions:
            judged.append((group, verdicts))

    shown = run.progress.sampling.doing(what, len(problems) * many)
    with run.clock.working("evaluate"), shown:
        parts = (session.sampler, session.verifiers, problems)
        result = evaluate(*parts, sampling, many, keep, sampling_of=sampling_of)
    if judged:
        record_answers(run.folder, kind, run.step, judged, sampling, run.verifiers)
    named = {} if is_heldout else {"eval/kind": kind}
    run.record_evaluation(result.as_row() | named)


@doing("testing the verifiers")
def try_verifiers(config: TrainConfig, service: VerifierService) -> list[SelfTest]:
    """Test the built-in verifiers that the run uses on a sample of their labelled rows.

    Raises VerifierError if a verdict differs from the label of its row, because a run must not
    learn from wrong verdicts. Results are cached for later stages in this process.
    """
    described = service.describe()
    asked = [
        name
        for name in described
        if name in labelled_names()
        and resolve(name).executor == "worker"
        and not resolve(name).fallible
    ]
    if not asked:
        return []
    # The labels assume the default values of options that a row can set.
    # Only options that no row can set are therefore taken from the configuration.
    options = {
        name: {
            field.name: config.verification.options[name][field.name]
            for field in resolve(name).fields
            if not field.from_row and field.name in config.verification.options[name]
        }
        for name in asked
        if name in config.verification.options
    }
    # A test takes up to a second, so a process tests equal code, options and rows only once.
    hashes = [described[name]["hash"] for name in asked]
    key = json.dumps([asked, hashes, options, config.run.seed], sort_keys=True)
    if key in _TESTED:
        return _TESTED[key]
    with VerifierService(asked[0], num_workers=1, deadline=60.0, options=options) as fresh:
        found = sampled_self_test(fresh, asked, SELF_TEST_ROWS, config.run.seed)
    for result in found:
        if result.false_accepts or result.false_rejects:
            raise VerifierError(
                f"{result}; the verifier's self-test failed on this machine; "
                f"see: assay verifier self-test --verifier {result.verifier.partition('@')[0]}"
            )
    _TESTED[key] = found
    return found


def keep_judges(run: Run, service: VerifierService, stack: ExitStack, always: bool = False) -> None:
    """Record the raw replies of remote judges in the run, so that verdicts can be reproduced.

    always: whether to record even if no verifier of the service is a judge.
    """
    if always or "judge" in service.describe():
        from assay.verify.learned.panel import close_judges, keep_replies

        keep_replies(run.folder / "judge_replies.jsonl")
        stack.callback(close_judges)


def verifiers_of(run: Path) -> list[str]:
    """Return the names of all verifiers that a run has used so far."""
    return list((read_environment(run) or {}).get("verifiers") or {})


def warn_of_cold_start(run: Run) -> None:
    """Warn if the first step has too few correct completions to learn from."""
    passed, settings = run.metrics.get("verdict/passed"), run.config.preference
    # A pairwise judge ranks completions, so the share that passed is no pass rate.
    if passed is None or (settings is not None and settings.judge == "pairwise"):
        return
    # With a teacher, wrong completions also give a learning signal, so there is no warning.
    if run.config.teacher is not None:
        return
    floor, cut = LIMITS["COLD_START_FLOOR"], run.metrics.get("length/truncated")
    if passed >= floor:
        return
    run.event("cold_start", passed=passed)
    facts = replace(facts_of_config(run.config), pass_at_1=passed, truncated=cut)
    if (reason := reason_of("cut_off", facts)) is not None:
        longer = f"raise sampling.max_tokens first (`assay plan` tries {4 * facts.max_tokens})"
        run.note(f"warning: {reason}; {longer}")
        return
    run.note(
        f"warning: only {passed:.1%} of the first step's completions are right (below"
        f" {floor:.0%}): there is little to reinforce, and the run may learn nothing"
        " or collapse; train on easier problems, or cold-start with [sft] first"
    )
