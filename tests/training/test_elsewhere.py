"""What a run tells the actors that sample for it; needs no cluster."""

from __future__ import annotations

from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from train_worlds import World

from assay.config import parse
from assay.training import elsewhere
from assay.training.assemble import Bench


def test_actors_are_told_whole_paths(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """They work in another folder. What is no file is a name of the hub, or a source."""
    told: list[Any] = []

    def hire(engine: Any, opening: Any, scale: Any) -> Any:
        told.append(opening)
        return SimpleNamespace(close=lambda: None)

    monkeypatch.setattr(elsewhere, "ActorGenerator", hire)
    monkeypatch.chdir(world.folder)
    (world.folder / "texts.txt").write_text("a text")
    tools = {"names": ["search"], "corpus": ["texts.txt", "mine:texts"]}
    config = parse(world.tree(model={"path": "model"}, tools=tools, scale={"rollout_actors": 1}))
    loaded: Any = SimpleNamespace(dtype=torch.float32, context_length=None)
    engine: Any = SimpleNamespace(settings=config.engine)
    renderer: Any = SimpleNamespace(template="base")
    verifiers: Any = None
    with ExitStack() as stack:
        elsewhere.on_actors(Bench(config, loaded, renderer, engine, verifiers), stack)
    (opening,) = told
    assert opening.model.path == str(world.folder / "model")
    assert opening.tools.corpus == (str(world.folder / "texts.txt"), "mine:texts")
