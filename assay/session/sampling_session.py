"""Open the generator of a command: the built-in engine, rollout actors, vLLM, or a model server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Protocol, cast

from assay.config import TrainConfig
from assay.data.chat import PromptRenderer
from assay.errors import ConfigError, message
from assay.generate.base import Generator
from assay.generate.engine_stats import EngineStats
from assay.host.startup import doing
from assay.model.load import LoadedModel, load_outline
from assay.model.weights import Weights
from assay.session.assemble import max_prompt_tokens, open_session
from assay.session.completion_server import CompletionServer, find_served
from assay.session.placement import on_actors
from assay.types import Problem
from assay.verify.service import VerifierService


class Sampler(Generator, Protocol):
    """Generator of a command that only samples.

    render: function that makes the `Prompt` of a problem; callers may replace the attribute. watch:
    progress callback.
    """

    # `render` is an attribute of some generators and a property of others, so its type is Any.
    render: Any
    watch: Callable[[EngineStats], None] | None


@dataclass(frozen=True)
class SamplingSession:
    """The opened renderer, generator and verifiers of a command that only samples.

    loaded: the local model; None if a server has the model.
    """

    config: TrainConfig
    tokenizer: Any
    renderer: PromptRenderer
    generator: Sampler
    verifiers: VerifierService
    loaded: LoadedModel | None = None


def open_sampling(
    config: TrainConfig, verifiers: VerifierService, stack: ExitStack
) -> SamplingSession:
    """Open the configured generator; the verifiers are already open.

    ``stack`` ends actors and processes. Raises the errors of `open_session`, and ConfigError for an
    unsuitable server.
    """
    if config.server.url is not None:
        return _open_server(config, verifiers)
    # A command that only samples has no training steps, so nothing can be sampled ahead.
    scale = config.scale.model_copy(update={"steps_ahead": 0})
    session = open_session(config.model_copy(update={"scale": scale}), verifiers)
    session = on_actors(session, stack)
    if session.actors is not None:
        session.actors.load_policy(Weights.of(session.loaded.model, 0))
    loaded, sampler = session.loaded, cast("Sampler", session.sampler)
    return SamplingSession(
        session.config, loaded.tokenizer, session.renderer, sampler, verifiers, loaded
    )


def check_sampling(config: TrainConfig, problems: Sequence[Problem] = ()) -> None:
    """Raise ConfigError for settings that a model server does not support.

    problems: rows whose efforts and mixture parts are also checked for thinking budgets.
    """
    if config.server.url is None:
        return
    where, sampling, tools = "server.url", config.sampling, config.tools
    # A server samples whole completions, so no tokens can be injected into a completion.
    asked = [*tools.names, *filter(None, [tools.environment])]
    pairs = [(sampling, None)]
    pairs += [(config.sampling_of(one.tags, sampling), one.effort) for one in problems]
    controlled = [own for own, effort in pairs if own.controls_thinking(effort)]
    remedy = "remove it, or sample with the engine (without --server)"
    if asked:
        found = f"tools ({', '.join(asked)}), whose results are injected tokens"
        raise ConfigError(message(where, found, "a configuration without tools", remedy))
    if controlled:
        key = "a thinking budget" if controlled[0].min_think is None else "min_think"
        found = f"{key}, which injects tokens"
        raise ConfigError(message(where, found, "sampling without thinking controls", remedy))
    if config.scale.rollout_actors is not None or config.scale.generator != "engine":
        key = "rollout_actors" if config.scale.rollout_actors is not None else "generator"
        found = f"scale.{key} beside a server"
        raise ConfigError(message(where, found, "one generator", "leave one of them out"))


def _open_server(config: TrainConfig, verifiers: VerifierService) -> SamplingSession:
    check_sampling(config)
    with doing("asking the server"):
        served = find_served(config.server, config.model)
    outline = load_outline(config.model)
    renderer = PromptRenderer(
        outline.tokenizer,
        config.data,
        max_prompt_tokens(config, outline),
        outline.context_length,
        config.sampling,
    )
    with doing("asking the server"):
        generator = CompletionServer(
            config.server, outline, renderer.render, served=served, seed=config.run.seed
        )
        generator.check(renderer.render(Problem("first", "1+1=")), config.sampling)
    return SamplingSession(config, outline.tokenizer, renderer, generator, verifiers)
