"""The reference that moves: the policy of the last refresh, and nobody notices while it is asked."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from learn_learners import a_model, assert_same, weights

from assay.errors import RunError
from assay.learn.moving_reference import MovingReference
from assay.testing import tiny_model


def nudge(model: torch.nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1)


def test_it_is_the_policy_of_the_last_refresh() -> None:
    model = a_model()
    start, places = weights(model), [p.data_ptr() for p in model.parameters()]
    reference = MovingReference(model)
    nudge(model)
    moved = weights(model)
    for _ in range(2):
        with reference.policy() as policy:
            assert policy is model
            assert_same(weights(policy), start, rtol=0, atol=0)
        assert_same(weights(model), moved, rtol=0, atol=0)
        assert [p.data_ptr() for p in model.parameters()] == places, "shared memory stays shared"
    reference.refresh()
    nudge(model)
    with reference.policy() as policy:
        assert_same(weights(policy), moved, rtol=0, atol=0)


def test_the_policy_comes_back_after_an_error() -> None:
    model = a_model()
    reference = MovingReference(model)
    nudge(model)
    moved = weights(model)
    with pytest.raises(RuntimeError), reference.policy():
        raise RuntimeError
    assert_same(weights(model), moved, rtol=0, atol=0)


def test_only_what_is_trained_is_kept() -> None:
    model = a_model()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("mlp" in name)
    reference = MovingReference(model)
    nudge(model)
    with reference.policy() as policy:
        for name, parameter in policy.named_parameters():
            changed = not torch.equal(parameter, weights(a_model())[name])
            assert changed == ("mlp" not in name)


def test_state_comes_back_bit_for_bit(tmp_path: Path) -> None:
    model, other = a_model(), a_model(seed=1)
    MovingReference(model).save_state(tmp_path)
    reference = MovingReference(other)
    reference.load_state(tmp_path)
    with reference.policy() as policy:
        assert_same(weights(policy), weights(model), rtol=0, atol=0)
    with pytest.raises(RunError, match="in one only"):
        MovingReference(tiny_model(num_layers=1)).load_state(tmp_path)
    (tmp_path / "reference.safetensors").write_bytes(b"")
    with pytest.raises(RunError, match="the file of an earlier save"):
        reference.load_state(tmp_path)
