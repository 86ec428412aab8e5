import contextlib
from collections.abc import Iterator

import pytest
import torch
from learn_learners import (
    a_batch,
    a_learner,
    a_model,
    assert_same,
    learn,
    plain_logprobs,
    weights,
)
from torch import nn

import assay.learn.update as update_module
from assay.config import OptimizerConfig
from assay.learn.algorithms import algorithm

pytestmark = pytest.mark.usefixtures("one_thread")


def test_reference_is_the_starting_policy() -> None:
    learner = a_learner(algorithm("grpo"), optimizer=OptimizerConfig(learning_rate=0.01))
    first, second = learn(learner, a_batch()), learn(learner, a_batch(seed=1))
    assert first.metrics["kl/mean"] == pytest.approx(0.0, abs=1e-9)
    assert second.metrics["kl/mean"] > 1e-6
    reference_T, _ = plain_logprobs(a_model(), a_batch(seed=1))
    assert second.batch is not None and second.batch.ref_logprobs_T is not None
    torch.testing.assert_close(second.batch.ref_logprobs_T, reference_T.detach())
    assert all(not p.requires_grad for p in learner.reference._model.parameters())  # type: ignore[union-attr]


def test_no_reference_where_no_kl_is_asked_for() -> None:
    learner = a_learner(algorithm("rloo"))
    assert learner.reference is None
    assert not any(key.startswith("kl/") for key in learn(learner, a_batch()).metrics)
    watching = a_learner(algorithm("rloo"), keep_reference=True)
    assert learn(watching, a_batch()).metrics["kl/mean"] == pytest.approx(0.0, abs=1e-9)


class Adapted(nn.Module):
    """A model whose adapter is a switch: what Reference needs of peft."""

    def __init__(self) -> None:
        super().__init__()
        self.on = True
        self.weight = nn.Parameter(torch.zeros(1))

    @contextlib.contextmanager
    def disable_adapter(self) -> Iterator[None]:
        self.on = False
        yield
        self.on = True


def test_adapters_off_is_the_reference() -> None:
    model = Adapted()
    reference = update_module.Reference(model)
    assert reference.shares_weights
    with reference.policy() as off:
        assert off is model and not model.on
    assert model.on


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")
def test_lora_learns_and_its_reference_is_the_base_model() -> None:
    peft = pytest.importorskip("peft")
    base = a_model()
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    model = peft.get_peft_model(base, config)
    learner = a_learner(algorithm("grpo"), model, optimizer=OptimizerConfig(learning_rate=0.01))
    assert all("lora" in name for name in learner.optimizer.trained)
    base_weights = {n: w for n, w in weights(model).items() if "lora" not in n}
    scored = learner.score(a_batch())
    want, _ = plain_logprobs(a_model(), a_batch())
    assert scored.ref_logprobs_T is not None
    torch.testing.assert_close(scored.ref_logprobs_T, want.detach(), rtol=1e-4, atol=1e-5)
    assert learn(learner, a_batch()).metrics["kl/mean"] > 0
    after = weights(model)
    assert_same(base_weights, {n: after[n] for n in base_weights}, rtol=0, atol=0)
