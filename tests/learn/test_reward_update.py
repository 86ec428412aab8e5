"""One step of a reward model against a loop over texts through the model's own forward pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from assay.config import OptimizerConfig
from assay.learn.optimizer import Optimizer, StepReport
from assay.learn.passes import Passes
from assay.learn.reward_losses import RewardObjective
from assay.learn.reward_update import RewardLearner
from assay.model.score_batch import ScoredGroup, ScoredText
from assay.model.score_head import with_score_head
from assay.testing import tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")


def text(rng: np.random.Generator, start: list[int], places: int, soft: bool) -> ScoredText:
    tokens = np.array([*start, *rng.integers(0, 250, 8)], np.int32)
    chosen = np.sort(rng.choice(np.arange(len(start), len(tokens)), places, replace=False))
    labels = rng.random(places) if soft else rng.integers(0, 2, places)
    return ScoredText(tokens, chosen.astype(np.int32), labels.astype(np.float32))


def groups_of(objective: RewardObjective, soft: bool) -> list[ScoredGroup]:
    rng = np.random.default_rng(3)
    found: list[ScoredGroup] = []
    for number in range(5):
        start = rng.integers(0, 250, 4).tolist()
        count = 2 if objective.kind == "preference" else 1
        places = 1 if objective.kind == "preference" else 1 + number
        texts = tuple(text(rng, start, places, soft) for _ in range(count))
        found.append(ScoredGroup(texts, margin=0.3 * number))
    return found


def odds(model: Any, one: ScoredText) -> list[Tensor]:
    """The score of each place, the text cut behind it."""
    scores: list[Tensor] = []
    for place in one.places.tolist():
        row = torch.from_numpy(one.tokens[: place + 1].astype(np.int64))[None]
        logits = model(input_ids=row, use_cache=False).logits
        logits = logits[0, -1] if logits.dim() == 3 else logits[0]
        scores.append(logits[1] - logits[0] if len(logits) == 2 else logits[0])
    return scores


def slow_loss(model: Any, groups: list[ScoredGroup], objective: RewardObjective) -> Tensor:
    losses: list[Tensor] = []
    for group in groups:
        if objective.kind == "preference":
            (chosen,), (rejected,) = (odds(model, one) for one in group.texts)
            loss = torch.log1p(torch.exp(-(chosen - rejected - group.margin)))
            losses.append(loss + objective.centering * (chosen + rejected) ** 2)
            continue
        (one,) = group.texts
        own: list[Tensor] = []
        wrong = False
        for score, label in zip(odds(model, one), one.labels.tolist(), strict=True):
            p = torch.sigmoid(score)
            if not (wrong and objective.until_first_error):
                if objective.loss == "squared":
                    own.append((p - label) ** 2)
                else:
                    own.append(-(label * p.log() + (1 - label) * (1 - p).log()))
            wrong = wrong or label < 0.5
        losses += own if objective.kind == "process" else [torch.stack(own).mean()]
    return torch.stack(losses).mean()


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("most", [12, 4096])
@pytest.mark.parametrize(
    ("objective", "labels"),
    [
        (RewardObjective("preference", centering=0.1), 1),
        (RewardObjective("outcome"), 1),
        (RewardObjective("outcome", loss="squared"), 1),
        (RewardObjective("process"), 2),
        (RewardObjective("process", until_first_error=True), 2),
        (RewardObjective("process", loss="squared", until_first_error=True), 1),
    ],
)
def test_a_step_is_that_of_the_loop(
    objective: RewardObjective, labels: int, most: int, soft: bool
) -> None:
    groups = groups_of(objective, soft)
    scores = "token" if objective.kind == "process" else "text"
    model = with_score_head(tiny_model(), scores, labels, 0)
    model.config.pad_token_id = None
    expected = slow_loss(model, groups, objective)
    expected.backward()
    wanted = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    optimizer = Optimizer(model, OptimizerConfig(), 1)
    found: dict[str, Tensor] = {}

    def keep() -> StepReport:
        found.update(optimizer.gradients)
        return StepReport(0.0, 0.0, skipped=True)

    optimizer.step = keep  # type: ignore[method-assign]
    passes = Passes(model, optimizer, section="reward_model", max_tokens_per_micro_batch=most)
    update = RewardLearner(passes, objective).update(groups)
    assert update.metrics["loss/total"] == pytest.approx(expected.item(), rel=1e-5)
    assert found.keys() == wanted.keys()
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, wanted[name], rtol=1e-4, atol=1e-6)


def test_scores_come_in_the_order_of_texts() -> None:
    objective = RewardObjective("process")
    groups = groups_of(objective, soft=False)
    model = with_score_head(tiny_model(), "token", 2, 0)
    optimizer = Optimizer(model, OptimizerConfig(), 1)
    passes = Passes(model, optimizer, section="reward_model", max_tokens_per_micro_batch=12)
    found = RewardLearner(passes, objective).scores(groups)
    for group, scores in zip(groups, found, strict=True):
        expected = [score.item() for score in odds(model, group.texts[0])]
        assert scores.tolist() == pytest.approx(expected, abs=1e-5)
