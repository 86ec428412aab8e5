"""Weights on their way: shared or copied, and the same fingerprint on both sides."""

import pickle
from dataclasses import replace

import pytest
import torch

from assay.errors import ModelError
from assay.model.weights import ROW, Weights, fingerprint
from assay.scale.rollout_actor import Sent
from assay.testing import tiny_model


def test_shared_memory_is_not_copied() -> None:
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


def test_a_fingerprint_sees_changes_that_could_cancel_each_other() -> None:
    whole = torch.randn(3 * ROW * 2 + 5, generator=torch.Generator().manual_seed(0))
    upper, signs, swapped = whole.clone(), whole.clone(), whole.clone()
    upper[[1, 3]] *= -1.0  # of two words the uppermost bit
    signs *= -1.0
    swapped[[0, 2]] = swapped[[2, 0]]
    rows = torch.cat([whole[2 * ROW : 4 * ROW], whole[: 2 * ROW], whole[4 * ROW :]])
    end = torch.cat([whole[:-1], whole[-1:] + 1.0])
    seen = {fingerprint({"a": one}) for one in (whole, upper, signs, swapped, rows, end)}
    assert len(seen) == 6


def test_tied_tensors_are_sent_once_and_hash_as_if_they_were_apart() -> None:
    model = tiny_model()
    tensors = dict(model.state_dict())
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    apart = tensors | {"lm_head.weight": tensors["lm_head.weight"].clone()}
    turned = torch.arange(4.0).view(2, 2)
    assert fingerprint(tensors) == fingerprint(apart)
    assert fingerprint({"a": turned, "b": turned}) != fingerprint({"a": turned, "b": turned.T})
    once, twice = (len(pickle.dumps(Sent.of(Weights(1, one)))) for one in (tensors, apart))
    head = tensors["lm_head.weight"]
    assert twice - once > 0.9 * head.numel() * head.element_size()
    assert fingerprint(Sent.of(Weights(1, tensors)).weights().tensors) == fingerprint(apart)


def test_frozen_weights_are_not_sent() -> None:
    model = tiny_model()
    model.requires_grad_(False)
    model.model.norm.weight.requires_grad_(True)
    sent = Sent.of(Weights.of(model, 3)).weights()
    assert sent.tensors.keys() == {"model.norm.weight"}
    assert sent.tensors.keys() | sent.frozen == model.state_dict().keys()


def test_weights_that_were_changed_on_the_way_are_refused() -> None:
    weights = Weights.of(tiny_model(seed=1), 4).sealed()
    weights.tensors["model.norm.weight"].data.add_(1.0)
    with pytest.raises(ModelError, match="version 4 whose fingerprint changed"):
        weights.load_into(tiny_model())


def test_weights_of_another_model_are_refused() -> None:
    with pytest.raises(ModelError, match="in only one of the two models"):
        Weights.of(tiny_model(family="gpt2"), 0).load_into(tiny_model())
    with pytest.raises(ModelError, match="of shape"):
        Weights.of(tiny_model(hidden_size=16), 0).load_into(tiny_model())
    with pytest.raises(ModelError, match="bfloat16"):
        Weights.of(tiny_model().bfloat16(), 0).load_into(tiny_model())
