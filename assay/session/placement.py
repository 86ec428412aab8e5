"""Let rollout actors or vLLM sample instead of the local engine."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed

from assay.config import ModelConfig, TrainConfig, tool_settings
from assay.errors import ConfigError, message
from assay.generate.vllm_engine import ModelFacts, VllmEngine
from assay.host.orphans import WorkerMark, new_family, watched
from assay.learn.ranks import ALONE, Ranks
from assay.model.adapters import merged
from assay.model.load import LoadedModel, load_model
from assay.model.weights import Weights
from assay.scale.ahead import AheadGenerator
from assay.scale.launched import launch
from assay.scale.launched_ranks import lead
from assay.scale.learner_ranks import open_ranks
from assay.scale.rollout_actor import Opening
from assay.scale.rollouts import ActorGenerator
from assay.session.assemble import Session

Make = Callable[[TrainConfig, LoadedModel, Ranks], Any]
"""Function that builds the learner of a rank from configuration, model and ranks."""


def on_actors(session: Session, stack: ExitStack) -> Session:
    """Replace the engine of the session by actors or vLLM, if either is configured."""
    config, loaded, engine = session.config, session.loaded, session.generator
    scale, facts = config.scale, _facts(session)
    as_sent = partial(merged, model=loaded.model) if facts is not None else _as_it_is
    if scale.rollout_actors is None:
        if facts is None:
            return session
        # vLLM starts child processes, which carry a mark so that they end with a killed command.
        mark = WorkerMark(new_family(), "vllm")
        stack.enter_context(watched(mark))
        vllm = VllmEngine(
            facts,
            engine.render,
            settings=engine.settings,
            seed=config.run.seed,
            threads=torch.get_num_threads(),
            as_sent=as_sent,
            expected=engine.plain_probe,
            marks=mark.environment,
        )
        vllm.make_controller = engine.make_controller
        stack.callback(vllm.close)
        return replace(session, actors=vllm)
    corpus = tuple(map(absolute, config.tools.corpus))
    opening = Opening(
        model=model_elsewhere(config.model, loaded),
        device=_device(session),
        settings=engine.settings,
        seed=config.run.seed,
        threads=torch.get_num_threads(),
        context_length=loaded.context_length,
        tools=tool_settings(config).model_copy(update={"corpus": corpus}),
        in_chat=session.renderer.template == "chat",
        # Actors import the user's modules from this process's folders; "" is the working directory.
        path=[folder or os.getcwd() for folder in sys.path],
        vllm=facts,
    )
    kind = AheadGenerator if scale.steps_ahead and config.rl is not None else ActorGenerator
    actors = kind(engine, opening, scale, as_sent)
    stack.callback(actors.close)
    return replace(session, actors=actors)


def model_elsewhere(settings: ModelConfig, loaded: LoadedModel) -> ModelConfig:
    """Return the model's settings with absolute paths, for a process in another working
    directory."""
    dtype = str(loaded.dtype).removeprefix("torch.")
    model = {**settings.model_dump(), "dtype": dtype}
    for key in ("path", "tokenizer", "adapter"):
        model[key] = model[key] and absolute(model[key])
    return ModelConfig.model_validate(model)


def _load_policy(config: TrainConfig, device: str) -> LoadedModel:
    return load_model(config.model, device, config.run.seed)


def open_learner_ranks(
    config: TrainConfig,
    loaded: LoadedModel,
    make: Make,
    stack: ExitStack,
    load: Callable[[TrainConfig, str], LoadedModel] = _load_policy,
) -> Ranks:
    """Start the configured learner ranks in addition to this process, which is rank 0.

    loaded: the loaded model of rank 0. make: function that builds the learner of another rank.
    load: function that loads the model of another rank, from a configuration and a device.
    """
    if not config.scale.num_followers:
        return ALONE
    device = loaded.device.type
    if device != "cpu" or config.scale.gpus_per_actor:
        # Ray does not know that this process uses a GPU, and would give this GPU to another rank.
        found = f"{config.scale.learner_ranks} on {device if device != 'cpu' else 'GPUs'}"
        accepted = "1 on a GPU: several ranks are supported on CPUs only"
        raise ConfigError(message("scale.learner_ranks", found, accepted))
    if not torch.distributed.is_gloo_available():
        found = f"{config.scale.learner_ranks}, and a torch without gloo"
        accepted = "1, or a torch whose distributed package has gloo"
        raise ConfigError(message("scale.learner_ranks", found, accepted))
    value_model = config.critic.path and absolute(config.critic.path)
    elsewhere = {
        "model": model_elsewhere(config.model, loaded),
        "critic": config.critic.model_copy(update={"path": value_model}),
    }
    build = partial(_build_rank, make, load, config.model_copy(update=elsewhere), device)
    start = open_ranks if launch() is None else lead
    return start(build, config.scale, device, stack)


def _build_rank(
    make: Make,
    load: Callable[[TrainConfig, str], LoadedModel],
    config: TrainConfig,
    device: str,
    ranks: Ranks,
) -> Any:
    return make(config, load(config, device), ranks)


def _facts(session: Session) -> ModelFacts | None:
    """Return the facts about the model that vLLM needs; None for other generators."""
    if session.config.scale.generator != "vllm":
        return None
    loaded = session.loaded
    return ModelFacts.of(
        loaded.model,
        loaded.tokenizer,
        device=_device(session),
        context_length=loaded.context_length,
        eos_ids=loaded.eos_ids,
    )


def _device(session: Session) -> str:
    """Return the type of the device that samples: ``cpu``, ``cuda`` or another device type of
    torch.
    """
    scale = session.config.scale
    if scale.rollout_actors is None:
        return session.loaded.device.type
    return "cuda" if scale.gpus_per_actor else "cpu"


def _as_it_is(weights: Weights) -> Weights:
    return weights


def absolute(place: str) -> str:
    """Return the absolute path of an existing file; any other name is returned unchanged."""
    path = Path(place).expanduser()
    return str(path.resolve()) if path.exists() else place
