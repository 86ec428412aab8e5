"""A run whose completions are sampled by actors."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import torch

from assay.config import ModelConfig
from assay.scale.ahead import Actors, AheadGenerator
from assay.scale.rollout_actor import Opening
from assay.scale.rollouts import ActorGenerator
from assay.training.assemble import Bench


def on_actors(bench: Bench, stack: ExitStack) -> Bench:
    """Return the bench with actors in place of its engine, where the configuration has them."""
    config, loaded, engine = bench.config, bench.loaded, bench.generator
    if config.scale.rollout_actors is None:
        return bench
    model = {**config.model.model_dump(), "dtype": str(loaded.dtype).removeprefix("torch.")}
    for key in ("path", "tokenizer"):  # an actor works in another folder
        model[key] = model[key] and _absolute(model[key])
    corpus = tuple(map(_absolute, config.tools.corpus))
    opening = Opening(
        model=ModelConfig.model_validate(model),
        device="cuda" if config.scale.gpus_per_actor else "cpu",
        settings=engine.settings,
        seed=config.run.seed,
        threads=torch.get_num_threads(),
        context_length=loaded.context_length,
        tools=config.tools.model_copy(update={"corpus": corpus}),
        in_chat=bench.renderer.template == "chat",
        path=[folder or os.getcwd() for folder in sys.path],
    )
    actors: Actors = ActorGenerator(engine, opening, config.scale)
    if config.scale.steps_ahead and config.rl is not None:
        actors = AheadGenerator(actors, config.rl.epochs * config.rl.num_minibatches)
    stack.callback(actors.close)
    return replace(bench, actors=actors)


def _absolute(place: str) -> str:
    """Return the whole path of what is there; what is not is a name of the hub, or a source."""
    path = Path(place).expanduser()
    return str(path.resolve()) if path.exists() else place
