"""On-policy preferences: from two judged completions a prompt to the gradient, equal to TRL's online DPO.

TRL's own training step pairs, scores and differentiates; only its tokens and rewards are given. Where we
differ on purpose: of two completions with equal rewards TRL learns that the first is better, and we nothing.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from learn_batches import make_group
from learn_trl import Gradients, assert_equal, padded
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from assay.config import OptimizerConfig, PreferenceConfig
from assay.config.preference import Preference
from assay.learn.algorithms import preference
from assay.learn.optimizer import Optimizer, StepReport
from assay.learn.passes import Passes
from assay.learn.preference_update import PreferenceBatch, PreferenceLearner, sequence_logprobs
from assay.model.packing import Batch, pack
from assay.testing import byte_tokenizer, tiny_model
from assay.training.preference_data import examples_of_group
from assay.types import Group, Verdict

pytestmark = [
    pytest.mark.peer,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("one_thread"),
]

REWARDS = ((1.0, 0.0), (0.25, 0.5), (0.0, 0.75))
LENGTHS = ((5, 3), (2, 7), (6, 6))
Judged = list[tuple[Group, tuple[Verdict, ...]]]


def judged_groups(rewards: tuple[tuple[float, float], ...] = REWARDS) -> Judged:
    rng = np.random.default_rng(0)
    return [
        make_group(number, pair, LENGTHS[number], rng, vocab_size=256)
        for number, pair in enumerate(rewards)
    ]


def ours(judged: Judged, row: Preference) -> tuple[float, Gradients]:
    examples = [
        example
        for group, verdicts in judged
        for example in examples_of_group(
            group, verdicts, row, PreferenceConfig(), np.random.default_rng(0)
        )
    ]
    model = tiny_model()
    optimizer = Optimizer(model, OptimizerConfig(), total_steps=1)
    learner = PreferenceLearner(Passes(model, optimizer, section="preference"), row)
    batch = pack([example.group for example in examples], [one.verdicts for one in examples])
    pairs = PreferenceBatch(
        batch, sequence_logprobs(batch, learner.passes.logprobs(batch, tiny_model(seed=1)))
    )
    gradients: Gradients = {}

    def keep() -> StepReport:
        gradients.update(optimizer.gradients)
        return StepReport(0.0, 0.0, skipped=True)

    optimizer.step = keep  # type: ignore[method-assign]
    return learner.update(pairs).metrics["loss/total"], gradients


def trls(judged: Judged, folder: Path, **settings: Any) -> tuple[float, Gradients]:
    online = pytest.importorskip("trl.experimental.online_dpo")
    datasets = pytest.importorskip("datasets")
    batch = pack([group for group, _ in judged], [verdicts for _, verdicts in judged])
    order_R = torch.cat([torch.arange(0, batch.num_rows, 2), torch.arange(1, batch.num_rows, 2)])
    given = (*padded_rows(batch, order_R), None)
    model = tiny_model()
    trainer = online.OnlineDPOTrainer(
        model=model,
        ref_model=tiny_model(seed=1),
        reward_funcs=lambda completions, **_: batch.rewards_R[order_R].tolist(),
        args=online.OnlineDPOConfig(
            output_dir=str(folder),
            per_device_train_batch_size=batch.num_groups,
            missing_eos_penalty=None,
            gradient_checkpointing=False,
            use_cpu=True,
            bf16=False,
            report_to="none",
            **settings,
        ),
        train_dataset=datasets.Dataset.from_list([{"prompt": "x"}] * 4),
        processing_class=byte_tokenizer(),
    )
    trainer._generate = lambda *_: given
    loss = trainer.training_step(model, {"prompt": ["x"] * batch.num_groups})
    named = model.named_parameters()
    return loss.item(), {name: p.grad for name, p in named if p.grad is not None}


def padded_rows(batch: Batch, order_R: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Prompts on the left, completions on the right, and their masks, in TRL's order of rows."""
    prompts = [batch.prompts[group] for group in batch.group_R[order_R].tolist()]
    ones = [torch.ones_like(prompt) for prompt in prompts]
    return (
        pad_sequence(prompts, batch_first=True, padding_side="left"),
        pad_sequence(ones, batch_first=True, padding_side="left"),
        padded(batch, batch.tokens_T)[order_R],
        padded(batch, torch.ones_like(batch.tokens_T))[order_R],
    )


@pytest.mark.parametrize("beta", [0.1, 0.5])
@pytest.mark.parametrize(("name", "loss_type"), [("dpo", "sigmoid"), ("ipo", "ipo")])
def test_pairs_of_sampled_groups(name: str, loss_type: str, beta: float, tmp_path: Path) -> None:
    """Both sum log-ratios over the tokens, in IPO too."""
    theirs = trls(judged_groups(), tmp_path, loss_type=loss_type, beta=beta)
    assert_equal(ours(judged_groups(), preference(name, beta=beta)), theirs)


def test_equal_rewards_teach_nothing_here(tmp_path: Path) -> None:
    """TRL's mean is over three pairs, one of which says that the first completion is better."""
    row = preference("dpo")
    tied = judged_groups((*REWARDS[:2], (0.5, 0.5)))
    as_if = judged_groups((*REWARDS[:2], (0.75, 0.5)))
    theirs = trls(tied, tmp_path, loss_type="sigmoid", beta=row.beta)
    assert_equal(ours(as_if, row), theirs)
    assert ours(tied, row)[0] == pytest.approx(ours(tied[:2], row)[0])
