"""A rollout actor loads adapters only onto the base model of the learner."""

from __future__ import annotations

import socket
from dataclasses import replace

import pytest
import torch
from generate_fakes import engine_of

from assay.config import LoraConfig
from assay.errors import ModelError
from assay.model.adapters import add_adapter
from assay.model.weights import Weights, fingerprint
from assay.scale.rollout_actor import RolloutActor, Sent
from assay.testing import tiny_model


def an_actor(seed: int = 0) -> tuple[RolloutActor, torch.nn.Module]:
    """Return an actor with a tiny model and its adapters."""
    model = add_adapter(tiny_model(seed=seed), LoraConfig(rank=2), 0)
    actor = RolloutActor()
    actor._engine = engine_of(model)
    return actor, model


def sent_from(model: torch.nn.Module, version: int = 1) -> Sent:
    weights = Weights.of(model, version)
    base = {name: weights.tensors[name] for name in weights.frozen}
    return replace(Sent.of(weights), base=fingerprint(base))


def test_an_actor_with_the_same_base_loads_adapters() -> None:
    learner = an_actor()[1]
    for name, tensor in learner.named_parameters():
        if "lora_B" in name:
            torch.nn.init.ones_(tensor)
    actor, model = an_actor()
    sent = sent_from(learner)
    assert sent.tensors and not sent.tensors.keys() & sent.frozen
    assert actor.load(sent).fingerprint == fingerprint(learner.state_dict())
    assert fingerprint(model.state_dict()) == fingerprint(learner.state_dict())


@pytest.mark.parametrize("lacks", [False, True])
def test_an_actor_with_another_base_names_its_host_and_the_remedy(lacks: bool) -> None:
    """Another commit of the hub, or a replaced folder; it may lack a tensor, too."""
    learner = an_actor()[1]
    actor, _ = an_actor(seed=0 if lacks else 1)
    sent = sent_from(learner)
    if lacks:
        sent = replace(sent, frozen=sent.frozen | {"ghost"}, base="another")
    with pytest.raises(ModelError, match=r"model\.revision") as caught:
        actor.load(sent)
    assert socket.gethostname() in str(caught.value) and "\n" not in str(caught.value)
