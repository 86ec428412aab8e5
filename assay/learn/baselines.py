"""Baselines and scales from the completions of one prompt."""

from __future__ import annotations

import torch
from torch import Tensor

from assay.config.algorithm import Baseline, Scale
from assay.learn.rows import row_medians, row_sums


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
    owner_R: Tensor | None = None,
) -> Tensor:
    """Return (reward - baseline) / scale over the judged completions of each group, [R] float64.

        The baseline mean is the mean of the group's rewards (DeepSeekMath, section 4.1.2).
        The baseline median is the median of the group's rewards.
        The baseline leave_one_out is the mean of the rewards of the group's other completions (Kool
        et al., 2019, RLOO). The scale std is sqrt(sum (r - mean)^2 / (n - ddof)) + epsilon.

    An unjudged completion has advantage 0, and does not affect the other completions of its group.
    A completion without another judged completion in its group has advantage 0 with every group
    baseline. A group with equal rewards gets exactly 0 as advantages, and is not scaled. owner_R:
    index (below R) of the completion to which each reward belongs, if steps have rewards. The
    baseline ``leave_one_out`` then excludes all rewards of the same completion.
    """
    rewards_R = torch.where(judged_R, rewards_R.double(), 0.0)
    above_R = _above_lowest(rewards_R, judged_R, group_R, num_groups)
    num_R = row_sums(judged_R.double(), group_R, num_groups)[group_R]
    total_R = row_sums(above_R, group_R, num_groups)[group_R]
    match baseline:
        case "mean":
            advantages_R = above_R - total_R / num_R.clamp(min=1)
        case "median":
            advantages_R = above_R - row_medians(above_R, judged_R, group_R, num_groups)[group_R]
        case "leave_one_out":
            own_R, own_num_R = above_R, judged_R.double()
            # A baseline must exclude all steps of the completion whose action it is compared with.
            if owner_R is not None:
                own_R = row_sums(own_R, owner_R, len(owner_R))[owner_R]
                own_num_R = row_sums(own_num_R, owner_R, len(owner_R))[owner_R]
            others_R = num_R - own_num_R
            advantages_R = above_R - (total_R - own_R) / others_R.clamp(min=1)
            # Without another judged completion to compare with, a completion has no gradient.
            advantages_R = torch.where(others_R > 0, advantages_R, 0.0)
        case "none":
            advantages_R = rewards_R
    if scale == "std":
        advantages_R = (
            advantages_R
            / group_scale(rewards_R, judged_R, group_R, num_groups, std_ddof, std_epsilon)[group_R]
        )
    return torch.where(judged_R, advantages_R, 0.0)


def group_scale(
    rewards_R: Tensor,
    judged_R: Tensor,
    group_R: Tensor,
    num_groups: int,
    std_ddof: int,
    std_epsilon: float,
) -> Tensor:
    """Return sqrt(sum (r - mean)^2 / (n - ddof)) + epsilon for each group, [P].

    The scale of a group with equal rewards is 1.
    """
    above_R = _above_lowest(rewards_R, judged_R, group_R, num_groups)
    num_P = row_sums(judged_R.double(), group_R, num_groups)
    mean_P = row_sums(above_R, group_R, num_groups) / num_P.clamp(min=1)
    deviation_R = torch.where(judged_R, above_R - mean_P[group_R], 0.0)
    squares_P = row_sums(deviation_R.square(), group_R, num_groups)
    std_P = (squares_P / (num_P - std_ddof).clamp(min=1)).sqrt()
    # Groups of equal rewards have advantage 0; a division by epsilon would amplify rounding errors.
    return torch.where(std_P > 0, std_P + std_epsilon, 1.0)


def _above_lowest(rewards_R: Tensor, judged_R: Tensor, group_R: Tensor, num_groups: int) -> Tensor:
    """Return rewards minus the minimum of their group, so that equal rewards become exactly 0."""
    rewards_R = torch.where(judged_R, rewards_R.double(), torch.inf)
    lowest_P = rewards_R.new_full((num_groups,), torch.inf)
    lowest_P = lowest_P.scatter_reduce_(0, group_R, rewards_R, "amin")
    return torch.where(judged_R, rewards_R - lowest_P[group_R], 0.0)
