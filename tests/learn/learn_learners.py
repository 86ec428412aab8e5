"""Learners of a tiny model, and their slow twins."""

import inspect
from typing import Any

import torch
from learn_batches import make_batch
from torch import Tensor, nn

from assay.config import OptimizerConfig
from assay.learn.advantages import compute_advantages
from assay.learn.algorithms import Algorithm
from assay.learn.base import Update
from assay.learn.optimizer import Optimizer, StepReport
from assay.learn.passes import Passes
from assay.learn.ranks import ALONE
from assay.learn.sft_update import SFTLearner
from assay.learn.update import PolicyLearner
from assay.model.packing import Batch
from assay.testing import tiny_model

VOCAB = 16
RATE = OptimizerConfig(learning_rate=1e-3)


def a_model(seed: int = 0) -> Any:
    return tiny_model(vocab_size=VOCAB, seed=seed, hidden_size=16, eos_token_id=None)


def a_batch(seed: int = 0) -> Batch:
    return make_batch(
        [[1.0, 0.0, 0.0, 1.0], [0.5, None, 0.0], [1.0, 1.0], [1.0, None], [0.0, 1.0, 0.25]],
        seed=seed,
        truncated=[(0, 1)],
        unsampled=[(0, 0, 0)],
        num_think=2,
        vocab_size=VOCAB,
    )


def policy_learner(
    model: Any, row: Algorithm, optimizer: OptimizerConfig, *, total_steps: int, **settings: Any
) -> PolicyLearner:
    """A learner with passes of its own. settings: of both."""
    names = {*inspect.signature(Passes).parameters} & settings.keys()
    ranks = settings.get("ranks", ALONE)
    steps = Optimizer(model, optimizer, total_steps, ranks=ranks)
    passes = Passes(model, steps, section="rl", **{name: settings.pop(name) for name in names})
    return PolicyLearner(passes, row, total_steps=total_steps, **settings)


def a_learner(row: Algorithm, model: Any = None, **settings: Any) -> PolicyLearner:
    settings = {"total_steps": 100, "layout": "plain", **settings}
    return policy_learner(model or a_model(), row, settings.pop("optimizer", RATE), **settings)


def an_sft_learner(model: Any = None, **settings: Any) -> SFTLearner:
    model = model or a_model()
    ranks = settings.get("ranks", ALONE)
    optimizer = Optimizer(model, settings.pop("optimizer", RATE), total_steps=100, ranks=ranks)
    return SFTLearner(Passes(model, optimizer, section="sft", layout="plain", **settings))


def learn(learner: PolicyLearner, batch: Batch) -> Update:
    batch = learner.score_batch(batch)
    return learner.update(batch, compute_advantages(batch, learner.algorithm))


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def collect_gradients(learner: PolicyLearner, batch: Batch) -> list[dict[str, Tensor]]:
    """The gradient of each optimizer step, none of which is taken."""
    collected: list[dict[str, Tensor]] = []

    def step() -> StepReport:
        collected.append({n: g.clone() for n, g in learner.optimizer.gradients.items()})
        learner.optimizer.zero_grad()
        return StepReport(0.0, 0.0, skipped=True)

    learner.optimizer.step = step  # type: ignore[method-assign]
    learn(learner, batch)
    return collected


def plain_logprobs(model: Any, batch: Batch, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy of each token, one completion at a time."""
    logprobs: list[Tensor] = []
    entropies: list[Tensor] = []
    for row in range(batch.num_rows):
        completion = batch.tokens_T[batch.row_T == row]
        prompt = batch.prompts[int(batch.group_R[row])]
        logits = model(input_ids=torch.cat([prompt, completion])[None]).logits[0] / temperature
        all_logprobs = logits[len(prompt) - 1 : -1].log_softmax(-1)
        logprobs.append(all_logprobs.gather(1, completion[:, None])[:, 0])
        entropies.append(-(all_logprobs.exp() * all_logprobs).sum(-1))
    return torch.cat(logprobs), torch.cat(entropies)


def assert_same(one: dict[str, Tensor], other: dict[str, Tensor], **tolerance: float) -> None:
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], other[name], **tolerance)
