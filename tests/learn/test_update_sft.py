import pytest
import torch
from learn_batches import make_batch
from learn_learners import (
    VOCAB,
    a_model,
    an_sft_learner,
    assert_same,
    plain_logprobs,
    weights,
)
from torch import nn

from assay.config import OptimizerConfig

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("max_tokens", [8, 8192])
def test_sft_step_by_hand(max_tokens: int) -> None:
    traces = make_batch([[1.0]] * 4, [[5], [3], [8], [4]], vocab_size=VOCAB, unsampled=[(0, 0, 1)])
    learner = an_sft_learner(max_tokens_per_micro_batch=max_tokens)
    model = a_model()
    logprobs_T, entropy_T = plain_logprobs(model, traces)
    loss = -logprobs_T[traces.sampled_T].mean()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    torch.optim.AdamW(
        model.parameters(), lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0
    ).step()
    update = learner.update(traces)
    assert update.policy_version == 1 and update.batch is None
    assert update.metrics["loss/nll"] == pytest.approx(loss.item(), rel=1e-5)
    entropy = entropy_T[traces.sampled_T].mean().item()
    assert update.metrics["entropy/mean"] == pytest.approx(entropy, rel=1e-5)
    assert update.metrics["optimizer/grad_norm"] == pytest.approx(norm.item(), rel=1e-4)
    assert update.metrics["tokens/trained"] == 19
    assert_same(weights(learner.policy), weights(model), rtol=1e-3, atol=1e-5)


def test_sft_learns_its_traces() -> None:
    traces = make_batch([[1.0]] * 3, vocab_size=VOCAB)
    learner = an_sft_learner(optimizer=OptimizerConfig(learning_rate=0.01))
    losses = [learner.update(traces).metrics["loss/nll"] for _ in range(15)]
    assert losses[-1] < losses[0] / 2
