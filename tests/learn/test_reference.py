"""The reference: the policy at the start or at the last refresh, and nobody notices while it is asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from learn_batches import make_batch
from learn_learners import (
    VOCAB,
    a_batch,
    a_learner,
    a_model,
    assert_same,
    learn,
    plain_logprobs,
    weights,
)

from assay.config import OptimizerConfig
from assay.errors import RunError
from assay.learn.algorithms import algorithm
from assay.learn.reference import Reference
from assay.model.packing import Batch
from assay.testing import tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")

FAST = OptimizerConfig(learning_rate=0.01)


def test_reference_is_the_starting_policy() -> None:
    learner = a_learner(algorithm("grpo"), optimizer=FAST)
    first, second = learn(learner, a_batch()), learn(learner, a_batch(seed=1))
    assert first.metrics["kl/mean"] == 0.0
    assert second.metrics["kl/mean"] > 1e-6
    assert_reference_is(second.batch, a_model(), a_batch(seed=1))


def test_no_reference_where_no_kl_is_asked_for() -> None:
    learner = a_learner(algorithm("rloo"))
    assert learner.reference is None
    assert not any(key.startswith("kl/") for key in learn(learner, a_batch()).metrics)
    watching = a_learner(algorithm("rloo"), keep_reference=True)
    assert learn(watching, a_batch()).metrics["kl/mean"] == 0.0


def adapted(seed: int = 0) -> Any:
    """The model of the tests with adapters that are not zero, as after an earlier stage."""
    peft = pytest.importorskip("peft")
    torch.manual_seed(seed)
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    return peft.get_peft_model(a_model(), config)


def assert_reference_is(batch: Batch | None, model: Any, same: Batch) -> None:
    want_T, _ = plain_logprobs(model, same)
    assert batch is not None and batch.ref_logprobs_T is not None
    torch.testing.assert_close(batch.ref_logprobs_T, want_T.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")
@pytest.mark.parametrize("place", ["loss", "reward", "guard"])
def test_the_adapters_of_the_start_are_in_the_reference(place: str) -> None:
    row = algorithm("rloo") if place == "guard" else algorithm("grpo", kl_place=place)
    learner = a_learner(row, adapted(), optimizer=FAST, keep_reference=place == "guard")
    assert all("lora" in name for name in learner.optimizer.trained)
    base = {n: w for n, w in weights(learner.policy).items() if "lora" not in n}
    first, second = learn(learner, a_batch()), learn(learner, a_batch(seed=1))
    assert first.metrics["kl/mean"] == 0.0
    assert second.metrics["kl/mean"] > 1e-6
    assert_reference_is(second.batch, adapted(), a_batch(seed=1))
    after = weights(learner.policy)
    assert_same(base, {n: after[n] for n in base}, rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")
def test_at_the_start_nothing_pulls_adapters_back() -> None:
    """All rewards equal: the KL is all there is, and its gradient is zero where the policy is the reference."""
    batch = make_batch([[1.0, 1.0], [0.0, 0.0]], vocab_size=VOCAB)
    learner = a_learner(algorithm("grpo", kl_weight=1.0), adapted())
    assert learn(learner, batch).metrics["optimizer/grad_norm"] == 0.0


def nudge(model: torch.nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1)


def test_it_is_the_policy_of_the_last_refresh() -> None:
    model = a_model()
    start, places = weights(model), [p.data_ptr() for p in model.parameters()]
    reference = Reference(model)
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
    reference = Reference(model)
    nudge(model)
    moved = weights(model)
    with pytest.raises(RuntimeError), reference.policy():
        raise RuntimeError
    assert_same(weights(model), moved, rtol=0, atol=0)


def test_the_reference_copies_only_trained_parameters() -> None:
    model = a_model()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("mlp" in name)
    reference = Reference(model)
    nudge(model)
    with reference.policy() as policy:
        for name, parameter in policy.named_parameters():
            changed = not torch.equal(parameter, weights(a_model())[name])
            assert changed == ("mlp" not in name)


def test_state_comes_back_bit_for_bit(tmp_path: Path) -> None:
    model, other = a_model(), a_model(seed=1)
    Reference(model).save_state(tmp_path)
    reference = Reference(other)
    reference.load_state(tmp_path)
    with reference.policy() as policy:
        assert_same(weights(policy), weights(model), rtol=0, atol=0)
    with pytest.raises(RunError, match="in one only"):
        Reference(tiny_model(num_layers=1)).load_state(tmp_path)
    (tmp_path / "reference.safetensors").write_bytes(b"")
    with pytest.raises(RunError, match="the file of an earlier save"):
        reference.load_state(tmp_path)
