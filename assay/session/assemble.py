"""Build the components of a run from its configuration: model, renderer, generator, verifiers,
data.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import torch

from assay.config import (
    MOST_SLOTS,
    CriticConfig,
    RLConfig,
    SamplingConfig,
    TrainConfig,
    tool_settings,
)
from assay.config.mixture import tags_of_sources
from assay.data.chat import PromptRenderer, keep_fitting, template_of
from assay.data.leaked_examples import note_system
from assay.data.overlap import check_overlap
from assay.data.problems import ProblemSet, RowSet, load_problems
from assay.data.row_facts import FactReader
from assay.errors import ConfigError, ModelError, VerifierError, message
from assay.generate.engine import Engine
from assay.generate.turns.toolbox import open_tools
from assay.host.terminal import warn
from assay.learn.algorithms import (
    Algorithm,
    algorithm,
    check_group_size,
    check_teaching_ahead,
)
from assay.model.load import LoadedModel, ModelOutline, choose_device, load_model
from assay.model.probe import LayoutChoice, probe_layouts
from assay.model.rates import slow_type
from assay.run.progress import Progress, SamplingWatch
from assay.scale.ahead import Actors
from assay.scale.verifying import actors_for
from assay.session.heldout_rows import (
    canary_words,
    leaked_lines,
    near_settings,
    read_canaries,
    read_heldout,
    refuse_unjudgeable,
    try_row_rewards,
)
from assay.session.judging import open_service
from assay.session.measures import refuse_measures
from assay.session.mixture_check import PartCheck, check_parts
from assay.session.second_opinion import SecondCheck, check_second, code_names
from assay.session.tag_check import TagWatch
from assay.session.thinking import check_thinking
from assay.types import Problem
from assay.verify.expression import parse_expression
from assay.verify.service import VerifierService

PROBED_PROMPTS = 16
THREADS_A_CORE = 16
# A command that only evaluates stops if none of the first completions, this many, was judged.
GIVE_UP_AFTER = 16


@dataclass(frozen=True)
class Session:
    """The opened model, renderer, generator and verifiers of a run. actors: remote samplers, if
    configured.
    """

    config: TrainConfig
    loaded: LoadedModel
    renderer: PromptRenderer
    generator: Engine
    verifiers: VerifierService
    actors: Actors | None = None

    @property
    def sampler(self) -> Engine | Actors:
        """The generator of this run: the rollout actors if there are any, or else the local
        engine."""
        return self.actors or self.generator


def open_verifiers(
    config: TrainConfig, stack: ExitStack, *, actors: bool = False
) -> VerifierService:
    """Start the verifiers before a model is loaded; ``stack`` closes the verifiers at its end.

    actors: whether to use the configured verifier actors. Commands that open a teacher also need
    the actors of the teacher (`ScaleConfig.teacher_actors`).
    """
    set_threads(config)
    parse_expression(config.data.verifier, "data.verifier")
    for tag, expression in config.data.verifier_by_tag.items():
        parse_expression(expression, f"data.verifier_by_tag.{tag}")
    options = verifier_options(config)
    # Verifier workers and the actor cluster start first, because they start while the model loads.
    service = open_service(
        config.verification,
        config.data.verifier,
        options=options,
        give_up_after=config.completions_a_step or GIVE_UP_AFTER,
        by_tag=config.data.verifier_by_tag,
        allow=code_names(config),
        **(actors_for(config, options, stack) if actors else {}),
    )
    return stack.enter_context(service)


def set_threads(config: TrainConfig) -> None:
    """Use the configured number of CPU threads; raises ConfigError for a number far above the core
    count.
    """
    threads = config.run.threads
    if threads is None:
        return
    most = THREADS_A_CORE * (os.cpu_count() or 1)
    # torch accepts any number, but OpenMP kills the process if the system refuses the threads.
    if threads > most:
        accepted = f"at most {most} on this machine ({THREADS_A_CORE} a core)"
        raise ConfigError(message("run.threads", threads, accepted))
    torch.set_num_threads(threads)


def open_session(config: TrainConfig, verifiers: VerifierService) -> Session:
    """Load the model and create the engine, after the verifiers were opened."""
    loaded = load_model(config.model, config.run.device, config.run.seed)
    warn_of_slow_type(loaded)
    longest = max_prompt_tokens(config, loaded)
    in_chat = template_of(loaded.tokenizer, config.data) == "chat"
    tools = open_tools(tool_settings(config), loaded.tokenizer, in_chat)
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
        generator.make_controller = tools.make_controller
    # Slots and threads change the last bits of results, so the run records the engine's choice.
    settled = config.model_copy(update={"engine": generator.settings})
    return Session(settled, loaded, renderer, generator, verifiers)


def warn_of_slow_type(loaded: LoadedModel) -> None:
    """Warn if the dtype of the model is slower than float32 on this device; the dtype is not
    changed.
    """
    if line := slow_type(loaded.dtype, loaded.device):
        warn(line)


def show_sampling(generator: Any, stack: ExitStack, quiet: bool) -> SamplingWatch:
    """Show the progress of a generator on standard error until ``stack`` closes."""
    progress = stack.enter_context(closing(Progress("", quiet=quiet)))
    generator.watch = progress.sampling
    return progress.sampling


def with_slots(config: TrainConfig, completions: int | None) -> TrainConfig:
    """Return the configuration with a number of engine slots; default: one slot per completion."""
    if config.engine.num_slots is not None:
        return config
    on_gpu = choose_device(config.run.device).type != "cpu"
    # On a GPU, additional slots take little time, so the default number is high.
    # On a CPU, the time of a decoding step grows with every slot.
    slots = MOST_SLOTS if on_gpu or completions is None else min(completions, MOST_SLOTS)
    engine = config.engine.model_copy(update={"num_slots": max(1, slots)})
    return config.model_copy(update={"engine": engine})


def fixed_words(session: Session) -> list[str]:
    """Describe the settings that a resumed run must keep to get equal results, and unused engine
    slots.
    """
    config, slots = session.config, session.config.engine.slots
    dtype = str(session.loaded.dtype).removeprefix("torch.")
    notes = [
        f"fixed for bitwise reproducibility on this machine: run.seed {config.run.seed},"
        f" {torch.get_num_threads()} threads, {dtype} on {session.loaded.device},"
        f" engine.num_slots {slots}, engine.threads {config.engine.threads}"
    ]
    completions = config.completions_a_step
    on_cpu = session.loaded.device.type == "cpu"
    if completions and slots > completions and on_cpu and not session.generator.skips_idle_rows:
        notes.append(
            f"engine.num_slots is {slots} and a step samples {completions} completions: the other"
            f" {slots - completions} rows are computed for nothing, unless evaluations fill them;"
            f" remove it, or set {completions}"
        )
    return notes


def verifier_options(config: TrainConfig) -> dict[str, dict[str, Any]]:
    """Return the verifier options; reward models get the device and tokenizer of the run by
    default.
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
    """Whether a run samples from its model, for training or for evaluations."""
    data = config.data
    return config.rl is not None or bool(data.train or data.heldout or data.canaries)


def max_prompt_tokens(config: TrainConfig, loaded: LoadedModel | ModelOutline) -> int | None:
    """Return the maximum prompt length; default: the context length minus
    ``sampling.max_tokens``."""
    if loaded.context_length is None:
        return config.data.max_prompt_tokens
    room = loaded.context_length - config.longest_completion
    # Without sampling, a prompt needs no space for a completion: the rows contain completions.
    if room < 1 and not samples(config):
        return config.data.max_prompt_tokens
    if room < 1:
        found = f"{config.longest_completion} on a context of {loaded.context_length} tokens"
        accepted = f"at most {loaded.context_length - 1}, less the prompt"
        raise ModelError(
            message("sampling.max_tokens", found, accepted, "lower it (or --max-tokens)")
        )
    return min(room, config.data.max_prompt_tokens or room)


@dataclass(frozen=True)
class Problems:
    """Checked training problems, held-out problems and canaries of a run.

    notes: findings. audited: see `SecondCheck`.
    """

    train: ProblemSet
    heldout: Sequence[Problem]
    notes: tuple[str, ...]
    audited: frozenset[str] = frozenset()
    canaries: Sequence[Problem] = ()


def read_problems(
    config: TrainConfig,
    verifiers: VerifierService,
    check: Callable[[Problem], None] | None = None,
) -> Problems:
    """Open the training and held-out problems; raises DataError for invalid rows or overlap between
    them.

    No model is needed. check: function that validates training problems; default: the check of the
    verifiers.
    """
    data = config.data
    check_second(config, verifiers)
    judged = check or _training_check(config, verifiers)
    reader, tags, parts = FactReader(config.curriculum), TagWatch(config), PartCheck(config)
    seconds = SecondCheck(config, verifiers)
    systems: dict[str, str] = {}

    def check_all(problem: Problem) -> None:
        parts.check(problem)
        judged(problem)
        seconds.check(problem)
        reader.check(problem)
        tags.see(problem)
        note_system(problem.prompt, problem.place, systems)

    named = tags_of_sources(data.mixture, "train")
    train = load_problems(data.train, on_bad_row=data.on_bad_row, check=check_all, tags=named)
    reader.check_names(len(train))
    parts.finish(train)
    refuse_unjudgeable(train, verifiers, "training rows")
    # A pairwise judge checks rows itself and uses no reward function: no function is tried.
    tried = [] if check else try_row_rewards(config, verifiers, train, "training rows")
    heldout = read_heldout(config, verifiers, tags.of(train))
    canaries = read_canaries(config, verifiers)
    compare = partial(check_overlap, **near_settings(data))
    report = compare(train, heldout)
    notes = [*report.describe().splitlines(), *tried, *seconds.finish()]
    notes += leaked_lines(config, [*heldout, *canaries], systems)
    if canaries:
        report = compare(report.train, canaries, what="canary")
        notes += report.near_words()
    used = seconds.audited([*heldout, *canaries])
    return Problems(report.train, heldout, tuple(notes), used, canaries)


def _training_check(config: TrainConfig, verifiers: VerifierService) -> Callable[[Problem], None]:
    """Return a function that raises VerifierError for a training problem without a valid reward."""
    options = config.verification.options
    for expression in (config.data.verifier, *config.data.verifier_by_tag.values()):
        refuse_measures(expression, options, "data.verifier")
    by_steps = config.rl is not None and choose_algorithm(config).credit == "steps"

    def check(problem: Problem) -> None:
        verifiers.check_problem(problem)
        if not problem.verifier:
            return
        refuse_measures(problem.verifier, options, "verifier")
        if by_steps and (complaint := dropped_parts(problem.verifier)):
            raise VerifierError(message("verifier", problem.verifier, *complaint))

    return check


def dropped_parts(expression: str) -> tuple[str, str] | None:
    """Return (accepted values, remedy) if the credit for steps would ignore a term of a reward;
    otherwise None.

    The credit ``steps`` compares each step with the other steps of its group. Completion rewards
    compare completions. No single baseline fits the sum of a score of a step and a score of a
    completion.
    """
    if all(term.weight == 0 for term in parse_expression(expression)[1:]):
        return None
    return (
        "a single verifier that scores steps: credit by steps uses only step scores",
        'set the other weights to 0, or learn from the sum (algorithm.credit = "completion")',
    )


def fit_problems(problems: Problems, session: Session) -> Problems:
    """Return the problems whose prompts fit the context; a longer prompt raises DataError or is
    skipped.
    """
    heldout = fit_heldout(problems.heldout, session)
    train = keep_fitting(problems.train, session.renderer, session.config.data.on_bad_row)
    check_thinking(session.renderer, train, session.config.sampling)
    canaries = fit_heldout(problems.canaries, session)
    counts = f"{len(train)} training problems, {len(heldout)} held out{canary_words(canaries)}"
    notes = [counts, *problems.notes]
    if train.skipped:
        notes.append(f"{len(train.skipped)} bad rows skipped, the first: {train.skipped[0]}")
    lines = tuple(line for note in notes for line in note.splitlines())
    return replace(problems, train=train, heldout=heldout, canaries=canaries, notes=lines)


class Rendering(Protocol):
    """A session that has a prompt renderer: `Session`, or `SamplingSession`, which only samples."""

    @property
    def config(self) -> TrainConfig:
        """The configuration."""
        ...

    @property
    def renderer(self) -> PromptRenderer:
        """The prompt renderer."""
        ...


def fit_heldout(heldout: Sequence[Problem], session: Rendering) -> Sequence[Problem]:
    """Apply the check of prompt lengths (`fit_problems`) to held-out problems."""
    if not isinstance(heldout, RowSet):
        return heldout
    return keep_fitting(heldout, session.renderer, session.config.data.on_bad_row)


def choose_algorithm(config: TrainConfig) -> Algorithm:
    """Return the configured algorithm preset; raises ConfigError for settings that contradict each
    other.
    """
    settings = config.algorithm.model_dump(exclude={"name"})
    row = algorithm(config.algorithm.name, **settings, max_tokens=config.longest_completion)
    if config.rl is not None:
        check_group_size(row, config.rl.group_size)
        check_parts(config, row)
        _check_sizes(config, row)
        _check_sampling(config.sampling)
        for expression in (config.data.verifier, *config.data.verifier_by_tag.values()):
            if row.credit == "steps" and (complaint := dropped_parts(expression)):
                raise ConfigError(message("data.verifier", expression, *complaint))
        _check_critic(config, config.rl, row)
        if config.teacher is not None:
            check_teaching_ahead(row, config.scale.steps_ahead)
        if not config.rl.max_refills:
            # Without refills, dynamic sampling replaces no group: uniform groups stay in the batch.
            row = replace(row, dynamic_sampling=False)
    if config.scale.shard and (row.has_critic or row.trust_region is not None):
        what = "a critic" if row.has_critic else "a trust region"
        raise ConfigError(message("scale.shard", f"true with {what}", f"false with {what}"))
    if row.trust_region is not None and config.model.dtype == "bfloat16":
        found, accepted = (
            '"bfloat16", with a trust region',
            '"float32": a narrower type would round the steps away',
        )
        raise ConfigError(message("model.dtype", found, accepted))
    return row


def _check_sizes(config: TrainConfig, row: Algorithm) -> None:
    """Reject different group sizes that are too small for the baseline, or that bias the
    weights."""
    sizes = config.curriculum.group_sizes
    if sizes is None:
        return
    if sizes[0] < row.min_siblings:
        accepted = f"at least {row.min_siblings}: {row.name} compares siblings"
        raise ConfigError(message("curriculum.group_sizes", list(sizes), accepted))
    if row.across_groups:
        found = f"{list(sizes)} with {row.across_groups}, which weights all completions equally"
        accepted = "groups of one size: a larger group would have more weight"
        raise ConfigError(message("curriculum.group_sizes", found, accepted, "remove it"))


def _check_sampling(sampling: SamplingConfig) -> None:
    """Reject truncated sampling (top-k, top-p, min-p), because the learner uses the full
    distribution.

    A truncated token is never sampled, so training could raise but never lower its probability.
    """
    # With truncation, ratios and KL would compare the full distribution with the truncated one.
    for key in ("top_k", "top_p", "min_p"):
        found, default = getattr(sampling, key), SamplingConfig.model_fields[key].default
        if found != default:
            accepted = f"{default} in a run of [rl], whose loss covers the whole distribution"
            remedy = "remove it; assay eval and assay sample accept it"
            raise ConfigError(message(f"sampling.{key}", found, accepted, remedy))


def _check_critic(config: TrainConfig, rl: RLConfig, row: Algorithm) -> None:
    """Reject settings of a critic that the algorithm does not have, and a warm-up as long as the
    run.
    """
    if not row.has_critic:
        for key in sorted(config.critic.model_fields_set):
            value = getattr(config.critic, key)
            if value != CriticConfig.model_fields[key].default:
                found = f"{value!r}, but {row.name} has no critic"
                remedy = 'remove [critic], or set algorithm.credit = "gae"'
                raise ConfigError(message(f"critic.{key}", found, "nothing", remedy))
    elif config.critic.warmup_steps >= rl.steps:
        found = f"{config.critic.warmup_steps} of rl.steps = {rl.steps}"
        accepted = "fewer: the policy only learns after the warm-up"
        raise ConfigError(message("critic.warmup_steps", found, accepted))


def choose_layout(
    session: Session, problems: Sequence[Problem], group_size: int, beside: Any = None
) -> LayoutChoice:
    """Compare the tree layout with the plain layout, and choose the layout for this run.

    The probe uses the lengths of the first prompts, and half of the maximum completion length.
    beside: second model that scores the policy's batches, such as a teacher.
    """
    first = [problems[n] for n in range(min(PROBED_PROMPTS, len(problems)))]
    prompts = [session.renderer.render(problem).tokens for problem in first]
    lengths = sorted(map(len, prompts))
    return probe_layouts(
        session.loaded.model,
        prompt_length=lengths[len(lengths) // 2],
        # Few completions reach the maximum length, so half of it is assumed.
        # The assumed completion length affects only the speed, and not the results.
        completion_length=session.config.longest_completion // 2,
        group_size=group_size,
        beside=beside,
        prompts=prompts,
    )
