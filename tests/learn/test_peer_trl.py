"""Losses and gradients equal to TRL's on the same tokens, advantages, old and reference log-probabilities.

Where we differ on purpose: TRL by default multiplies the KL by the ratio (DeepSeek-V3.2), which
DeepSeekMath eq. 3 does not (off here). With more than one optimizer step a batch TRL's RLOO clips the ratio of
whole completions and ours, as all rows here, that of tokens; on fresh batches both are the same.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from learn_batches import make_batch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from assay.config import OptimizerConfig
from assay.learn.advantages import compute_advantages
from assay.learn.algorithms import algorithm
from assay.learn.optimizer import StepReport
from assay.learn.update import Learner
from assay.model.packing import Batch
from assay.testing import byte_tokenizer, save_tiny_model, tiny_model

pytestmark = [
    pytest.mark.peer,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("one_thread"),
]

GROUP_SIZE, MAX_TOKENS = 4, 9


@pytest.fixture
def batch() -> Batch:
    made = make_batch([[1.0, 0.0, 0.5, 0.0], [0.0, 1.0, 1.0, 0.25]], vocab_size=256)
    noise = torch.Generator().manual_seed(0)
    model = tiny_model()
    old_T = -torch.rand(made.num_tokens, generator=noise)
    scorer = Learner(model, algorithm("grpo"), OptimizerConfig(), total_steps=1, num_minibatches=2)
    scored = scorer.score(made)
    assert scored.old_logprobs_T is not None
    near_T = scored.old_logprobs_T + 0.4 * (old_T + 0.5)
    ref_T = scored.old_logprobs_T + 0.4 * torch.randn(made.num_tokens, generator=noise)
    return replace(scored, old_logprobs_T=near_T, ref_logprobs_T=ref_T)


def ours(batch: Batch, name: str, **changes: Any) -> tuple[float, dict[str, Tensor]]:
    row = algorithm(name, max_tokens=MAX_TOKENS, overlong_buffer=0, **changes)
    learner = Learner(tiny_model(), row, OptimizerConfig(), total_steps=1)
    gradients: dict[str, Tensor] = {}

    def keep() -> StepReport:
        gradients.update(learner.optimizer.gradients)
        return StepReport(0.0, 0.0, skipped=True)

    learner.optimizer.step = keep  # type: ignore[method-assign]
    update = learner.update(batch, compute_advantages(batch, row))
    return update.metrics["loss/total"], gradients


def padded(batch: Batch, values_T: Tensor, padding: float = 0.0) -> Tensor:
    rows = [values_T[batch.row_T == row] for row in range(batch.num_rows)]
    return pad_sequence(rows, batch_first=True, padding_value=padding)


def trl_loss(
    trainer: Any, batch: Batch, advantages_T: Tensor, sequence_level: bool
) -> tuple[float, dict[str, Tensor]]:
    prompts = [batch.prompts[group] for group in batch.group_R.tolist()]
    prompt_ids = pad_sequence(prompts, batch_first=True, padding_side="left")
    ones = [torch.ones_like(prompt) for prompt in prompts]
    assert batch.old_logprobs_T is not None and batch.ref_logprobs_T is not None
    first_R = torch.cumsum(batch.length_R, 0) - batch.length_R
    inputs = {
        "prompt_ids": prompt_ids,
        "prompt_mask": pad_sequence(ones, batch_first=True, padding_side="left"),
        "completion_ids": padded(batch, batch.tokens_T),
        "completion_mask": padded(batch, torch.ones_like(batch.tokens_T)),
        "advantages": advantages_T[first_R],
        "old_per_token_logps": padded(batch, batch.old_logprobs_T),
        "ref_per_token_logps": padded(batch, batch.ref_logprobs_T),
        "num_items_in_batch": torch.tensor(batch.num_tokens),
    }
    if sequence_level:
        inputs["old_logps"] = padded(batch, batch.old_logprobs_T).sum(1)
    model = trainer.model.eval()
    loss = trainer._compute_loss(model, inputs)
    loss.backward()
    return loss.item(), {n: p.grad for n, p in model.named_parameters()}


def make_trainer(kind: str, folder: Path, **settings: Any) -> Any:
    trl = pytest.importorskip("trl")
    datasets = pytest.importorskip("datasets")
    config = getattr(trl, f"{kind}Config")(
        output_dir=str(folder),
        per_device_train_batch_size=GROUP_SIZE,
        num_generations=GROUP_SIZE,
        max_completion_length=MAX_TOKENS,
        gradient_checkpointing=False,
        use_cpu=True,
        bf16=False,
        report_to="none",
        **settings,
    )
    return getattr(trl, f"{kind}Trainer")(
        model=str(save_tiny_model(folder / "model")),  # a path: TRL loads its reference from there
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=config,
        train_dataset=datasets.Dataset.from_list([{"prompt": "x"}] * 4),
        processing_class=byte_tokenizer(),
    )


def assert_equal(
    one: tuple[float, dict[str, Tensor]], other: tuple[float, dict[str, Tensor]]
) -> None:
    assert one[0] == pytest.approx(other[0], rel=1e-5, abs=1e-5)
    assert one[1].keys() == other[1].keys() and one[1]
    for name, gradient in one[1].items():
        torch.testing.assert_close(gradient, other[1][name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "changes", "settings"),
    [
        ("grpo", {}, {"loss_type": "grpo", "beta": 0.04}),
        ("grpo", {"kl_weight": 0.0}, {"loss_type": "grpo", "beta": 0.0}),
        ("dr_grpo", {}, {"loss_type": "dr_grpo", "beta": 0.0}),
        ("dr_grpo", {"kl_weight": 0.1}, {"loss_type": "dr_grpo", "beta": 0.1}),
        ("dapo", {}, {"loss_type": "dapo", "beta": 0.0, "epsilon_high": 0.28}),
    ],
)
def test_loss_and_gradient_equal_trls(
    name: str, changes: dict[str, Any], settings: dict[str, Any], batch: Batch, tmp_path: Path
) -> None:
    trainer = make_trainer("GRPO", tmp_path, use_bias_correction_kl=False, **settings)
    row = algorithm(name, max_tokens=MAX_TOKENS, overlong_buffer=0)
    theirs = trl_loss(trainer, batch, compute_advantages(batch, row), sequence_level=False)
    assert_equal(ours(batch, name, **changes), theirs)


def test_rloo_on_a_fresh_batch_equals_trls(batch: Batch, tmp_path: Path) -> None:
    row = algorithm("rloo")
    fresh = replace(batch, old_logprobs_T=None)
    learner = Learner(tiny_model(), row, OptimizerConfig(), total_steps=1, num_minibatches=2)
    fresh = learner.score(fresh)
    trainer = make_trainer("RLOO", tmp_path, beta=0.0)
    theirs = trl_loss(trainer, fresh, compute_advantages(fresh, row), sequence_level=True)
    mine = ours(fresh, "rloo")
    assert_equal((0.0, mine[1]), (0.0, theirs[1]))  # the value: a sum over tokens against one a row
