"""Factors of the KL by part: the loss and the reward use them as an explicit sum over rows does."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from assay.learn.algorithms import algorithm
from assay.learn.losses import kl_estimate, policy_loss
from assay.learn.rewards import reward_parts
from assay.model.packing import Batch


@pytest.fixture
def batch() -> Batch:
    """Two groups of two rows, with references, of which the second group has no KL."""
    length_R = torch.tensor([3, 2, 4, 1])
    row_T = torch.repeat_interleave(torch.arange(4), length_R)
    generator = torch.Generator().manual_seed(0)
    old_T, ref_T = (-torch.rand(10, generator=generator) for _ in range(2))
    rewards_R = torch.tensor([1.0, 0.0, 0.0, 1.0])
    return Batch(
        prompts=(torch.tensor([1]), torch.tensor([2])),
        tokens_T=torch.zeros(10, dtype=torch.long),
        row_T=row_T,
        sampled_T=torch.ones(10, dtype=torch.bool),
        think_T=torch.zeros(10, dtype=torch.bool),
        behavior_logprobs_T=old_T,
        versions_T=torch.zeros(10, dtype=torch.long),
        group_R=torch.tensor([0, 0, 1, 1]),
        length_R=length_R,
        rewards_R=rewards_R,
        scores_R=rewards_R,
        judged_R=torch.ones(4, dtype=torch.bool),
        correct_R=rewards_R,
        truncated_R=torch.zeros(4, dtype=torch.bool),
        old_logprobs_T=old_T,
        ref_logprobs_T=ref_T,
        kl_factor_R=torch.tensor([2.0, 2.0, 0.0, 0.0]),
    )


def test_loss_has_the_kl_of_each_row_times_its_factor(batch: Batch) -> None:
    row = algorithm("grpo", kl_weight=0.1)
    assert batch.old_logprobs_T is not None and batch.ref_logprobs_T is not None
    weights_T, zeros_T = torch.full((10,), 0.1), torch.zeros(10)
    parts = policy_loss(batch.old_logprobs_T, batch.old_logprobs_T, zeros_T, weights_T, row, batch)
    kl_T = kl_estimate(batch.old_logprobs_T, batch.ref_logprobs_T, row.kl_estimator)
    expected = sum(0.1 * 2.0 * float(kl_T[n]) for n in range(5))
    assert parts.kl.item() == pytest.approx(expected)
    plain = replace(batch, kl_factor_R=None)
    whole = policy_loss(batch.old_logprobs_T, batch.old_logprobs_T, zeros_T, weights_T, row, plain)
    assert whole.kl.item() == pytest.approx(0.1 * float(kl_T.sum()))


def test_reward_has_the_kl_of_each_row_times_its_factor_also_in_a_selected_group(
    batch: Batch,
) -> None:
    row = algorithm("grpo", kl_weight=0.1, kl_place="reward")
    plain = reward_parts(replace(batch, kl_factor_R=None), row)["kl"]
    found = reward_parts(batch, row)["kl"]
    assert found.tolist() == pytest.approx([2 * plain[0].item(), 2 * plain[1].item(), 0.0, 0.0])
    second = reward_parts(batch.select_groups([1, 0]), row)["kl"]
    assert second.tolist() == pytest.approx([0.0, 0.0, *found[:2].tolist()])
