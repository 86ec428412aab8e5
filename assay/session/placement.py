"""A run whose completions are sampled by actors, or by vLLM."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from assay.config import ModelConfig
from assay.generate.vllm_engine import ModelFacts, VllmEngine
from assay.host.orphans import Remains, new_family, watched
from assay.model.adapters import merged
from assay.model.weights import Weights
from assay.scale.ahead import Actors, AheadGenerator
from assay.scale.rollout_actor import Opening
from assay.scale.rollouts import ActorGenerator
from assay.session.assemble import Session


def on_actors(session: Session, stack: ExitStack) -> Session:
    """Return the session with actors, or vLLM, in place of its engine, where the configuration has
    them."""
    config, loaded, engine = session.config, session.loaded, session.generator
    scale, facts = config.scale, _facts(session)
    as_sent = partial(merged, model=loaded.model) if facts is not None else _as_it_is
    if scale.rollout_actors is None:
        if facts is None:
            return session
        remains = Remains(new_family(), "vllm")
        stack.enter_context(watched(remains))
        vllm = VllmEngine(
            facts,
            engine.render,
            settings=engine.settings,
            seed=config.run.seed,
            threads=torch.get_num_threads(),
            as_sent=as_sent,
            expected=engine.plain_probe,
            marks=remains.environment,
        )
        stack.callback(vllm.close)
        return replace(session, actors=vllm)
    model = {**config.model.model_dump(), "dtype": str(loaded.dtype).removeprefix("torch.")}
    for key in ("path", "tokenizer", "adapter"):  # an actor works in another folder
        model[key] = model[key] and absolute(model[key])
    corpus = tuple(map(absolute, config.tools.corpus))
    opening = Opening(
        model=ModelConfig.model_validate(model),
        device=_device(session),
        settings=engine.settings,
        seed=config.run.seed,
        threads=torch.get_num_threads(),
        context_length=loaded.context_length,
        tools=config.tools.model_copy(update={"corpus": corpus}),
        in_chat=session.renderer.template == "chat",
        path=[folder or os.getcwd() for folder in sys.path],
        vllm=facts,
    )
    actors: Actors = ActorGenerator(engine, opening, scale, as_sent)
    if scale.steps_ahead and config.rl is not None:
        actors = AheadGenerator(actors, config.rl.epochs * config.rl.num_minibatches)
    stack.callback(actors.close)
    return replace(session, actors=actors)


def _facts(session: Session) -> ModelFacts | None:
    """Return what vLLM must know of the model, where it samples."""
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
    """Return the kind of device that completions are sampled on."""
    scale = session.config.scale
    if scale.rollout_actors is None:
        return session.loaded.device.type
    return "cuda" if scale.gpus_per_actor else "cpu"


def _as_it_is(weights: Weights) -> Weights:
    return weights


def absolute(place: str) -> str:
    """Return the whole path of what is there; what is not is a name of the hub, or a source."""
    path = Path(place).expanduser()
    return str(path.resolve()) if path.exists() else place
