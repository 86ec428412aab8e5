"""What the command line and notebooks call: train, evaluate a model, read samples, export."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, TypedDict, Unpack

from assay import config as configuration
from assay.config import TrainConfig
from assay.data.chat import keep_fitting
from assay.data.problems import ProblemSet, load_problems
from assay.data.rows import read_problem
from assay.errors import ConfigError, RunError, VerifierError
from assay.plan.memory import plan_memory
from assay.run.files import check_folder, check_output
from assay.run.loaded import load_run
from assay.run.names import find_checkpoint
from assay.run.trackers import check_trackers
from assay.training.assemble import (
    Bench,
    fit_heldout,
    fixed_words,
    open_bench,
    open_verifiers,
    rate_words,
    show_sampling,
    with_slots,
)
from assay.training.consent import TO_SAMPLE, open_config
from assay.training.evaluate import Evaluation, evaluate, sample_and_judge
from assay.training.results import DryRun, SampleResult, TrainResult, describe_sample, read_result
from assay.training.stage import Kind, Stage
from assay.types import Group, Problem, Verdict
from assay.verify.service import VerifierService

Configured = TrainConfig | Mapping[str, Any] | Path | str


def train(
    config: Configured | None = None,
    *,
    overrides: Sequence[str] = (),
    resume: Path | str | None = None,
    accept_changed_verifiers: bool = False,
    trust_run: bool = False,
    quiet: bool = False,
) -> TrainResult:
    """Train as ``config`` says (a TOML file, a tree or a `TrainConfig`), or go on with a run.

    trust_run: import what the configuration of a run from elsewhere names, on resume.
    Raises UserError where the input is wrong, RunStopped where a guard stopped the run, DiskFull,
    OutOfMemory.
    """
    if resume is not None:
        config = Path(resume) / "config.toml"
        open_config(Path(resume), overrides=overrides, trust_run=trust_run)
        load_run(resume)  # all that is damaged is told before a model is loaded
    if config is None:
        raise ConfigError("train: give a configuration, or a run to resume")
    path = Path(config) if isinstance(config, Path | str) else None
    settings = read_config(config, overrides)
    if (
        resume is not None
    ):  # a run keeps what it has settled, also where an override left it open again
        overrides = [*overrides, f"engine.num_slots={settled(settings).engine.slots}"]
    stage = Stage(
        settings,
        config_path=path,
        resume=Path(resume) if resume is not None else None,
        overrides=overrides,
        accept_changed_verifiers=accept_changed_verifiers,
        quiet=quiet,
    )
    with configuration.naming_lines(path, overrides):
        return run_stage(stage)


def run_stage(stage: Stage) -> TrainResult:
    """Run one stage; returns what it made, and where. Raises as `train` does."""
    if stage.resume is None:
        check_folder(Path(stage.config.run.directory), "run.directory")
    check_trackers(stage.config.log)
    stage = replace(stage, config=settled(stage.config))
    return read_result(_kind(stage.config).run(stage))


def run_stages(
    stages: Sequence[Stage],
    runs: Sequence[Path | str] = (),
    say: Callable[[str], None] | None = None,
) -> list[TrainResult]:
    """Run stages one after the other; returns the result of each that was run.

    A stage that ``follows`` starts from the checkpoint of the stage before it. The list ends
    behind a stage that was interrupted or ran out of time. runs: directories in which the first
    stages began before; a finished one is read, any other goes on. say: is told the title of each
    stage.
    """
    results: list[TrainResult] = []
    for number, stage in enumerate(stages):
        if results and not results[-1].finished:
            break
        if say is not None:
            say(stage.title)
        if number < len(runs):
            result = read_result(Path(runs[number]))
            if not result.finished:
                result = train(resume=runs[number], quiet=stage.quiet)
        else:
            if stage.follows:
                made = results[-1].checkpoint
                model = stage.config.model.model_copy(update={"path": made})
                stage = replace(stage, config=stage.config.model_copy(update={"model": model}))
            result = run_stage(stage)
        results.append(result)
    return results


KINDS = {"rl": "stages", "sft": "sft", "preference": "preference", "reward_model": "reward_model"}
"""The module of each kind of stage, imported when it is run; its ``KIND`` is what it can do."""


def _kind(config: TrainConfig) -> Kind:
    """Return what the configured kind of stage can do."""
    return import_module(f"assay.training.{KINDS[config.stage]}").KIND


class HowToSample(TypedDict, total=False):
    """How a command samples from a model and judges; what is left out is as its run had it.

    max_tokens: the longest completion. verifier: of rows that name none. overrides: of the
    configuration, as ``rl.steps=20``. allow: Python code that rows may name as their verifier.
    trust_run: import what a run from elsewhere names. seed: 0 where it is left out. device:
    ``cpu``, ``cuda`` or ``cuda:1``.
    """

    max_tokens: int | None
    verifier: str | None
    overrides: Sequence[str]
    allow: Sequence[str]
    trust_run: bool
    seed: int
    device: str | None


def evaluate_model(
    model: str,
    problems: Sequence[str],
    *,
    num_samples: int = 1,
    temperature: float = 0.0,
    max_problems: int | None = None,
    out: Path | None = None,
    quiet: bool = False,
    **how: Unpack[HowToSample],
) -> Evaluation:
    """Measure a model on problems: a folder, a hub name, or a name for `find_checkpoint`.

    A run's own configuration says how prompts are rendered. out: a JSONL file that gets every
    completion with its verdict. quiet: do not show how far it is. how: see `HowToSample`.
    """
    configuration.check_siblings(num_samples, temperature)
    if out is not None:
        check_output(out)
    config = sampling_config(model, problems, **how)
    with ExitStack() as stack:
        verifiers = open_verifiers(config, stack)
        opened = _problems(config, verifiers, problems, max_problems)
        bench = open_bench(with_slots(config, len(opened) * num_samples), verifiers)
        rows = keep_fitting(opened, bench.renderer, config.data.on_bad_row)
        sampling = configuration.at_temperature(config.sampling, temperature)
        sink = (
            _write_samples(stack.enter_context(open(out, "w", encoding="utf-8")))
            if out is not None
            else None
        )
        watch = show_sampling(bench, stack, quiet)
        with watch.doing("problems", len(rows) * num_samples):
            return evaluate(bench.generator, bench.verifiers, rows, sampling, num_samples, sink)


def sample(
    model: str,
    *,
    prompt: str | None = None,
    problems: Sequence[str] = (),
    answer: str | None = None,
    num_samples: int = 4,
    max_problems: int = 1,
    temperature: float = 1.0,
    quiet: bool = False,
    **how: Unpack[HowToSample],
) -> SampleResult:
    """Return completions of one prompt, or of the first problems of a source, with their verdicts.

    how: see `HowToSample`.
    """
    if (prompt is None) == (not problems):
        raise ConfigError("sample: give --prompt or --problems, and not both")
    configuration.check_siblings(num_samples, temperature or 1.0)
    config = sampling_config(model, problems, **how)
    with ExitStack() as stack:
        verifiers = open_verifiers(config, stack)
        if prompt is None:
            opened = _problems(config, verifiers, problems, max_problems)
        else:
            opened = [_prompted(prompt, answer)]
        bench = open_bench(with_slots(config, len(opened) * num_samples), verifiers)
        rows = fit_heldout(opened, bench)
        show_sampling(bench, stack, quiet)
        return _sample(bench, rows, num_samples, temperature)


def dry_run(config: Configured, *, overrides: Sequence[str] = (), quiet: bool = False) -> DryRun:
    """Open everything that a run needs, sample one completion, and estimate the memory."""
    settings = settled(read_config(config, overrides))
    check_trackers(settings.log)
    path = Path(config) if isinstance(config, Path | str) else None
    with configuration.naming_lines(path, overrides), ExitStack() as stack:
        kind, verifiers = _kind(settings), open_verifiers(settings, stack)
        rows = kind.read(settings, verifiers)
        bench = open_bench(settings, verifiers)
        show_sampling(bench, stack, quiet)
        look = kind.look(settings, bench, rows)
        rate = f"learning rate {rate_words(settings, bench.loaded.model)}"
        length = len(bench.renderer.render(look.problem).tokens)
        needs = (look.has_reference, look.has_critic)
        memory = plan_memory(settings, bench.loaded.model, length, *needs)
        first = _sample(bench, [look.problem], 1, settings.sampling.temperature)
        return DryRun(first, [*look.notes, rate, *fixed_words(bench)], memory)


def export(model: str, out: Path | str) -> Path:
    """Write a checkpoint, as `find_checkpoint` names it, as a plain Hugging Face folder.

    That of a run has a model card with the run's evidence.
    """
    from assay.model.load import export as export_model
    from assay.training.model_card import write_card

    check_folder(Path(out).expanduser(), "export to")
    folder = checkpoint_of(model) or Path(model)
    if not folder.is_dir():
        raise RunError(f"{model}: found nothing there; accepted: a run directory or a checkpoint")
    made = export_model(folder, Path(out))
    write_card(folder, made)
    return made


def read_config(config: Configured, overrides: Sequence[str]) -> TrainConfig:
    """Return the validated configuration that a file, a tree or a model stands for."""
    if isinstance(config, Path | str):
        return configuration.load(config, overrides)
    tree = config.model_dump(exclude_none=True) if isinstance(config, TrainConfig) else dict(config)
    return configuration.build(tree, overrides)


def checkpoint_of(model: str) -> Path | None:
    """Return the folder of the checkpoint that a name stands for, and say it; None of other names.

    See `find_checkpoint`, whose errors are raised.
    """
    found = find_checkpoint(model)
    if found is not None and found != Path(model):
        print(f"note: {model} is {found}", file=sys.stderr)
    return found


def settled(config: TrainConfig) -> TrainConfig:
    """Return the configuration with its checkpoints' folders and the engine's slots."""
    return with_slots(with_checkpoint(config), config.completions_a_step)


def with_checkpoint(config: TrainConfig) -> TrainConfig:
    """Return the configuration with folders in place of checkpoints' names."""
    changed: dict[str, Any] = {}
    for name in ("model", "critic"):
        section = getattr(config, name)
        if section.path is not None and (found := checkpoint_of(section.path)) is not None:
            changed[name] = section.model_copy(update={"path": str(found)})
    return config.model_copy(update=changed)


def sampling_config(model: str, problems: Sequence[str], **how: Unpack[HowToSample]) -> TrainConfig:
    """Return how to sample from a model: as its run did, or by the defaults.

    Raises RunError where the run's configuration needs consent (`assay.training.consent`).
    """
    overrides, verifier = how.get("overrides", ()), how.get("verifier")
    allow, max_tokens, device = how.get("allow", ()), how.get("max_tokens"), how.get("device")
    checkpoint = checkpoint_of(model)
    tree: dict[str, Any] = {"model": {"path": model}, "rl": {}}
    if checkpoint is not None:
        run = checkpoint.parent.parent
        if (run / "config.toml").is_file():
            given = [*overrides, *(["data.verifier="] if verifier is not None else [])]
            trust = how.get("trust_run", False)
            kept = open_config(run, TO_SAMPLE, overrides=given, allow=allow, trust_run=trust)
            tree = kept.model_dump(exclude_none=True)
        tree["model"] = {**tree["model"], "path": str(checkpoint)}
    data = {**tree.get("data", {}), "train": list(problems) or ["prompt"], "heldout": []}
    tree["data"] = data
    tree.pop("evaluation", None)  # it is of the run's held-out problems, which are left out
    if verifier is not None:
        data["verifier"] = verifier
    if allow:
        kept_allow = tree.get("verification", {}).get("allow", ())
        tree["verification"] = {**tree.get("verification", {}), "allow": [*kept_allow, *allow]}
    if max_tokens is not None:
        tree["sampling"] = {**tree.get("sampling", {}), "max_tokens": max_tokens}
    tree["run"] = {**tree.get("run", {}), "seed": how.get("seed", 0)}
    if device is not None:
        tree["run"]["device"] = device
    return configuration.build(tree, overrides)


def _problems(
    config: TrainConfig, verifiers: VerifierService, sources: Sequence[str], limit: int | None
) -> ProblemSet:
    on_bad_row, check = config.data.on_bad_row, verifiers.check_problem
    return load_problems(sources, on_bad_row=on_bad_row, limit=limit, check=check)


def _prompted(prompt: str, answer: str | None) -> Problem:
    """Return the problem of a prompt that was given; raises DataError where it is no text."""
    row = {"prompt": prompt} if answer is None else {"prompt": prompt, "answer": answer}
    return read_problem(row, "--prompt", "prompt")


def _sample(
    bench: Bench, problems: Sequence[Problem], num_samples: int, temperature: float
) -> SampleResult:
    sampling = configuration.at_temperature(bench.config.sampling, temperature)
    rows = [replace(problems[n], draw=0) for n in range(len(problems))]
    groups, judged = sample_and_judge(bench.generator, bench.verifiers, rows, sampling, num_samples)
    return SampleResult(
        [
            describe_sample(group, index, verdict if can_judge else None)
            for group, verdicts in zip(groups, judged, strict=True)
            for can_judge in [_can_judge(bench.verifiers, group.problem)]
            for index, verdict in enumerate(verdicts)
        ]
    )


def _can_judge(verifiers: VerifierService, problem: Problem) -> bool:
    """Whether there is what the verifier reads: a prompt alone has no answer."""
    try:
        verifiers.check_problem(problem)
    except VerifierError:
        return bool(problem.spec)
    return True


def _write_samples(file: Any) -> Callable[[Group, Sequence[Verdict]], None]:
    """Return a sink of rows that ``assay verify`` can judge again: they hold the spec."""

    def write(group: Group, verdicts: Sequence[Verdict]) -> None:
        for index, verdict in enumerate(verdicts):
            row = {**group.problem.spec, **describe_sample(group, index, verdict)}
            file.write(json.dumps(row, default=str) + "\n")

    return write
