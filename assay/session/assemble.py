"""From a configuration to its parts: model, renderer, generator, verifiers, problems, learner."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import Any

import torch

from assay.config import MOST_SLOTS, CriticConfig, RLConfig, SamplingConfig, TrainConfig
from assay.data.chat import PromptRenderer, keep_fitting, template_of
from assay.data.curriculum import Curriculum
from assay.data.overlap import check_overlap
from assay.data.problems import ProblemSet, RowSet, load_problems
from assay.data.row_facts import FactReader
from assay.errors import ConfigError, ModelError, VerifierError, message
from assay.generate.engine import Engine
from assay.generate.turns.toolbox import open_tools
from assay.host.terminal import warn
from assay.learn.algorithms import Algorithm, algorithm, check_group_size, for_generator
from assay.learn.optimizer import Optimizer, peak_learning_rate
from assay.learn.passes import Passes
from assay.learn.spans import AnyTeacher
from assay.learn.update import PolicyLearner
from assay.model.load import LoadedModel, choose_device, load_model
from assay.model.packing import Layout
from assay.model.probe import LayoutChoice, probe_layouts
from assay.model.rates import slow_type
from assay.model.value_head import ValueModel
from assay.run.progress import Progress, SamplingWatch
from assay.scale.ahead import Actors
from assay.scale.verifying import actors_for
from assay.session.judging import open_service
from assay.session.reward_trial import try_rewards
from assay.session.tag_check import TagWatch
from assay.session.thinking import check_generator, check_thinking
from assay.types import Problem
from assay.verify.expression import parse_expression
from assay.verify.service import VerifierService

PROBED_PROMPTS = 16
THREADS_A_CORE = 16
GIVE_UP_AFTER = 16  # completions that a reward may fail on, where only evaluations sample


@dataclass(frozen=True)
class Session:
    """What every command that samples and judges needs."""

    config: TrainConfig
    loaded: LoadedModel
    renderer: PromptRenderer
    generator: Engine
    verifiers: VerifierService
    actors: Actors | None = None  # what samples in the generator's place

    @property
    def sampler(self) -> Engine | Actors:
        """What a run samples by."""
        return self.actors or self.generator


def open_verifiers(
    config: TrainConfig, stack: ExitStack, *, actors: bool = False
) -> VerifierService:
    """Start the verifiers, which ``stack`` closes: they check every row before a model is loaded.

    Workers, and the cluster of actors, start first of all: they load while the model does. actors:
    use those that the configuration has; a command that only samples has no use for them, and one
    that opens the teacher has (`ScaleConfig.teacher_actors`).
    """
    set_threads(config)
    parse_expression(config.data.verifier, "data.verifier")
    for tag, expression in config.data.verifier_by_tag.items():
        parse_expression(expression, f"data.verifier_by_tag.{tag}")
    options = verifier_options(config)
    service = open_service(
        config.verification,
        config.data.verifier,
        options=options,
        give_up_after=config.completions_a_step or GIVE_UP_AFTER,
        by_tag=config.data.verifier_by_tag,
        **(actors_for(config, options, stack) if actors else {}),
    )
    return stack.enter_context(service)


def set_threads(config: TrainConfig) -> None:
    """Use the configured number of CPU threads; raises ConfigError where it is far too large."""
    threads = config.run.threads
    if threads is None:
        return
    most = THREADS_A_CORE * (os.cpu_count() or 1)
    if threads > most:
        accepted = f"at most {most} on this machine ({THREADS_A_CORE} a core)"
        raise ConfigError(message("run.threads", threads, accepted))
    torch.set_num_threads(threads)


def open_session(config: TrainConfig, verifiers: VerifierService) -> Session:
    """Load the model and start the engine beside verifiers that are open already."""
    loaded = load_model(config.model, config.run.device, config.run.seed)
    warn_of_slow_type(loaded)
    longest = max_prompt_tokens(config, loaded)
    in_chat = template_of(loaded.tokenizer, config.data) == "chat"
    tools = open_tools(config.tools, loaded.tokenizer, in_chat)
    renderer = PromptRenderer(
        loaded.tokenizer,
        config.data,
        longest,
        loaded.context_length,
        config.sampling,
        tools=() if tools is None else tools.schemas,
        introduction="" if tools is None else tools.introduction,
        begins=None if tools is None else tools.begins,
    )
    generator = Engine(
        loaded.model,
        loaded.tokenizer,
        renderer.render,
        eos_ids=loaded.eos_ids,
        settings=config.engine,
        seed=config.run.seed,
        context_length=loaded.context_length,
    )
    if tools is not None:
        generator.guide = tools.guide
    settled = config.model_copy(update={"engine": generator.settings})
    return Session(settled, loaded, renderer, generator, verifiers)


def warn_of_slow_type(loaded: LoadedModel) -> None:
    """Warn where the model's type is slower here than float32; the choice is the user's."""
    if line := slow_type(loaded.dtype, loaded.device):
        warn(line)


def show_sampling(session: Session, stack: ExitStack, quiet: bool) -> SamplingWatch:
    """Show on standard error how far the generator is, until ``stack`` closes."""
    progress = stack.enter_context(closing(Progress("", quiet=quiet)))
    session.generator.watch = progress.sampling
    return progress.sampling


def with_slots(config: TrainConfig, completions: int | None) -> TrainConfig:
    """Return the configuration with engine slots; by default one for each of ``completions``."""
    if config.engine.num_slots is not None:
        return config
    on_gpu = choose_device(config.run.device).type == "cuda"
    slots = MOST_SLOTS if on_gpu or completions is None else min(completions, MOST_SLOTS)
    engine = config.engine.model_copy(update={"num_slots": max(1, slots)})
    return config.model_copy(update={"engine": engine})


def fixed_words(session: Session) -> list[str]:
    """Return what stays as it is so that a run can be repeated, and what idle slots cost it."""
    config, slots = session.config, session.config.engine.slots
    dtype = str(session.loaded.dtype).removeprefix("torch.")
    told = [
        f"fixed, so that the run repeats to the bit on this machine: run.seed {config.run.seed},"
        f" {torch.get_num_threads()} threads, {dtype} on {session.loaded.device},"
        f" engine.num_slots {slots}, engine.threads {config.engine.threads}"
    ]
    completions = config.completions_a_step
    on_cpu = session.loaded.device.type == "cpu"
    if completions and slots > completions and on_cpu and not session.generator.skips_idle_rows:
        told.append(
            f"engine.num_slots is {slots} and a step samples {completions} completions: the other"
            f" {slots - completions} rows are computed for nothing, unless evaluations fill them;"
            f" leave it out, or set {completions}"
        )
    return told


def verifier_options(config: TrainConfig) -> dict[str, dict[str, Any]]:
    """Return the verifiers' options; learned ones use the run's device and know its tokenizer.

    What the options say themselves stands.
    """
    found = {name: dict(options) for name, options in config.verification.options.items()}
    for name in {"reward_model", "process_reward_model"} & found.keys():
        if config.run.device is not None:
            found[name].setdefault("device", config.run.device)
    if "process_reward_model" in found:
        tokenizer = config.model.tokenizer or config.model.path
        found["process_reward_model"].setdefault("policy_tokenizer", tokenizer)
    return found


def samples(config: TrainConfig) -> bool:
    """Return whether a run samples from its model at all."""
    return config.rl is not None or bool(config.data.train or config.data.heldout)


def max_prompt_tokens(config: TrainConfig, loaded: LoadedModel) -> int | None:
    """Return the longest prompt: as configured, or what the context leaves beside a completion."""
    if loaded.context_length is None:
        return config.data.max_prompt_tokens
    room = loaded.context_length - config.sampling.max_tokens
    if room < 1 and not samples(config):
        return config.data.max_prompt_tokens
    if room < 1:
        found = f"{config.sampling.max_tokens} on a context of {loaded.context_length} tokens"
        accepted = f"at most {loaded.context_length - 1}, less the prompt"
        raise ModelError(
            message("sampling.max_tokens", found, accepted, "lower it (or --max-tokens)")
        )
    return min(room, config.data.max_prompt_tokens or room)


@dataclass(frozen=True)
class Problems:
    """Both sets, checked against each other. notes: one line a finding."""

    train: ProblemSet
    heldout: Sequence[Problem]
    notes: tuple[str, ...]


def read_problems(
    config: TrainConfig,
    verifiers: VerifierService,
    check: Callable[[Problem], None] | None = None,
) -> Problems:
    """Open the training and held-out problems; raises DataError for rows and sets that are wrong.

    No model is needed for that. check: of training problems, where it is not the verifiers' own.
    """
    data = config.data
    judged = check or _training_check(config, verifiers)
    reader, tags = FactReader(config.curriculum), TagWatch(config)

    def check_all(problem: Problem) -> None:
        check_generator(config, problem)
        judged(problem)
        reader.check(problem)
        tags.see(problem)

    train = load_problems(data.train, on_bad_row=data.on_bad_row, check=check_all)
    reader.check_names(len(train))
    tried = [] if check else _try_rewards(config, verifiers, train, "training rows")
    heldout = read_heldout(config, verifiers, tags.of(train))
    report = check_overlap(
        train, heldout, near=data.near_duplicates, overlap=data.near_duplicate_overlap
    )
    return Problems(report.train, heldout, (*report.describe().splitlines(), *tried))


def open_curriculum(problems: Sequence[Problem], config: TrainConfig) -> Curriculum:
    """Return what draws a run's problems, at its first draw."""
    stage, settings = config.drawing, config.curriculum
    assert stage is not None
    facts = FactReader(settings).read(problems)
    most, more = stage.steps * stage.num_prompts, config.rl.oversample if config.rl else 0
    return Curriculum(problems, config.run.seed, settings, facts, most, more)


def _training_check(config: TrainConfig, verifiers: VerifierService) -> Callable[[Problem], None]:
    """Return what a training problem must pass: it is judged, and no part of that is dropped."""
    if config.rl is None or choose_algorithm(config).credit != "steps":
        return verifiers.check_problem

    def check(problem: Problem) -> None:
        verifiers.check_problem(problem)
        if problem.verifier and (complaint := dropped_parts(problem.verifier)):
            raise VerifierError(message("verifier", problem.verifier, *complaint))

    return check


def dropped_parts(expression: str) -> tuple[str, str] | None:
    """Return what is accepted, and a remedy, where credit by steps drops a part; None: it does not.

    Steps are compared with the steps of the group and completions with completions, so that a
    score of one and a part of the other have no sum that a baseline fits.
    """
    if all(term.weight == 0 for term in parse_expression(expression)[1:]):
        return None
    return (
        "one verifier that scores steps: credit by steps learns from nothing else",
        'weigh the other parts 0, or learn from the sum (algorithm.credit = "completion")',
    )


def read_heldout(
    config: TrainConfig, verifiers: VerifierService, tags: TagWatch | None = None
) -> Sequence[Problem]:
    """Open the held-out problems that evaluations use; an empty list where there are none.

    tags: those that training rows have; a tag of ``verifier_by_tag`` that is not among them all is
    warned of.
    """
    data, tags = config.data, tags or TagWatch(config)
    if not data.heldout:
        tags.warn()
        return []

    def check(problem: Problem) -> None:
        check_generator(config, problem)
        verifiers.check_problem(problem)
        tags.see(problem)

    heldout = load_problems(
        data.heldout,
        on_bad_row=data.on_bad_row,
        limit=config.evaluation.max_problems,
        check=check,
    )
    tags.of(heldout).warn()
    _try_rewards(config, verifiers, heldout, "held-out rows")
    return heldout


def _try_rewards(
    config: TrainConfig, verifiers: VerifierService, rows: Sequence[Problem], what: str
) -> list[str]:
    """Try the users' rewards; print warnings now, while nothing is loaded, and return the rest."""
    seconds = config.verification.trial_seconds
    told = try_rewards(rows, what, verifiers, config.data, seconds) if seconds else []
    for line in told:
        if line.startswith("warning: "):
            warn(line.removeprefix("warning: "))
    return [line for line in told if not line.startswith("warning: ")]


def fit_problems(problems: Problems, session: Session) -> Problems:
    """Return the problems whose prompts fit the model; raises DataError, or drops the others."""
    heldout = fit_heldout(problems.heldout, session)
    train = keep_fitting(problems.train, session.renderer, session.config.data.on_bad_row)
    check_thinking(session.renderer, train, session.config.sampling)
    notes = [f"{len(train)} training problems, {len(heldout)} held out", *problems.notes]
    if train.skipped:
        notes.append(f"{len(train.skipped)} bad rows skipped, the first: {train.skipped[0]}")
    return Problems(train, heldout, tuple(line for note in notes for line in note.splitlines()))


def fit_heldout(heldout: Sequence[Problem], session: Session) -> Sequence[Problem]:
    """Do as `fit_problems` with held-out problems."""
    if not isinstance(heldout, RowSet):
        return heldout
    return keep_fitting(heldout, session.renderer, session.config.data.on_bad_row)


def choose_algorithm(config: TrainConfig) -> Algorithm:
    """Return the configured row of the table; raises ConfigError where it cannot work."""
    settings = config.algorithm.model_dump(exclude={"name"})
    row = algorithm(config.algorithm.name, **settings, max_tokens=config.sampling.max_tokens)
    if config.rl is not None:
        check_group_size(row, config.rl.group_size)
        _check_sizes(config, row)
        _check_sampling(config.sampling)
        for expression in (config.data.verifier, *config.data.verifier_by_tag.values()):
            if row.credit == "steps" and (complaint := dropped_parts(expression)):
                raise ConfigError(message("data.verifier", expression, *complaint))
        _check_critic(config, config.rl, row)
        if not config.rl.max_refills:  # what is not replaced is learned from
            row = replace(row, dynamic_sampling=False)
    if row.trust_region is not None and config.model.dtype == "bfloat16":
        found, accepted = (
            '"bfloat16", with a trust region',
            '"float32": steps are too small for less',
        )
        raise ConfigError(message("model.dtype", found, accepted))
    return row


def _check_sizes(config: TrainConfig, row: Algorithm) -> None:
    """Refuse groups of several sizes where a smaller one does not serve, or counts for less."""
    sizes = config.curriculum.group_sizes
    if sizes is None:
        return
    if sizes[0] < row.min_siblings:
        accepted = f"at least {row.min_siblings}: {row.name} compares siblings"
        raise ConfigError(message("curriculum.group_sizes", list(sizes), accepted))
    if row.across_groups:
        found = f"{list(sizes)} with {row.across_groups}, to which every completion counts alike"
        accepted = "groups of one size: a larger one would count for more"
        raise ConfigError(message("curriculum.group_sizes", found, accepted, "leave it out"))


def _check_sampling(sampling: SamplingConfig) -> None:
    """Complain of sampling that cuts tokens off: the learner's distribution is over all of them.

    Ratio, KL and importance weight would compare two distributions; what is cut off would never be
    pushed down, only what is left of it up.
    """
    for key in ("top_k", "top_p", "min_p"):
        found, default = getattr(sampling, key), SamplingConfig.model_fields[key].default
        if found != default:
            accepted = f"{default} in a run of [rl], which learns over all tokens"
            remedy = "leave it out, and set it for assay eval and sample"
            raise ConfigError(message(f"sampling.{key}", found, accepted, remedy))


def _check_critic(config: TrainConfig, rl: RLConfig, row: Algorithm) -> None:
    """Refuse settings of a critic that is not used, and a warm-up that takes the whole run."""
    if not row.has_critic:
        for key in sorted(config.critic.model_fields_set):
            value = getattr(config.critic, key)
            if value != CriticConfig.model_fields[key].default:
                found = f"{value!r}, and {row.name} has no critic"
                remedy = 'leave [critic] out, or set algorithm.credit = "gae"'
                raise ConfigError(message(f"critic.{key}", found, "nothing", remedy))
    elif config.critic.warmup_steps >= rl.steps:
        found = f"{config.critic.warmup_steps} of rl.steps = {rl.steps}"
        accepted = "fewer: the policy learns in the steps that follow"
        raise ConfigError(message("critic.warmup_steps", found, accepted))


def choose_layout(
    session: Session, problems: Sequence[Problem], group_size: int, beside: Any = None
) -> LayoutChoice:
    """Prove that shared prompts equal plain ones, and choose the layout for this run's shape.

    Prompts count as those of the first problems, completions as half of the longest. beside: a
    model that scores the same batches.
    """
    first = [problems[n] for n in range(min(PROBED_PROMPTS, len(problems)))]
    prompts = [session.renderer.render(problem).tokens for problem in first]
    lengths = sorted(map(len, prompts))
    return probe_layouts(
        session.loaded.model,
        prompt_length=lengths[len(lengths) // 2],
        completion_length=session.config.sampling.max_tokens // 2,
        group_size=group_size,
        beside=beside,
        prompts=prompts,
    )


def make_learner(
    session: Session, row: Algorithm, layout: LayoutChoice, teacher: AnyTeacher | None = None
) -> PolicyLearner:
    """Return the learner of the RL stage; it weighs what a generator samples that is not exact."""
    row = for_generator(row, session.sampler.exact)
    config, rl, loaded = session.config, session.config.rl, session.loaded
    assert rl is not None
    start = None
    if row.has_critic and config.critic.path is not None:
        start = ValueModel.load(config.critic.path, loaded.dtype, loaded.device, loaded.tokenizer)
    total, a_step = num_updates(rl), rl.epochs * rl.num_minibatches
    waits = config.critic.warmup_steps * a_step if row.has_critic else 0
    way = (layout.layout, layout.lean, config.sampling.temperature)
    return PolicyLearner(
        make_passes(config, loaded, max(1, total - waits), *way),
        row,
        total_steps=total,
        keep_reference=config.guard.max_kl is not None,
        teacher=teacher,
        critic=config.critic,
        critic_start=start,
        epochs=rl.epochs,
        num_minibatches=rl.num_minibatches,
        seed=config.run.seed,
    )


def make_passes(
    config: TrainConfig,
    loaded: LoadedModel,
    total_steps: int,
    layout: Layout,
    lean: bool,
    temperature: float = 1.0,
) -> Passes:
    """Return the way of batches through a model that learns.

    layout, lean: as proved on this very model (`assay.model.probe`). temperature: 1 in stages
    without sampling.
    """
    section: Any = getattr(config, config.stage)
    return Passes(
        loaded.model,
        Optimizer(loaded.model, config.optimizer, total_steps, config.stage),
        section=config.stage,
        temperature=temperature,
        layout=layout,
        lean=lean,
        max_tokens_per_micro_batch=section.max_tokens_per_micro_batch,
        activation_checkpointing=config.model.activation_checkpointing,
        tokenizer=loaded.tokenizer,
    )


def rate_words(config: TrainConfig, model: Any) -> str:
    """Return the peak learning rate of a run and where it comes from."""
    rate = peak_learning_rate(config.optimizer, config.stage, model)
    if config.optimizer.learning_rate is not None:
        return f"{rate:g}, as configured"
    trained = "adapters" if hasattr(model, "disable_adapter") else "all weights"
    return f"{rate:g}, the default of [{config.stage}] for {trained}"


def num_updates(rl: RLConfig) -> int:
    """Return the optimizer steps of a whole run, which its learning rate schedule spans."""
    return rl.steps * rl.epochs * rl.num_minibatches
