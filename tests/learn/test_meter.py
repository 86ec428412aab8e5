from dataclasses import replace

import pytest
import torch
from learn_batches import advantages_of, loss_mask, make_batch
from learn_learners import (
    VOCAB,
    a_batch,
    a_learner,
    a_model,
    learn,
    plain_logprobs,
)

from assay.learn.algorithms import algorithm

pytestmark = pytest.mark.usefixtures("one_thread")


def test_kl_is_split_into_think_and_answer() -> None:
    batch = a_batch()
    learner = a_learner(algorithm("rloo"), keep_reference=True)
    with torch.no_grad():
        for parameter in learner.policy.parameters():
            parameter.add_(0.05)
    metrics = learn(learner, batch).metrics
    now_T, _ = plain_logprobs(learner.policy, batch)
    num_think = int((batch.think_T & batch.sampled_T).sum())
    num_answer = int((~batch.think_T & batch.sampled_T).sum())
    assert num_think and num_answer and len(now_T) > num_think + num_answer
    together = metrics["kl/think"] * num_think + metrics["kl/answer"] * num_answer
    assert together / (num_think + num_answer) == pytest.approx(metrics["kl/mean"])


def test_mismatch_is_between_generator_and_learner() -> None:
    batch = a_batch()
    learner = a_learner(algorithm("rloo"))
    with torch.no_grad():
        logprobs_T, entropy_T = plain_logprobs(learner.policy, batch)
    off_T = torch.where(torch.arange(batch.num_tokens) == 1, 0.5, 0.0)
    batch = replace(batch, behavior_logprobs_T=logprobs_T + off_T)
    metrics = learn(learner, batch).metrics
    num_sampled = int(batch.sampled_T.sum())
    assert metrics["mismatch/mean"] == pytest.approx(0.5 / num_sampled, abs=1e-5)
    assert metrics["mismatch/p99"] == pytest.approx(0.5, abs=1e-5)
    entropy = entropy_T[batch.sampled_T].mean().item()
    assert metrics["entropy/mean"] == pytest.approx(entropy, rel=1e-4)


def test_metrics_by_hand() -> None:
    row, batch = algorithm("dr_grpo", max_tokens=9), a_batch()
    metrics = learn(a_learner(row), batch).metrics
    mask_T = loss_mask(batch, row)
    advantages_T = advantages_of(batch, row)
    assert metrics["tokens/trained"] == mask_T.sum()
    assert metrics["advantage/mean"] == pytest.approx(advantages_T[mask_T].mean().item())
    std = advantages_T[mask_T].std(correction=0).item()
    assert metrics["advantage/std"] == pytest.approx(std)
    share = ((advantages_T != 0) & mask_T).sum() / batch.sampled_T.sum()
    assert metrics["loss/token_share"] == pytest.approx(share.item())
    assert metrics["optimizer/learning_rate"] == 1e-3 and metrics["optimizer/grad_norm"] > 0


def test_what_the_algorithm_adds_to_rewards_stands_in_the_metrics() -> None:
    lengths = [[8, 2, 6, 8]]
    batch = make_batch([[0.0, 1.0, None, 0.0]], lengths, vocab_size=VOCAB)
    row = algorithm("dapo", max_tokens=8, overlong_buffer=4, mask_truncated=False)
    metrics = learn(a_learner(row), batch).metrics
    assert metrics["reward/overlong"] == pytest.approx((-1 + 0 - 1) / 3), "not judged: left out"
    assert "reward/kl" not in metrics
    learner = a_learner(algorithm("rloo", kl_weight=0.5))
    with torch.no_grad():
        for parameter in learner.policy.parameters():
            parameter.mul_(1.5)
    now_T, _ = plain_logprobs(learner.policy, batch)
    start_T, _ = plain_logprobs(a_model(), batch)
    metrics = learn(learner, batch).metrics
    kl_T = torch.where(batch.judged_R[batch.row_T], now_T - start_T, 0.0)
    assert metrics["reward/kl"] == pytest.approx(-0.5 * kl_T.sum().item() / 3, rel=1e-4)
    assert "reward/overlong" not in metrics
    unjudged = make_batch([[None, None]], vocab_size=VOCAB)
    assert "reward/kl" not in learn(learner, unjudged).metrics
