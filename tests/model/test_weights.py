"""Weights on their way: shared or copied, and the same fingerprint on both sides."""

import pickle
from dataclasses import replace

import pytest
import torch

from assay.errors import ModelError
from assay.model.weights import Weights, fingerprint
from assay.testing import tiny_model


def test_what_shares_memory_is_not_copied() -> None:
    model = tiny_model()
    weights = Weights.of(model, 1)
    with torch.no_grad():
        model.model.norm.weight.add_(1.0)
    wrong = replace(weights, fingerprint="of something else")
    wrong.load_into(model)  # nothing is copied, so nothing is held against it
    assert fingerprint(weights.tensors) == fingerprint(model.state_dict()), "they are live"


def test_a_copy_that_travelled_has_the_fingerprint_of_what_was_sent() -> None:
    sender, receiver = tiny_model(seed=1), tiny_model()
    weights = pickle.loads(pickle.dumps(Weights.of(sender, 4).sealed()))
    before = [parameter.data_ptr() for parameter in receiver.parameters()]
    weights.load_into(receiver)
    assert weights.version == 4
    assert fingerprint(receiver.state_dict()) == weights.fingerprint
    assert [parameter.data_ptr() for parameter in receiver.parameters()] == before


def test_a_fingerprint_sees_names_types_shapes_and_every_bit() -> None:
    tensors = {"a": torch.arange(6.0), "b": torch.ones(2, dtype=torch.bfloat16)}
    seen = {fingerprint(tensors), fingerprint(dict(reversed(tensors.items())))}
    assert len(seen) == 1, "not their order"
    other = tensors["a"].clone()
    other.view(torch.int32)[5] += 1
    changes = [
        {"a": tensors["a"].view(2, 3)},
        {"a": other},
        {"b": tensors["b"].view(torch.float16)},
        {"c": torch.zeros(0)},
    ]
    seen |= {fingerprint(tensors | change) for change in changes}
    assert len(seen) == 5


def test_weights_that_were_changed_on_the_way_are_refused() -> None:
    weights = Weights.of(tiny_model(seed=1), 4).sealed()
    weights.tensors["model.norm.weight"].data.add_(1.0)
    with pytest.raises(ModelError, match="version 4 with another fingerprint"):
        weights.load_into(tiny_model())


def test_weights_of_another_model_are_refused() -> None:
    with pytest.raises(ModelError, match="on one side only"):
        Weights.of(tiny_model(family="gpt2"), 0).load_into(tiny_model())
    with pytest.raises(ModelError, match="of shape"):
        Weights.of(tiny_model(hidden_size=16), 0).load_into(tiny_model())
    with pytest.raises(ModelError, match="bfloat16"):
        Weights.of(tiny_model().bfloat16(), 0).load_into(tiny_model())
