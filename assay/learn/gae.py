"""Credit over time: discounted rewards, and generalized advantage estimates from a critic's values.

The chosen tokens of a row are its actions, in order; what stands between two of them (a tool's
answer, say) is part of the state that the next one is chosen in. So time is counted in chosen
tokens, the next state of a chosen token is that of the next chosen token of its row, and the last
one ends the episode. A reward at a token that was not chosen belongs to the chosen token before it;
where there is none, to nobody.
"""

from __future__ import annotations

import torch
from torch import Tensor

from assay.learn.rows import row_sums


def gae_advantages(
    token_rewards_T: Tensor,
    values_T: Tensor,
    row_T: Tensor,
    num_rows: int,
    acts_T: Tensor,
    gamma: float,
    gae_lambda: float,
) -> Tensor:
    """Return generalized advantage estimates, [T] float64; 0 at tokens that were not chosen.

        delta_t = r_t + gamma V(s_{t+1}) - V(s_t)
        A_t     = sum_l (gamma lambda)^l delta_{t+l}

    Schulman et al. 2016 (arXiv 1506.02438), eq. 11 to 16, over the chosen tokens (``acts_T``) of
    each row, with V = 0 after the last. values_T: V of the state in which each token was chosen.
    Lambda 1 is the discounted return less V(s_t) (eq. 18), lambda 0 is delta_t (eq. 17).
    """
    rewards_N, row_N = _of_chosen(token_rewards_T, row_T, acts_T)
    values_N = values_T[acts_T].double()
    next_N = torch.zeros_like(values_N)
    next_N[:-1] = torch.where(row_N[1:] == row_N[:-1], values_N[1:], 0.0)
    deltas_N = rewards_N + gamma * next_N - values_N
    longest = _longest(acts_T, row_T, num_rows)
    return _spread(_discounted_sums(deltas_N, row_N, longest, gamma * gae_lambda), acts_T)


def discounted_to_go(
    token_rewards_T: Tensor, row_T: Tensor, num_rows: int, acts_T: Tensor, gamma: float
) -> Tensor:
    """Return sum_l gamma^l r_{t+l} over each row's chosen tokens, [T] float64; 0 at all others.

    The reward to go: `gae_advantages` with lambda 1 and no critic (Schulman et al. 2016, eq. 18).
    """
    rewards_N, row_N = _of_chosen(token_rewards_T, row_T, acts_T)
    longest = _longest(acts_T, row_T, num_rows)
    return _spread(_discounted_sums(rewards_N, row_N, longest, gamma), acts_T)


def _of_chosen(token_rewards_T: Tensor, row_T: Tensor, acts_T: Tensor) -> tuple[Tensor, Tensor]:
    """Return the reward of each chosen token, [N] float64, and its row, [N]."""
    row_N = row_T[acts_T]
    before_T = acts_T.long().cumsum(0) - 1  # the last chosen token up to here, in any row
    owned_T = before_T >= 0
    owned_T[owned_T.clone()] = row_N[before_T[owned_T]] == row_T[owned_T]
    rewards_N = token_rewards_T.new_zeros(len(row_N), dtype=torch.float64)
    rewards_N.index_add_(0, before_T[owned_T], token_rewards_T[owned_T].double())
    return rewards_N, row_N


def _longest(acts_T: Tensor, row_T: Tensor, num_rows: int) -> int:
    """Return the largest number of chosen tokens in a row."""
    return int(row_sums(acts_T.long(), row_T, num_rows).max()) if num_rows else 0


def _discounted_sums(terms_N: Tensor, row_N: Tensor, longest: int, discount: float) -> Tensor:
    """Return sum_l discount^l terms_{n+l} within each row, by log2(longest) passes over all.

    After each pass a sum covers twice as many terms: its own, and those of the sum that starts
    where its own end.
    """
    sums_N = terms_N
    covered = 1
    while covered < longest:
        same_row_N = row_N[covered:] == row_N[:-covered]
        rest_N = torch.where(same_row_N, sums_N[covered:] * discount**covered, 0.0)
        sums_N = torch.cat([sums_N[:-covered] + rest_N, sums_N[-covered:]])
        covered *= 2
    return sums_N


def _spread(values_N: Tensor, acts_T: Tensor) -> Tensor:
    """Return the values at the chosen tokens, [T]; 0 elsewhere."""
    values_T = values_N.new_zeros(len(acts_T))
    values_T[acts_T] = values_N
    return values_T
