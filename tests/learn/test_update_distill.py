"""The supervised learner with a teacher: a step by hand, and the policy gradient that does the same."""

from __future__ import annotations

import pickle
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
    collect_gradients,
    weights,
)
from tiny_policy import World, expected_gradient, gradient, random_tables
from tiny_policy import assert_same as assert_same_gradient
from torch import Tensor, nn

from assay.config import OptimizerConfig
from assay.learn.algorithms import algorithm
from assay.learn.optimizer import Optimizer
from assay.learn.passes import Passes
from assay.learn.sft_update import SFTLearner
from assay.learn.teacher import TeacherElsewhere, TeacherModel, TopK
from assay.model.divergence import Divergence
from assay.model.head import Gains
from assay.model.packing import Batch
from assay.testing import tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")

TRACES = {"lengths": [[5], [3], [8], [4]], "unsampled": [(0, 0, 1)]}


def a_teacher(divergence: Divergence, family: str = "llama") -> TeacherModel:
    sizes = {"vocab_size": VOCAB, "hidden_size": 24, "eos_token_id": None}
    model = tiny_model(seed=5, num_layers=1, family=family, **sizes)
    return TeacherModel(model, divergence, torch.device("cpu"))


def a_student(cross_entropy: float, **settings: Any) -> SFTLearner:
    model = a_model()
    optimizer = Optimizer(model, OptimizerConfig(learning_rate=1e-3), total_steps=100)
    settings = {"layout": "plain", **settings}
    return SFTLearner(Passes(model, optimizer, section="distill", **settings), cross_entropy)


def all_logprobs(model: Any, batch: Batch, temperature: float) -> Tensor:
    """Of every token of the vocabulary, [T, V], one completion at a time."""
    found: list[Tensor] = []
    for row in range(batch.num_rows):
        completion = batch.tokens_T[batch.row_T == row]
        prompt = batch.prompts[int(batch.group_R[row])]
        logits = model(input_ids=torch.cat([prompt, completion])[None]).logits[0]
        found.append((logits[len(prompt) - 1 : -1] / temperature).log_softmax(-1))
    return torch.cat(found)


@pytest.mark.parametrize("max_tokens", [8, 8192])
@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("cross_entropy", [0.0, 0.3])
def test_a_step_by_hand(max_tokens: int, family: str, cross_entropy: float) -> None:
    batch = make_batch([[1.0]] * 4, vocab_size=VOCAB, **TRACES)
    learner = a_student(cross_entropy, max_tokens_per_micro_batch=max_tokens)
    teacher, model = a_teacher(Divergence(temperature=2.0), family), a_model()
    chosen_T = batch.sampled_T
    ours_TV = all_logprobs(model, batch, 2.0)[chosen_T]
    theirs_TV = all_logprobs(teacher.model, batch, 2.0)[chosen_T].detach()
    divergence = (theirs_TV.exp() * (theirs_TV - ours_TV)).sum(-1).mean()
    plain_T = all_logprobs(model, batch, 1.0).gather(-1, batch.tokens_T[:, None])[chosen_T]
    nll = -plain_T.mean()
    loss = cross_entropy * nll + (1 - cross_entropy) * 4.0 * divergence
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    torch.optim.AdamW(
        model.parameters(), lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0
    ).step()
    metrics = learner.update(batch, teacher).metrics
    assert metrics["loss/total"] == pytest.approx(loss.item(), rel=1e-5)
    assert metrics["loss/divergence"] == pytest.approx(divergence.item(), rel=1e-5)
    assert metrics["loss/nll"] == pytest.approx(nll.item(), rel=1e-5)
    assert metrics["optimizer/grad_norm"] == pytest.approx(norm.item(), rel=1e-4)
    assert metrics["tokens/trained"] == 19
    assert_same(weights(learner.policy), weights(model), rtol=1e-3, atol=1e-5)


def test_the_gradient_that_comes_is_the_one_that_was_expected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or the head would be computed a second time."""
    equal, told = Gains.equal, list[bool]()

    def noted(self: Gains, *arrived: Tensor | None) -> bool:
        told.append(equal(self, *arrived))
        return told[-1]

    monkeypatch.setattr(Gains, "equal", noted)
    batch = make_batch([[1.0]] * 4, vocab_size=VOCAB, **TRACES)
    for share in (0.0, 0.3, 1.0):
        a_student(share).update(batch, a_teacher(Divergence("jsd", temperature=1.7)))
    a_student(1.0).update(batch)
    assert told == [True] * 4


def test_distillation_is_equal_with_shared_and_separate_prompts() -> None:
    batch, teacher = a_batch(), a_teacher(Divergence("reverse_kl"))
    found = [a_student(0.0, layout=layout) for layout in ("plain", "tree")]
    metrics = [learner.update(batch, teacher).metrics for learner in found]
    assert metrics[0]["loss/divergence"] == pytest.approx(metrics[1]["loss/divergence"], rel=1e-5)
    assert_same(weights(found[0].policy), weights(found[1].policy), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("kind", ["forward_kl", "reverse_kl", "jsd"])
def test_the_student_becomes_the_teacher(kind: Any) -> None:
    batch, teacher = a_batch(), a_teacher(Divergence(kind))
    learner = a_student(0.0)
    losses = [learner.update(batch, teacher).metrics["loss/divergence"] for _ in range(30)]
    assert losses[-1] < losses[0] / 2
    assert not any(one.requires_grad for one in teacher.model.parameters())


# The row on_policy_distillation ------------------------------------------------------------------


def state_kl_gradient(tables: Tensor, teacher: Tensor) -> Tensor:
    """The gradient of KL(student || teacher) at each state, by how often it is visited; no state counts
    for where it leads to."""
    probs = tables.softmax(-1)
    kl = (probs * (tables.log_softmax(-1) - teacher.log_softmax(-1))).sum(-1)
    visits = torch.cat([torch.ones(1), probs.detach()[0, 1:]])
    return gradient((visits * kl).sum(), tables)


EACH_TOKEN = {"aggregation": "constant_length", "length_divisor": 1.0}


def test_its_expected_gradient_is_that_of_the_reverse_kl_at_the_visited_states() -> None:
    tables, teacher = random_tables(), random_tables(1).detach()
    row = algorithm("on_policy_distillation", **EACH_TOKEN)
    same = World(rewards=(0.0,) * 7)
    got = expected_gradient(tables, row, 2, same, reference=teacher)
    assert_same_gradient(got, -state_kl_gradient(tables, teacher))


def test_it_is_the_reverse_kl_as_reward_to_go_without_a_future() -> None:
    """Gamma is 0: each token is rewarded with its own log-ratio alone."""
    tables, teacher = random_tables(), random_tables(1).detach()
    settings = {"credit": "to_go", "gamma": 0.0, "kl_place": "reward", "kl_estimator": "k1"}
    to_go = algorithm("reinforce", kl_weight=1.0, **settings)
    same = World(rewards=(0.0,) * 7)
    got = expected_gradient(tables, to_go, 1, same, reference=teacher)
    assert_same_gradient(got, -state_kl_gradient(tables, teacher))


def test_the_verdicts_count_beside_the_teacher() -> None:
    """The gradient is the sum of both."""
    tables, teacher = random_tables(), random_tables(1).detach()
    row = algorithm("on_policy_distillation", **EACH_TOKEN)
    alone = algorithm("dr_grpo", **EACH_TOKEN)
    want = expected_gradient(tables, alone, 2) - state_kl_gradient(tables, teacher)
    assert_same_gradient(expected_gradient(tables, row, 2, reference=teacher), want)


def test_a_learner_asks_its_teacher_in_the_reference_s_place() -> None:
    """The gradient is that of d^2 / 2 with the teacher's log-probabilities, where advantages are 0."""
    batch = make_batch([[0.0, 0.0], [0.0, 0.0]], vocab_size=VOCAB)
    teacher, model = a_teacher(Divergence()), a_model()
    row = algorithm("on_policy_distillation")
    (found,) = collect_gradients(a_learner(row, teacher=teacher), batch)
    ours_T, theirs_T = (
        all_logprobs(one, batch, 1.0).gather(-1, batch.tokens_T[:, None])[:, 0]
        for one in (model, teacher.model)
    )
    loss = ((ours_T - theirs_T.detach()).square() / 2)[batch.sampled_T].mean()
    loss.backward()
    want = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    assert_same(found, want, rtol=1e-3, atol=1e-6)


class TopTwo(TeacherElsewhere):
    """Answers for each row by its tokens alone."""

    def top_k(self, batch: Batch, passes: Passes, count: int, size: int) -> list[TopK]:
        rows = batch.tokens_T.split(batch.length_R.tolist())
        return [(one[:, None], -one[:, None].float() - 1, -one.float() - 2) for one in rows]

    def logprobs(self, batch: Batch, passes: Passes) -> Tensor:
        raise NotImplementedError


def test_a_teacher_that_is_asked_for_the_whole_batch_says_the_same_of_each_micro_batch() -> None:
    """As rank 0 asks it, and sends what it said."""
    batch = make_batch([[1.0]] * 4, vocab_size=VOCAB, **TRACES)
    passes, teacher = a_student(0.0).passes, TopTwo(1, VOCAB, Divergence())
    sent = pickle.loads(pickle.dumps(teacher.cached(batch, passes)))
    for micro_batch in batch.split(8, "plain"):
        mine, own = (one.target(micro_batch, passes) for one in (sent, teacher))
        for name in ("tokens_TK", "logprobs_TK", "rest_T"):
            assert torch.equal(getattr(mine, name), getattr(own, name))
