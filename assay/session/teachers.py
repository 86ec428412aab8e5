"""Open the teacher of a run, and check that the teacher fits the policy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from assay.config import ModelConfig, TeacherConfig, TrainConfig
from assay.config.distill import SERVER_SETTINGS
from assay.data.chat import PromptRenderer
from assay.errors import ConfigError, UserError, message
from assay.learn.algorithms import Algorithm
from assay.learn.spans import AnyTeacher, SpanTeacher
from assay.learn.teacher import AbsentTeacher, OpenTeacher, TeacherModel
from assay.model.divergence import Divergence
from assay.model.head import Head
from assay.model.load import LoadedModel, load_model, other_token
from assay.scale.teacher import ActorTeacher
from assay.session.assemble import Session, max_prompt_tokens, warn_of_slow_type
from assay.session.placement import absolute
from assay.session.teacher_server import ServerTeacher

INSTEAD = (
    "to learn from its traces instead: assay data collect with this model, then [sft];"
    " or [rl] with on_policy_distillation: as the reference it scores spans of text"
)


def open_teacher(session: Session, loaded: LoadedModel | None = None) -> OpenTeacher:
    """Open the configured teacher; raises ConfigError if the teacher does not fit this policy.

    loaded: model of the teacher, if it is already loaded.
    """
    config = session.config
    assert config.teacher is not None
    where, divergence = f"teacher.path {config.teacher.path}", divergence_of(config)
    tokenizer, size = session.loaded.tokenizer, head_size(session.loaded)
    count = 0 if config.distill is None else config.distill.keep_top
    if config.teacher.url is not None:
        teacher = ServerTeacher(config.teacher, tokenizer, count, size, divergence)
    elif config.scale.teacher_actors is not None:
        # The teacher is on the device of the actor, which may be on another machine.
        device = "cuda" if config.scale.gpus_per_actor else "cpu"
        # Actors have another working directory, in which a relative path names another folder.
        path = absolute(config.teacher.path)
        settings = config.teacher.model_copy(update={"path": path, "device": device})
        load = partial(load_teacher, settings, config.run.seed, tokenizer, divergence)
        teacher = ActorTeacher(load, config.scale, count, size, divergence)
    else:
        loaded = loaded or _load_beside(session)
        check_tokens(tokenizer, loaded, where)
        teacher = _model_of(loaded, divergence, session.loaded.device)
    longest = teacher.context_length
    # Completions are sampled later, so the settings must limit the lengths that a teacher scores.
    if config.drawing is not None and longest is not None:
        prompt, completion = max_prompt_tokens(config, session.loaded), config.sampling.max_tokens
        if prompt is None or prompt + completion > longest:
            found = f"a context of {longest} tokens"
            accepted = f"room for a prompt ({prompt or 'of any length'}) and {completion} tokens"
            remedy = "lower data.max_prompt_tokens or sampling.max_tokens"
            raise ConfigError(message(where, found, accepted, remedy))
    return teacher


def load_teacher(
    settings: TeacherConfig,
    seed: int,
    tokenizer: Any,
    divergence: Divergence,
) -> TeacherModel:
    """Load a teacher in this process; raises ConfigError if its tokenizer does not fit the policy.

    tokenizer: the policy's.
    """
    loaded = _load(settings, seed)
    check_tokens(tokenizer, loaded, f"teacher.path {settings.path}")
    return _model_of(loaded, divergence, loaded.device)


def _model_of(loaded: LoadedModel, divergence: Divergence, head: torch.device) -> TeacherModel:
    return TeacherModel(loaded.model, divergence, head, loaded.context_length)


def _load_beside(session: Session) -> LoadedModel:
    """Load the configured teacher on ``teacher.device``, or else on the device of the run."""
    config = session.config
    assert config.teacher is not None
    here = config.teacher.device or config.run.device
    return _load(config.teacher.model_copy(update={"device": here}), config.run.seed)


def _load(settings: TeacherConfig, seed: int) -> LoadedModel:
    given = settings.model_dump(exclude={"device", *SERVER_SETTINGS})
    try:
        loaded = load_model(ModelConfig(**given), settings.device, seed)
    except UserError as error:
        # The loader's errors name keys of [model], but the user must change keys of [teacher].
        error.args = (str(error).replace("model.", "teacher.", 1), *error.args[1:])
        raise
    warn_of_slow_type(loaded)
    return loaded


def teacher_of_ranks(
    session: Session, teacher: AnyTeacher | None
) -> Callable[[LoadedModel], AnyTeacher] | None:
    """Return the function that opens the teacher in learner ranks other than 0.

    Every rank loads a local teacher, so that the ranks share the teacher's passes. Any other
    teacher is queried by rank 0, which sends the results to the other ranks. The argument of the
    function is the policy of the rank. The result is None if the run has no teacher.
    """
    if teacher is None:
        return None
    if not isinstance(teacher, TeacherModel):
        return _absent
    config = session.config
    assert config.teacher is not None
    here = config.teacher.device or session.loaded.device.type
    path = absolute(config.teacher.path)
    settings = config.teacher.model_copy(update={"path": path, "device": here})
    return partial(_load_for_rank, settings, config.run.seed, divergence_of(config))


def _absent(policy: LoadedModel) -> AbsentTeacher:
    return AbsentTeacher()


def _load_for_rank(
    settings: TeacherConfig, seed: int, divergence: Divergence, policy: LoadedModel
) -> TeacherModel:
    return _model_of(_load(settings, seed), divergence, policy.device)


def open_reference(session: Session, row: Algorithm) -> AnyTeacher | None:
    """Open the teacher that replaces the reference policy; return None if there is none.

    A teacher with another tokenizer scores spans of text (cross-tokenizer distillation).
    """
    config = session.config
    if config.teacher is None:
        return None
    if row.kl_weight == 0 and config.guard.max_kl is None:
        found = f"{config.teacher.path}, but {row.name} has no KL"
        accepted = "an algorithm that uses a teacher, such as on_policy_distillation"
        remedy = "set algorithm.kl_weight, or remove [teacher]"
        raise ConfigError(message("teacher.path", found, accepted, remedy))
    if config.teacher.url is not None or config.scale.teacher_actors is not None:
        return open_teacher(session)
    loaded = _load_beside(session)
    if other_token(session.loaded.tokenizer, loaded.tokenizer) is None:
        return open_teacher(session, loaded)
    return _on_spans(session, loaded)


def _on_spans(session: Session, loaded: LoadedModel) -> SpanTeacher:
    """Return a cross-tokenizer teacher; raises ConfigError if the run uses tools."""
    config = session.config
    if config.tools.names or config.tools.environment:
        found = "a teacher with another tokenizer, and tools"
        accepted = (
            "one with the policy's tokenizer: spans cannot represent the template's tool calls"
        )
        raise ConfigError(message("teacher.path", found, accepted, INSTEAD))
    asks = PromptRenderer(loaded.tokenizer, config.data, sampling=config.sampling)
    teacher = _model_of(loaded, divergence_of(config), session.loaded.device)
    return SpanTeacher(teacher, asks, session.loaded.tokenizer, session.loaded.eos_ids)


def notes_on(teacher: AnyTeacher | None) -> list[str]:
    """Return notes about the teacher, which are printed when a run starts."""
    if not isinstance(teacher, SpanTeacher):
        return []
    template = teacher.renderer.template
    return [
        "the teacher has another tokenizer: it scores spans of text, each of which ends where a"
        f" token of both ends; its prompts are rendered by its own {template} template"
    ]


def model_of(teacher: AnyTeacher | None) -> Any:
    """Return the model of the teacher if this process has loaded it; otherwise None."""
    return None if teacher is None else teacher.model


def divergence_of(config: TrainConfig) -> Divergence:
    """Return the configured divergence; outside a distillation stage, return the default
    divergence.
    """
    settings = config.distill
    if settings is None:
        return Divergence()
    return Divergence(settings.divergence, settings.skew, settings.beta, settings.temperature)


def head_size(loaded: LoadedModel) -> int:
    """Return the number of tokens for which the output head of a model computes scores."""
    return len(Head.of(loaded.model).weight_VD)


def check_tokens(tokenizer: Any, teacher: LoadedModel, where: str) -> None:
    """Raise ConfigError if a token of the student has another id in the teacher's vocabulary, or is
    missing there.
    """
    # A tokenizer may have more tokens than the model has embeddings, so both are compared.
    num_embedded = len(teacher.model.get_input_embeddings().weight)  # pyright: ignore
    ours: dict[str, int] = tokenizer.get_vocab()
    beyond = ((number, token) for token, number in ours.items() if number >= num_embedded)
    odd = other_token(tokenizer, teacher.tokenizer) or min(beyond, default=None)
    if odd is not None:
        number, token = odd
        found = f"a tokenizer in which {token!r} is not token {number}"
        accepted = "a teacher with the policy's tokenizer: each next token is compared"
        raise ConfigError(message(where, found, accepted, INSTEAD))
