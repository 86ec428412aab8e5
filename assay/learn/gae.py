"""Credit over time: discounted returns and generalized advantage estimation (GAE).

The actions of a row are its sampled tokens, in their order. Injected tokens between two actions,
such as tool output, belong to the state of the next action. Time is counted in sampled tokens: the
next state of an action is the state of the row's next action, and the last action ends the episode.
A reward at an injected token belongs to the preceding action of the row; without a preceding
action, it belongs to none.
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
    """Return generalized advantage estimates, [T] float64; 0 at injected tokens.

        delta_t = r_t + gamma V(s_{t+1}) - V(s_t),
        A_t     = sum_l (gamma lambda)^l delta_{t+l}.

    The estimates follow equations 11 to 16 of Schulman et al., 2016 (arXiv 1506.02438), over the
    actions (``acts_T``) of each row; after the last action, V is 0. values_T: value V of the state
    before each token. Lambda 1 gives the discounted return minus V(s_t) (equation 18), and lambda 0
    gives delta_t (equation 17).
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
    """Return sum_l gamma^l r_{t+l} over the actions of each row, [T] float64; 0 at other tokens.

    This reward-to-go equals `gae_advantages` with lambda 1 and without a critic (Schulman et al.,
    2016, equation 18).
    """
    rewards_N, row_N = _of_chosen(token_rewards_T, row_T, acts_T)
    longest = _longest(acts_T, row_T, num_rows)
    return _spread(_discounted_sums(rewards_N, row_N, longest, gamma), acts_T)


def _of_chosen(token_rewards_T: Tensor, row_T: Tensor, acts_T: Tensor) -> tuple[Tensor, Tensor]:
    """Return the reward of each action, [N] float64, and the row of each action, [N]."""
    row_N = row_T[acts_T]
    # Each token gets the index of the last action so far, which may be in an earlier row.
    before_T = acts_T.long().cumsum(0) - 1
    owned_T = before_T >= 0
    owned_T[owned_T.clone()] = row_N[before_T[owned_T]] == row_T[owned_T]
    rewards_N = token_rewards_T.new_zeros(len(row_N), dtype=torch.float64)
    rewards_N.index_add_(0, before_T[owned_T], token_rewards_T[owned_T].double())
    return rewards_N, row_N


def _longest(acts_T: Tensor, row_T: Tensor, num_rows: int) -> int:
    """Return the largest number of actions that a row has."""
    return int(row_sums(acts_T.long(), row_T, num_rows).max()) if num_rows else 0


def _discounted_sums(terms_N: Tensor, row_N: Tensor, longest: int, discount: float) -> Tensor:
    """Return sum_l discount^l terms_{n+l} within each row, in log2(longest) vectorized steps.

    Each vectorized step doubles the number of terms in every sum, by adding the discounted sum that
    starts directly after the last term.
    """
    sums_N = terms_N
    covered = 1
    # A recursion over tokens would take one small operation per token, so sums are vectorized.
    while covered < longest:
        same_row_N = row_N[covered:] == row_N[:-covered]
        rest_N = torch.where(same_row_N, sums_N[covered:] * discount**covered, 0.0)
        sums_N = torch.cat([sums_N[:-covered] + rest_N, sums_N[-covered:]])
        covered *= 2
    return sums_N


def _spread(values_N: Tensor, acts_T: Tensor) -> Tensor:
    """Write one value per action to the token of the action, [T]; 0 at other tokens."""
    values_T = values_N.new_zeros(len(acts_T))
    values_T[acts_T] = values_N
    return values_T
