from typing import Any

import pytest
import torch
from learn_batches import make_batch
from learn_learners import (
    VOCAB,
    a_batch,
    a_learner,
    a_model,
    an_sft_learner,
    assert_same,
    collect_gradients,
    learn,
)
from torch import nn

import assay.learn.passes as passes_module
from assay.config import LoraConfig
from assay.errors import ModelError, OutOfMemory
from assay.learn.algorithms import algorithm
from assay.learn.passes import RecomputedActivations
from assay.model.load import add_adapter
from assay.testing import tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_recomputed_activations_change_nothing_else(family: str) -> None:
    def model() -> Any:
        return tiny_model(vocab_size=VOCAB, hidden_size=16, family=family, eos_token_id=None)

    row, batch = algorithm("grpo"), a_batch()
    [plain] = collect_gradients(a_learner(row, model()), batch)
    learner = a_learner(row, model(), activation_checkpointing=True)
    layers = learner.passes._recomputed._layers  # type: ignore[union-attr]
    assert len(layers) == 2
    [recomputed] = collect_gradients(learner, batch)
    assert_same(plain, recomputed, rtol=1e-6, atol=1e-8)
    assert not any(layer.training for layer in layers)


@pytest.mark.parametrize("stage", ["rl", "sft"])
def test_recomputed_activations_are_recomputed(stage: str) -> None:
    learner: Any = (
        a_learner(algorithm("rloo"), activation_checkpointing=True)
        if stage == "rl"
        else an_sft_learner(activation_checkpointing=True)
    )
    calls: list[bool] = []
    attention = learner.policy.model.layers[0].self_attn  # type: ignore[union-attr,index]
    attention.register_forward_hook(lambda *_: calls.append(torch.is_grad_enabled()))  # type: ignore[union-attr,operator]
    batch = make_batch([[1.0, 0.0]], vocab_size=VOCAB)
    if stage == "rl":
        collect_gradients(learner, batch)
    else:
        learner.update(batch)
    assert len(calls) == 2


def test_out_of_memory_names_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_out(*_: Any, **__: Any) -> None:
        raise RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate")

    monkeypatch.setattr(passes_module, "token_logprobs", run_out)
    learner = a_learner(algorithm("grpo"))
    with pytest.raises(OutOfMemory, match=r"rl\.max_tokens_per_micro_batch"):
        learner.score_batch(a_batch())
    with pytest.raises(OutOfMemory, match=r"rl\.max_tokens_per_micro_batch"):
        learn(a_learner(algorithm("rloo")), a_batch())
    with pytest.raises(OutOfMemory, match=r"sft\.max_tokens_per_micro_batch"):
        an_sft_learner().update(a_batch())


def test_other_errors_pass_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("shapes cannot be multiplied")

    monkeypatch.setattr(passes_module, "token_logprobs", fail)
    with pytest.raises(RuntimeError, match="shapes"):
        learn(a_learner(algorithm("rloo")), a_batch())


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")
def test_recomputed_activations_with_adapters() -> None:
    """The embeddings carry no gradient then, so that a reentrant recomputation would lose it all."""
    pytest.importorskip("peft")
    row, batch = algorithm("grpo"), a_batch()
    gradients = []
    for recompute in (False, True):
        model = add_adapter(a_model(), LoraConfig(rank=2), seed=0)
        learner = a_learner(row, model, activation_checkpointing=recompute)
        gradients += collect_gradients(learner, batch)
    assert gradients[0] and all(value.isfinite().all() for value in gradients[0].values())
    assert_same(gradients[0], gradients[1], rtol=1e-6, atol=1e-8)


def test_generation_with_a_cache_is_as_before() -> None:
    plain, learner = a_model(), a_learner(algorithm("rloo"), activation_checkpointing=True)
    collect_gradients(learner, a_batch())
    prompt = torch.tensor([[1, 2, 3]])
    settings: dict[str, Any] = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    want = plain.generate(prompt, **settings)
    assert torch.equal(learner.policy.generate(prompt, **settings), want)  # type: ignore[operator]


def test_a_model_without_layers_to_recompute_is_refused() -> None:
    with pytest.raises(ModelError, match=r"model\.activation_checkpointing"):
        RecomputedActivations(nn.Linear(2, 2))
