"""Losses as flat functions over packed tokens.

A loss is a weighted sum over tokens. The weights carry the whole normalization and are computed once
for all tokens of an optimizer step, so that its micro-batches' losses simply add up:

    L = sum_t w_t [ surrogate_t + kl_weight KL_t - entropy_weight H_t ]
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from assay.learn.algorithms import Aggregation, Algorithm, KLEstimator
from assay.model.head import Gains

MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped to +-20 before the exponential: beyond, a token has no gradient, instead of
one that is infinite or, times the zero of a clipped branch, not a number."""


@dataclass(frozen=True, eq=False)
class LossParts:
    """A policy loss, and what it is made of, without gradient.

    loss: scalar, with gradient. policy, kl, entropy: the weighted sums of the three terms, each
    before its own weight; kl and entropy are 0 where the loss has no such term.
    ratio_T, clipped_T: the ratio, and whether the clip took the token's gradient away.
    """

    loss: Tensor
    policy: Tensor
    kl: Tensor
    entropy: Tensor
    ratio_T: Tensor
    clipped_T: Tensor


def policy_loss(
    logprobs_T: Tensor,
    old_logprobs_T: Tensor,
    advantages_T: Tensor,
    weights_T: Tensor,
    algorithm: Algorithm,
    *,
    ref_logprobs_T: Tensor | None = None,
    entropy_T: Tensor | None = None,
) -> LossParts:
    """Return sum_t w_t [ -min(ratio_t A_t, clip(ratio_t) A_t) + kl_weight KL_t - entropy_weight H_t ].

    This is DeepSeekMath eq. 3 (negated) when ``weights_T`` come from `token_weights` with
    ``sequence_mean``, and DAPO eq. 8 with ``token_mean``. logprobs_T and entropy_T have gradient; the rest
    is constant. ref_logprobs_T is needed where the algorithm has a KL in the loss, entropy_T where
    it has an entropy bonus.
    """
    ratio_T = torch.exp(log_ratio(logprobs_T, old_logprobs_T))
    surrogate_T, clipped_T = clipped_surrogate(
        ratio_T, advantages_T, algorithm.clip_low, algorithm.clip_high
    )
    policy = (weights_T * surrogate_T).sum()
    kl = entropy = logprobs_T.new_zeros(())
    loss = policy
    if algorithm.kl_in_loss:
        assert ref_logprobs_T is not None, "a KL in the loss needs reference log-probabilities"
        kl_T = kl_estimate(logprobs_T, ref_logprobs_T, algorithm.kl_estimator)
        kl = (weights_T * kl_T).sum()
        loss = loss + algorithm.kl_weight * kl
    if algorithm.entropy_weight:
        assert entropy_T is not None, "an entropy bonus needs the tokens' entropy"
        entropy = (weights_T * entropy_T).sum()
        loss = loss - algorithm.entropy_weight * entropy
    return LossParts(
        loss, policy.detach(), kl.detach(), entropy.detach(), ratio_T.detach(), clipped_T
    )


def gains_where_first_met(
    advantages_T: Tensor, weights_T: Tensor, algorithm: Algorithm
) -> Gains | None:
    """Return the gradients of `policy_loss` by log-probabilities and entropy where the policy has not moved.

    Old log-probabilities are then those at hand, whatever they are: every ratio is 1, and the
    gradients are known before them. None where a KL in the loss depends on more.
    """
    if algorithm.kl_in_loss:
        return None
    logprobs_T = torch.zeros_like(weights_T, requires_grad=True)
    entropy_T = torch.zeros_like(weights_T, requires_grad=True)
    parts = policy_loss(
        logprobs_T, logprobs_T.detach(), advantages_T, weights_T, algorithm, entropy_T=entropy_T
    )
    leaves = (logprobs_T, entropy_T)
    by_logprobs_T, by_entropy_T = torch.autograd.grad(parts.loss, leaves, allow_unused=True)
    return Gains(by_logprobs_T, by_entropy_T)


def log_ratio(logprobs_T: Tensor, old_logprobs_T: Tensor) -> Tensor:
    """Return logprobs - old_logprobs, [T], clamped to +-`MAX_LOG_RATIO`."""
    return (logprobs_T - old_logprobs_T).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def clipped_surrogate(
    ratio_T: Tensor, advantages_T: Tensor, clip_low: float, clip_high: float
) -> tuple[Tensor, Tensor]:
    """Return (-min(r A, clip(r, 1 - low, 1 + high) A), whether the clip is active), both [T].

    Schulman et al. 2017 (PPO), eq. 7; with unequal ranges DAPO eq. 10.
    """
    clipped_ratio_T = ratio_T.clamp(1.0 - clip_low, 1.0 + clip_high)
    unclipped_T = ratio_T * advantages_T
    surrogate_T = torch.minimum(unclipped_T, clipped_ratio_T * advantages_T)
    return -surrogate_T, (surrogate_T < unclipped_T).detach()


def kl_estimate(logprobs_T: Tensor, ref_logprobs_T: Tensor, estimator: KLEstimator) -> Tensor:
    """Return a per-token estimate [T] of KL(policy || reference) from the policy's own samples.

    With d = logprobs - ref_logprobs (Schulman 2020, Approximating KL Divergence):

        k1 = d                  unbiased; as a loss its expected gradient is zero
        k2 = d^2 / 2            biased; as a loss its expected gradient is that of KL(policy || reference)
        k3 = exp(-d) - 1 + d    unbiased, >= 0 (DeepSeekMath eq. 4); as a loss, of KL(reference || policy)
    """
    difference_T = log_ratio(logprobs_T, ref_logprobs_T)
    if estimator == "k1":
        return difference_T
    if estimator == "k2":
        return 0.5 * difference_T.square()
    return torch.expm1(-difference_T) + difference_T


def token_weights(
    loss_mask_T: Tensor,
    row_T: Tensor,
    num_rows: int,
    aggregation: Aggregation,
    constant_length: float = 1.0,
) -> Tensor:
    """Return the weight [T] of each token in the loss, float64; 0 outside ``loss_mask_T``.

    With N_r masked-in tokens in row r, and R rows that have any:

        sequence_mean    1 / (R N_r)              GRPO, DeepSeekMath eq. 3
        token_mean       1 / sum_r N_r            DAPO eq. 8, over the whole optimizer step
        constant_length  1 / (R constant_length)  Dr. GRPO, listing 1; a plain sum with constant_length 1

    The normalizers are those of the tokens given: pass all tokens of one optimizer step at once.
    """
    mask_T = loss_mask_T.to(torch.float64)
    if aggregation == "token_mean":
        weights_T = mask_T / mask_T.sum().clamp(min=1)
    else:
        length_R = row_sums(mask_T, row_T, num_rows)
        num_rows_in_loss = (length_R > 0).sum().clamp(min=1)
        if aggregation == "sequence_mean":
            weights_T = mask_T / (num_rows_in_loss * length_R.clamp(min=1))[row_T]
        else:
            weights_T = mask_T / (num_rows_in_loss * constant_length)
    return weights_T


def row_sums(values_T: Tensor, row_T: Tensor, num_rows: int) -> Tensor:
    """Return the sum of each row's values, [R]."""
    return values_T.new_zeros(num_rows).index_add_(0, row_T, values_T)
