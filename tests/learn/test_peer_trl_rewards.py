"""Losses and gradients of reward models equal to TRL's RewardTrainer on the same tokens.

TRL 1.16 has no trainer of outcome or process models: those losses have slow twins only.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from assay.config import ModelConfig, OptimizerConfig
from assay.learn.optimizer import Optimizer, StepReport
from assay.learn.passes import Passes
from assay.learn.reward_losses import RewardObjective
from assay.learn.reward_update import RewardLearner
from assay.model.score_batch import ScoredGroup, ScoredText
from assay.model.score_head import load_scorer
from assay.testing import byte_tokenizer, save_tiny_model

pytestmark = [
    pytest.mark.peer,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("one_thread"),
]

PAIRS = [
    ("What is 2+2?", " It is 4.", " I think it is 5, or 6.", 0.5),
    ("Name a color.", " Blue", " Seven", 0.0),
    ("Say hello.", " Hello to you!", " No.", 1.25),
]


def tokens_of(text: str) -> list[int]:
    return [*text.encode(), 257]  # TRL ends each text with an end token


@dataclass
class World:
    """Our learner and TRL's trainer on copies of one model."""

    folder: Path

    def model(self) -> Any:
        return load_scorer(ModelConfig(path=str(self.folder)), "cpu", 0, "text", 1).model


@pytest.fixture(scope="module")
def peer_world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(save_tiny_model(tmp_path_factory.mktemp("peer")))


def ours(world: World, centering: float, margins: bool) -> tuple[float, dict[str, Tensor]]:
    groups: list[ScoredGroup] = []
    for prompt, chosen, rejected, margin in PAIRS:
        texts: list[ScoredText] = []
        for completion in (chosen, rejected):
            tokens = np.array(tokens_of(prompt + completion), np.int32)
            last = np.array([len(tokens) - 1], np.int32)
            texts.append(ScoredText(tokens, last, np.ones(1, np.float32)))
        groups.append(ScoredGroup(tuple(texts), margin if margins else 0.0))
    model = world.model()
    optimizer = Optimizer(model, OptimizerConfig(), 1)
    gradients: dict[str, Tensor] = {}

    def keep() -> StepReport:
        gradients.update(optimizer.gradients)
        return StepReport(0.0, 0.0, skipped=True)

    optimizer.step = keep  # type: ignore[method-assign]
    passes = Passes(model, optimizer, section="reward_model", max_tokens_per_micro_batch=64)
    learner = RewardLearner(passes, RewardObjective("preference", centering=centering))
    return learner.update(groups).metrics["loss/total"], gradients


def theirs(world: World, centering: float | None, margins: bool) -> tuple[float, dict[str, Tensor]]:
    from datasets import Dataset
    from trl.trainer.reward_config import RewardConfig
    from trl.trainer.reward_trainer import RewardTrainer

    rows = [
        {
            "chosen_ids": tokens_of(prompt + chosen),
            "rejected_ids": tokens_of(prompt + rejected),
            **({"margin": margin} if margins else {}),
        }
        for prompt, chosen, rejected, margin in PAIRS
    ]
    model = world.model()
    settings = RewardConfig(
        output_dir=str(world.folder / "out"),
        center_rewards_coefficient=centering,
        per_device_train_batch_size=len(PAIRS),
        use_cpu=True,
        bf16=False,
        report_to=[],
        gradient_checkpointing=False,
        remove_unused_columns=False,
    )
    trainer = RewardTrainer(
        model=model,
        args=settings,
        processing_class=byte_tokenizer(),
        train_dataset=Dataset.from_list(rows),
    )
    inputs = trainer.data_collator(rows)
    model = trainer.model
    model.zero_grad()
    loss = trainer.compute_loss(model, inputs)
    loss.backward()
    return loss.item(), {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("margins", [False, True])
@pytest.mark.parametrize("centering", [None, 0.01, 1.0])
def test_loss_and_gradients_of_pairs_equal_trls(
    peer_world: World, centering: float | None, margins: bool
) -> None:
    our_loss, our_gradients = ours(peer_world, centering or 0.0, margins)
    their_loss, their_gradients = theirs(peer_world, centering, margins)
    assert our_loss == pytest.approx(their_loss, abs=1e-5)
    assert our_gradients.keys() == their_gradients.keys()
    for name, gradient in our_gradients.items():
        torch.testing.assert_close(gradient, their_gradients[name], rtol=1e-4, atol=1e-5)
