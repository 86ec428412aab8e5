"""Advantages: from the rewards of a batch to one number a token.

Which completions are learned from at all is decided here too (`loss_mask`): those that were judged,
in groups that have enough judged siblings, and, where the algorithm says so, that were not truncated.
"""

from __future__ import annotations

import torch
from torch import Tensor

from assay.learn.algorithms import Algorithm, Baseline, Scale
from assay.learn.losses import kl_estimate, row_sums
from assay.model.packing import Batch


def compute_advantages(batch: Batch, algorithm: Algorithm) -> Tensor:
    """Return the advantage of each token, [T] float32; 0 wherever no gradient is carried.

    A completion is one action: its advantage fills its row. A KL in the reward is that of the whole
    completion, R = reward - kl_weight sum_t KL_t (Ahmadian et al. 2024, section 2), and enters the
    baseline with it; it needs a batch that `Learner.score` has filled.
    """
    rewards_R = shape_rewards(batch, algorithm)
    advantages_R = group_advantages(
        rewards_R,
        judged_rows(batch),
        batch.group_R,
        batch.num_groups,
        baseline=algorithm.baseline,
        scale=algorithm.scale,
        std_ddof=algorithm.std_ddof,
        std_epsilon=algorithm.std_epsilon,
    )
    return torch.where(loss_mask(batch, algorithm), advantages_R[batch.row_T], 0.0).float()


def loss_mask(batch: Batch, algorithm: Algorithm) -> Tensor:
    """Return which tokens are trained on, [T] bool.

    Left out, and so out of every normalizer: tokens that the policy did not choose; completions that
    were not judged; groups with fewer than `Algorithm.min_siblings` judged completions; and
    truncated completions where `Algorithm.mask_truncated` (these still count in the baseline).
    """
    judged_R = judged_rows(batch)
    num_judged_P = row_sums(judged_R.long(), batch.group_R, batch.num_groups)
    in_loss_R = judged_R & (num_judged_P >= algorithm.min_siblings)[batch.group_R]
    if algorithm.mask_truncated:
        in_loss_R = in_loss_R & ~batch.truncated_R
    return batch.sampled_T & in_loss_R[batch.row_T]


def judged_rows(batch: Batch) -> Tensor:
    """Return which completions have a finite reward, [R] bool."""
    return batch.judged_R & batch.rewards_R.isfinite()


def shape_rewards(batch: Batch, algorithm: Algorithm) -> Tensor:
    """Return the rewards [R] float64 with overlong punishment and the KL in the reward, where asked."""
    rewards_R = batch.rewards_R.double()
    buffer = algorithm.overlong_tokens()
    if buffer:
        assert algorithm.max_tokens is not None
        rewards_R = rewards_R + overlong_penalty(batch.length_R, algorithm.max_tokens, buffer)
    if algorithm.kl_in_reward:
        if batch.old_logprobs_T is None or batch.ref_logprobs_T is None:
            raise ValueError("a KL in the reward needs a batch that Learner.score has filled")
        kl_T = kl_estimate(
            batch.old_logprobs_T.double(), batch.ref_logprobs_T.double(), algorithm.kl_estimator
        )
        kl_T = torch.where(batch.sampled_T, kl_T, 0.0)
        rewards_R = rewards_R - algorithm.kl_weight * row_sums(kl_T, batch.row_T, batch.num_rows)
    return rewards_R


def overlong_penalty(length_R: Tensor, max_tokens: int, buffer: int) -> Tensor:
    """Return the soft punishment [R] in [-1, 0] of lengths within ``buffer`` of the limit (DAPO eq. 13).

    0 up to max_tokens - buffer tokens, then linear down to -1 at max_tokens.
    """
    over_R = length_R.double() - (max_tokens - buffer)
    return -(over_R / buffer).clamp(0.0, 1.0)


def group_advantages(
    rewards_R: Tensor,
    judged_R: Tensor,
    group_R: Tensor,
    num_groups: int,
    *,
    baseline: Baseline,
    scale: Scale,
    std_ddof: int = 1,
    std_epsilon: float = 1e-4,
) -> Tensor:
    """Return (reward - baseline) / scale over the judged completions of each group, [R] float64.

        mean            b_i = mean of all siblings' rewards, i included    (DeepSeekMath 4.1.2, Dr. GRPO)
        leave_one_out   b_i = mean of the other siblings' rewards          (Kool et al. 2019, RLOO)
        std             divide by sqrt(sum (r - mean)^2 / (n - ddof)) + epsilon

    A completion that was not judged has advantage 0 and touches no sibling's. A judged one without a
    judged sibling has advantage 0 under either baseline; equal rewards give exactly 0, and are not
    scaled.
    """
    num_P = row_sums(judged_R.double(), group_R, num_groups)
    num_R = num_P[group_R]
    rewards_R = torch.where(judged_R, rewards_R.double(), 0.0)
    lowest_P = rewards_R.new_full((num_groups,), torch.inf).scatter_reduce_(
        0, group_R, torch.where(judged_R, rewards_R, torch.inf), "amin"
    )
    # Measured from the group's lowest reward, equal rewards are exact zeros, free of rounding.
    above_R = torch.where(judged_R, rewards_R - lowest_P[group_R], 0.0)
    total_R = row_sums(above_R, group_R, num_groups)[group_R]
    deviation_R = torch.where(judged_R, above_R - total_R / num_R.clamp(min=1), 0.0)
    if baseline == "mean":
        advantages_R = deviation_R
    elif baseline == "leave_one_out":
        advantages_R = above_R - (total_R - above_R) / (num_R - 1).clamp(min=1)
    else:
        advantages_R = rewards_R
    if scale == "std":
        squares_P = row_sums(deviation_R.square(), group_R, num_groups)
        std_P = (squares_P / (num_P - std_ddof).clamp(min=1)).sqrt()
        advantages_R = advantages_R / torch.where(std_P > 0, std_P + std_epsilon, 1.0)[group_R]
    return torch.where(judged_R, advantages_R, 0.0)
