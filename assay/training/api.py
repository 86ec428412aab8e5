"""Public functions for commands and notebooks: train, evaluate, sample and dry_run.

Functions that judge completions without a model are in `assay.session.judging`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, Unpack

from assay import config as configuration
from assay.config import TrainConfig
from assay.config.tree import STAGES
from assay.data.problems import load_problems
from assay.data.rows import read_problem
from assay.data.source import Source
from assay.data.sources import Rows, as_sources
from assay.errors import ConfigError, VerifierError, message
from assay.host.files import check_folder, check_output
from assay.host.startup import doing
from assay.host.terminal import warn
from assay.plan.arithmetic import Expected, MachineRates, expect, units_from_rates
from assay.plan.memory import plan_memory
from assay.report.alerts import check_listeners
from assay.report.decision_record import check_decision, contradictions
from assay.report.loaded import load_run
from assay.run.names import check_place
from assay.run.rollback import check_approved
from assay.run.startup import show_startup
from assay.scale.launched_ranks import check_launch, leading
from assay.session.assemble import (
    Problems,
    Session,
    fit_heldout,
    fixed_words,
    open_session,
    open_verifiers,
    show_sampling,
    with_slots,
)
from assay.session.consent import open_config
from assay.session.evaluate import Evaluation, sample_each
from assay.session.evaluate import evaluate as measure
from assay.session.evaluation_log import EvaluationLog, resumable, settings_of
from assay.session.heldout_rows import canary_notes, read_canaries
from assay.session.learners import rate_words
from assay.session.results import (
    DryRun,
    SampleResult,
    TrainResult,
    describe_sample,
    read_result,
    sample_lines,
)
from assay.session.sampling import (
    SamplingOptions,
    asks_thinking,
    checkpoint_of,
    sampling_config,
    several,
    takes_sampling_options,
)
from assay.session.sampling_session import SamplingSession, check_sampling, open_sampling
from assay.session.stage import FirstLook, Kind, Stage
from assay.session.teachers import model_of
from assay.session.thinking import check_thinking
from assay.types import Problem
from assay.verify.service import VerifierService

GivenConfig = TrainConfig | Mapping[str, Any] | Path | str


def train(
    config: GivenConfig | None = None,
    *,
    overrides: Sequence[str] = (),
    resume: Path | str | None = None,
    accept_changed_verifiers: bool = False,
    trust_run: bool = False,
    approved_by: str | None = None,
    quiet: bool = False,
) -> TrainResult:
    """Train with a configuration, or resume a run; return the outcome.

        result = assay.train("run.toml", overrides=["rl.steps=20"])
        data = {"train": ["problems.jsonl"], "heldout": ["heldout.jsonl"]}
        result = assay.train({"model": {"path": "Qwen/Qwen3-0.6B"}, "data": data})
        run = assay.load_run(result.run)

    config: a TOML file, a dict with the same sections and keys (docs/configuration.md), or a
    `TrainConfig`. overrides: keys that replace configured values, such as ``["rl.steps=20"]``.
    resume: directory of a run to resume with the run's own configuration instead of ``config``.
    accept_changed_verifiers: resume although the reward changed; the change is recorded. trust_run:
    on resume, import the Python code that a foreign run's configuration names. approved_by: name of
    the approver, required to resume after a severe stop of the guard. quiet: show no progress.

    Raises UserError for invalid input, RunStopped if a guard stopped the run, DiskFull or
    OutOfMemory if the machine lacks disk space or memory.
    """
    if approved_by is not None and resume is None:
        raise ConfigError("train: found --approved-by; accepted: only with --resume RUN")
    if resume is not None:
        config = Path(resume) / "config.toml"
        # A run folder from someone else needs the user's consent
        # before its configuration has any effect.
        open_config(Path(resume), overrides=overrides, trust_run=trust_run)
        # Damaged files are reported before a model is loaded.
        load_run(resume)
        check_approved(Path(resume), approved_by)
    if config is None:
        raise ConfigError("train: give a configuration, or a run to resume")
    path = Path(config) if isinstance(config, Path | str) else None
    settings = read_config(config, overrides)
    # A resumed run decodes as many completions at once as before,
    # because another number of slots changes the last bits of the log-probabilities.
    if resume is not None:
        overrides = [*overrides, f"engine.num_slots={settled(settings).engine.slots}"]
    stage = Stage(
        settings,
        config_path=path,
        resume=Path(resume) if resume is not None else None,
        overrides=overrides,
        accept_changed_verifiers=accept_changed_verifiers,
        quiet=quiet,
    )
    # A configuration error that appears only
    # while the run is opened also names the line of its key in the file.
    with configuration.naming_lines(path, overrides), leading():
        return run_stage(stage)


def run_stage(stage: Stage) -> TrainResult:
    """Run one stage and return its outcome. Raises the errors of `train`."""
    # The output folder and the trackers are checked first,
    # because loading a model can take minutes.
    check_launch(stage.config.scale)
    if stage.resume is None:
        check_folder(Path(stage.config.run.directory), "run.directory")
        check_decision(stage.config)
    else:
        # A fallback may vanish during a run, and the page of the run lists what has changed.
        for contradiction in contradictions(stage.config):
            warn(contradiction)
    check_listeners(stage.config)
    stage = replace(stage, config=settled(stage.config))
    with show_startup(stage.quiet):
        folder = kind_of(stage.config).run(stage)
    return read_result(folder)


KINDS = {name: name for name in STAGES} | {"rl": "rl_run"}
"""Name of the module of each stage; the module is imported on demand and defines ``KIND``."""


def kind_of(config: TrainConfig) -> Kind:
    """Return the object that implements the configured training stage."""
    return import_module(f"assay.training.{KINDS[config.stage]}").KIND


@takes_sampling_options
def evaluate(
    model: Path | str,
    problems: Rows,
    *,
    num_samples: int = 1,
    temperature: float = 0.0,
    max_problems: int | None = None,
    out: Path | str | None = None,
    quiet: bool = False,
    **options: Unpack[SamplingOptions],
) -> Evaluation:
    """Measure a model on problems: pass@1 with its standard error, pass@k, majority@k.

        rows = [{"question": "3+5=", "answer": "8"}, {"question": "2+2=", "answer": "4"}]
        before = assay.evaluate("Qwen/Qwen3-0.6B", rows, max_tokens=512)
        after = assay.evaluate("runs/first@best", rows)
        after.pass_at_1, after.stderr

    model: a folder, a hub name, or a run: ``RUN``, ``RUN@best``, ``RUN@120``; a run's own
    configuration defines how prompts are rendered. problems: sources (docs/configuration.md), or
    the rows themselves. temperature: 0: greedy decoding. max_tokens: maximum completion length.
    think_budget: maximum number of thinking tokens per completion. effort: thinking effort of rows
    that set no effort (docs/thinking.md). max_problems: use only the first problems. verifier:
    verifier of rows that name none; None: the run's verifier, or ``math``. overrides: configuration
    changes, such as ``["sampling.top_p=0.9"]``. allow: Python code that rows may name as their
    verifier. trust_run: import the Python code that a foreign run names. out: a JSONL file for all
    completions and verdicts; after a kill, the same call continues from the file ``out`` with the
    suffix ``.part``. device: ``cpu``, ``cuda`` or ``cuda:1``. adapter: a folder of adapters (peft),
    or a run's checkpoint with adapters, to load on a base model; the base model may be at another
    path than the adapter records. server: URL of an OpenAI-compatible server that samples;
    ``model`` then gives the tokenizer and the settings (docs/serving.md). actors: number of
    processes that sample (extra ``ray``). quiet: show no progress.

    Raises UserError for invalid input.
    """
    configuration.check_siblings(num_samples, temperature)
    if out is not None:
        check_output(Path(out))
    sources = as_sources(problems)
    with ExitStack() as stack:
        with show_startup(quiet):
            session, rows = open_asked(
                str(model), sources, max_problems, num_samples, options, stack
            )
        sampling = configuration.at_temperature(session.config.sampling, temperature)
        sink, kept = None, None
        if out is not None:
            facts = settings_of(session.config, sampling, num_samples)
            kept = stack.enter_context(EvaluationLog(Path(out), facts))
            file = stack.enter_context(open(out, "w", encoding="utf-8"))
            sink = lambda *judged: file.writelines(sample_lines(*judged))  # noqa: E731
        watch = show_sampling(session.generator, stack, quiet)
        with watch.doing("problems", len(rows) * num_samples):
            return measure(
                *(resumable(session.generator, kept), session.verifiers, rows, sampling),
                *(num_samples, sink),
                sampling_of=lambda problem: session.config.sampling_of(problem.tags, sampling),
            )


@takes_sampling_options
def sample(
    model: Path | str,
    prompt: str | None = None,
    *,
    problems: Rows = (),
    answer: str | None = None,
    num_samples: int = 4,
    max_problems: int = 1,
    temperature: float = 1.0,
    quiet: bool = False,
    **options: Unpack[SamplingOptions],
) -> SampleResult:
    """Sample and judge completions of one prompt, or of the first problems of a source.

        print(assay.sample("runs/first@best", "What is 3+5?", answer="8"))

    prompt: the question. answer: the expected answer, if any. problems: sources or rows instead of
    a prompt; only the first ``max_problems`` rows are used. num_samples: completions per problem.

    The other parameters are those of `evaluate`.
    """
    sources = as_sources(problems)
    if (prompt is None) == (not sources):
        raise ConfigError("sample: give a prompt (--prompt) or problems (--problems), and not both")
    # Greedy completions of one prompt are equal.
    # This is no error here, because this command only shows samples.
    configuration.check_siblings(num_samples, temperature or 1.0)
    with ExitStack() as stack:
        given = None if prompt is None else [_prompted(prompt, answer)]
        asked = (str(model), sources, max_problems, num_samples)
        with show_startup(quiet):
            session, rows = open_asked(*asked, options, stack, given)
        show_sampling(session.generator, stack, quiet)
        found = _sample(session, rows, num_samples, temperature)
    return found if prompt is None else replace(found, remedy="give one with --answer")


def dry_run(config: GivenConfig, *, overrides: Sequence[str] = (), quiet: bool = False) -> DryRun:
    """Preview `train`: one prompt, completion and verdict, the plan, and the estimates.

        print(assay.dry_run("run.toml"))

    The parameters are those of `train`.
    """
    settings = settled(read_config(config, overrides))
    check_listeners(settings)
    check_decision(settings)
    path = Path(config) if isinstance(config, Path | str) else None
    with configuration.naming_lines(path, overrides), ExitStack() as stack:
        # A preview samples in this process, so it needs a Ray cluster only for a teacher in Ray
        # actors.
        taught = settings.scale.teacher_actors is not None
        with show_startup(quiet):
            kind, verifiers = kind_of(settings), open_verifiers(settings, stack, actors=taught)
            with doing("checking the rows"):
                rows = kind.read(settings, verifiers)
                # Stages that learn from pairs or labels read no canaries.
                own = getattr(rows, "canaries", None)
                canaries = read_canaries(settings, verifiers) if own is None else own
            session = open_session(settings, verifiers)
            look = kind.look(settings, session, rows)
        show_sampling(session.generator, stack, quiet)
        rate = f"learning rate {rate_words(settings, session.loaded.model)}"
        length = len(session.renderer.render(look.problem).tokens)
        needs = (look.has_reference, look.has_critic, model_of(look.teacher))
        memory = plan_memory(
            settings, session.loaded.model, length, *needs, asked=look.asked, lean=look.lean
        )
        first = _sample(session, [look.problem], 1, settings.sampling.temperature)
        # Stages that train on traces or texts name their held-out problems `problems`.
        sampled = rows.heldout if isinstance(rows, Problems) else getattr(rows, "problems", ())
        num_heldout = len(sampled)
        expected = _expected(session, look, length, num_heldout, len(canaries))
        notes = [*look.notes, *canary_notes(settings, canaries), rate, *fixed_words(session)]
        return DryRun(first, notes, memory, expected)


def _expected(
    session: Session, look: FirstLook, length: int, num_heldout: int, num_canaries: int
) -> Expected | None:
    """Return the estimated hours of a run from stored rates of this machine, without timing a
    step."""
    # The estimate leaves out the time of a teacher, so a run with a teacher has no estimate.
    if look.teacher is not None:
        return None
    config, loaded = session.config, session.loaded
    rates = MachineRates.of(loaded.dtype, str(loaded.device))
    units = units_from_rates(config, loaded.model, rates, look.lean)
    return expect(config, units, length, num_heldout, look.work, num_canaries)


def read_config(config: GivenConfig, overrides: Sequence[str]) -> TrainConfig:
    """Return the validated configuration of a file, a dict or a `TrainConfig`."""
    overrides = several(overrides)
    if isinstance(config, Path | str):
        return configuration.load(config, overrides)
    tree = config.model_dump(exclude_none=True) if isinstance(config, TrainConfig) else dict(config)
    return configuration.build(tree, overrides)


def settled(config: TrainConfig) -> TrainConfig:
    """Resolve checkpoint names to folders and set the number of engine slots.

    Raises ConfigError for ``model.adapter`` and ``server.url``, which a training run cannot have.
    """
    if (adapter := config.model.adapter) is not None:
        # A run records the files of one model, for lineage, gate and resume,
        # so an adapter must be merged first.
        accepted = "one model to train"
        remedy = (
            f"assay model export {config.model.path} FOLDER --adapter {adapter}, then train FOLDER"
        )
        raise ConfigError(message("model.adapter", adapter, accepted, remedy))
    if config.server.url is not None:
        accepted = "none in a run, which learns from what its own policy sampled"
        remedy = "collect from the server with assay data collect, and learn from that by [sft]"
        raise ConfigError(message("server.url", "a server", accepted, remedy))
    return with_slots(with_checkpoint(config), config.completions_a_step)


def with_checkpoint(config: TrainConfig) -> TrainConfig:
    """Resolve checkpoint names in the configuration to folders."""
    changed: dict[str, Any] = {}
    for name in ("model", "critic", "teacher"):
        section = getattr(config, name)
        if section is None or section.path is None or getattr(section, "url", None) is not None:
            continue
        check_place(section.path, f"{name}.path {section.path}")
        if (found := checkpoint_of(section.path)) is not None:
            changed[name] = section.model_copy(update={"path": str(found)})
    return config.model_copy(update=changed)


def open_asked(
    model: str,
    sources: Sequence[str | Source],
    limit: int | None,
    num_samples: int,
    options: SamplingOptions,
    stack: ExitStack,
    given: Sequence[Problem] | None = None,
) -> tuple[SamplingSession, Sequence[Problem]]:
    """Open a session for sampling, and its problems: ``given``, or the problems of the sources."""
    config = sampling_config(model, list(map(str, sources)), options)
    check_sampling(config)
    verifiers = open_verifiers(config, stack, actors=True)

    def check(problem: Problem) -> None:
        verifiers.check_problem(problem)
        check_sampling(config, [problem])

    if given is None:
        on_bad_row = config.data.on_bad_row
        given = load_problems(sources, on_bad_row=on_bad_row, limit=limit, check=check)
    slots = with_slots(config, len(given) * num_samples)
    session = open_sampling(slots, verifiers, stack)
    fitting = fit_heldout(given, session)
    check_thinking(session.renderer, fitting, session.config.sampling, asks_thinking(options))
    return session, fitting


def _prompted(prompt: str, answer: str | None) -> Problem:
    """Return a problem with the given prompt; raises DataError if the prompt is not text."""
    row = {"prompt": prompt} if answer is None else {"prompt": prompt, "answer": answer}
    return read_problem(row, "--prompt", "prompt")


def _sample(
    session: Session | SamplingSession,
    problems: Sequence[Problem],
    num_samples: int,
    temperature: float,
) -> SampleResult:
    sampling = configuration.at_temperature(session.config.sampling, temperature)
    # Random numbers depend on the draw number; it is 0, so that a repeated call samples the same.
    rows = [replace(problems[n], draw=0) for n in range(len(problems))]
    groups, judged = sample_each(
        (session.generator, session.verifiers),
        rows,
        num_samples,
        lambda problem: session.config.sampling_of(problem.tags, sampling),
    )
    return SampleResult(
        [
            describe_sample(group, index, verdict if can_judge else None)
            for group, verdicts in zip(groups, judged, strict=True)
            for can_judge in [_can_judge(session.verifiers, group.problem)]
            for index, verdict in enumerate(verdicts)
        ]
    )


def _can_judge(verifiers: VerifierService, problem: Problem) -> bool:
    """Whether a verifier can judge the problem; a prompt without an expected answer cannot be
    judged."""
    try:
        verifiers.check_problem(problem)
    # A row with a spec should be judged, so an error in the row gives the verdict *not judged*.
    except VerifierError:
        return bool(problem.spec)
    return True
