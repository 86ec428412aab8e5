"""Policy losses as plain functions over packed tokens.

A policy loss is a weighted sum over tokens. The weights contain the whole normalization and are
computed once for all tokens of an optimizer step, so that the losses of the step's micro-batches
add up:

    L = sum_t w_t [ surrogate_t + kl_weight KL_t + penalty_weight KL(old || new)_t
                    - entropy_weight H_t ]
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from assay.config.algorithm import Aggregation, Algorithm, KLEstimator
from assay.learn.rows import of_rows, row_sums
from assay.learn.surrogates import (
    cispo_surrogate,
    clipped_surrogate,
    importance_weight,
    leveled_log_ratio,
    log_ratio,
    mirror_surrogate,
    ratio_surrogate,
)
from assay.model.head import Gains
from assay.model.packing import Batch


@dataclass(frozen=True, eq=False)
class LossParts:
    """A policy loss and its terms. Only ``loss`` has a gradient.

    policy, kl, entropy, penalty: weighted sums of the four terms, without the weight of the term.
        kl and entropy are 0 if the loss has no such term. penalty is always measured.
    ratio_T: ratio of new to old policy, at the ratio level of the algorithm.
    clipped_T: mask of tokens that have no gradient because of a clip or, under ``cispo``, have a
        clipped weight.
    old_kl_T: estimate of KL(old || new) for each token.
    """

    loss: Tensor
    policy: Tensor
    kl: Tensor
    entropy: Tensor
    penalty: Tensor
    ratio_T: Tensor
    clipped_T: Tensor
    old_kl_T: Tensor


def policy_loss(
    logprobs_T: Tensor,
    old_logprobs_T: Tensor,
    advantages_T: Tensor,
    weights_T: Tensor,
    algorithm: Algorithm,
    batch: Batch | None = None,
    entropy_T: Tensor | None = None,
) -> LossParts:
    """Return the weighted sum of the token losses:

        sum_t w_t [ c_t surrogate_t + kl_weight KL_t + penalty_weight KL(old || new)_t
                    - entropy_weight H_t ]

    With ``weights_T`` from `token_weights`, the loss is DeepSeekMath equation 3 (negated) for
    ``sequence_mean`` and surrogate ``clip``, DAPO equation 8 for ``token_mean``, and PPO equation 8
    for surrogate ``ratio`` and a penalty. The factor c_t is 1, or is given by `importance_weight`
    if ``importance_cap`` is set. Other terms than the surrogate have no importance weight: for
    tokens of another distribution, their expectations are over that distribution.

    logprobs_T, entropy_T: tensors with gradient; all other tensors are constants. An entropy bonus
        requires entropy_T.
    batch: batch of these tokens. Sequence-level ratios need whole rows. ``importance_cap`` requires
        the behavior log-probabilities of the batch. A KL in the loss requires the reference
        log-probabilities of the batch; ``kl_factor_R`` of the batch multiplies KL_t.
    """
    log_ratio_T = log_ratio(logprobs_T, old_logprobs_T)
    surrogate_T, ratio_T, clipped_T = _surrogate(
        logprobs_T, log_ratio_T, advantages_T, algorithm, batch
    )
    if (cap := algorithm.importance_cap) is not None:
        assert batch is not None, "importance_cap needs the generator's log-probabilities"
        weight_T = importance_weight(old_logprobs_T, batch.behavior_logprobs_T, cap)
        surrogate_T = surrogate_T * weight_T
    policy = (weights_T * surrogate_T).sum()
    kl = entropy = logprobs_T.new_zeros(())
    loss = policy
    if algorithm.kl_in_loss:
        assert batch is not None and batch.ref_logprobs_T is not None, "a KL needs a reference"
        kl_T = kl_estimate(logprobs_T, batch.ref_logprobs_T, algorithm.kl_estimator)
        if batch.kl_factor_R is not None:
            kl_T = kl_T * batch.kl_factor_R[batch.row_T]
        kl = (weights_T * kl_T).sum()
        loss = loss + algorithm.kl_weight * kl
    # KL(old || new) is a metric of every algorithm, but only few losses have it as a term.
    # If the loss has no such term, the metric is computed without a graph for backward.
    with torch.set_grad_enabled(algorithm.penalty_weight > 0 and torch.is_grad_enabled()):
        old_kl_T = torch.expm1(log_ratio_T) - log_ratio_T
        penalty = (weights_T * old_kl_T).sum()
    if algorithm.penalty_weight:
        loss = loss + algorithm.penalty_weight * penalty
    if algorithm.entropy_weight:
        assert entropy_T is not None, "an entropy bonus needs the tokens' entropy"
        entropy = (weights_T * entropy_T).sum()
        loss = loss - algorithm.entropy_weight * entropy
    return LossParts(
        loss=loss,
        policy=policy.detach(),
        kl=kl.detach(),
        entropy=entropy.detach(),
        penalty=penalty.detach(),
        ratio_T=ratio_T.detach(),
        clipped_T=clipped_T,
        old_kl_T=old_kl_T.detach(),
    )


def _surrogate(
    logprobs_T: Tensor,
    log_ratio_T: Tensor,
    advantages_T: Tensor,
    algorithm: Algorithm,
    batch: Batch | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (surrogate of the algorithm, its ratio, mask of tokens with an active clip), [T]
    each."""
    leveled_T = leveled_log_ratio(log_ratio_T, algorithm.ratio_level, batch)
    ratio_T = torch.exp(leveled_T)
    low, high = algorithm.clip_low, algorithm.clip_high
    match algorithm.surrogate:
        case "clip":
            surrogate_T, clipped_T = clipped_surrogate(
                ratio_T, advantages_T, low, high, algorithm.dual_clip
            )
        case "ratio":
            surrogate_T, clipped_T = ratio_surrogate(ratio_T, advantages_T, algorithm.dual_clip)
        case "cispo":
            surrogate_T, clipped_T = cispo_surrogate(logprobs_T, ratio_T, advantages_T, low, high)
        case "mirror":
            surrogate_T = mirror_surrogate(
                logprobs_T, log_ratio_T, advantages_T, algorithm.tau, batch
            )
            clipped_T = torch.zeros_like(ratio_T, dtype=torch.bool)
        case "log_likelihood":
            surrogate_T = -advantages_T * logprobs_T
            clipped_T = torch.zeros_like(ratio_T, dtype=torch.bool)
    return surrogate_T, ratio_T, clipped_T


def gains_where_first_met(
    advantages_T: Tensor,
    weights_T: Tensor,
    algorithm: Algorithm,
    batch: Batch | None = None,
) -> Gains | None:
    """Return the gradient of `policy_loss` by log-probabilities and entropy, at the old policy.

    At the old policy, every ratio is 1, so this gradient is known before the forward pass. Returns
    None if the gradient also depends on the reference (a KL in the loss) or on the generator
    (``importance_cap``).
    """
    if algorithm.kl_in_loss or algorithm.importance_cap is not None:
        return None
    # At the old policy every ratio is 1, so any log-probabilities give the same gradient.
    logprobs_T = torch.zeros_like(weights_T, requires_grad=True)
    entropy_T = torch.zeros_like(weights_T, requires_grad=True)
    parts = policy_loss(
        logprobs_T, logprobs_T.detach(), advantages_T, weights_T, algorithm, batch, entropy_T
    )
    leaves = (logprobs_T, entropy_T)
    by_logprobs_T, by_entropy_T = torch.autograd.grad(parts.loss, leaves, allow_unused=True)
    return Gains(by_logprobs_T, by_entropy_T)


def kl_estimate(logprobs_T: Tensor, ref_logprobs_T: Tensor, estimator: KLEstimator) -> Tensor:
    """Return an estimate of KL(policy || reference) for each token, from samples of the policy,
    [T].

    With d = logprobs - ref_logprobs (Schulman 2020, Approximating KL Divergence):

        k1 = d is unbiased. As a loss, k1 has the expected gradient zero. The estimator k2 = d^2 / 2
        is biased. As a loss, k2 has the expected gradient of KL(policy || reference). Under k2, the
        value of d is limited, but the limit does not cut off the gradient. The estimator k3 =
        exp(-d) - 1 + d is unbiased and >= 0 (DeepSeekMath equation 4). As a loss, k3 has the
        expected gradient of KL(reference || policy).

    A teacher with another tokenizer scores spans of several tokens. For a span, d is the difference
    of the span's log-probabilities at the last token of the span, and 0 at its other tokens.
    """
    spans_T = _span_logprobs(logprobs_T, ~ref_logprobs_T.isnan())
    is_scored_T = ref_logprobs_T < torch.inf
    given_T = torch.where(is_scored_T, ref_logprobs_T, 0.0)
    difference_T = torch.where(is_scored_T, log_ratio(spans_T, given_T), 0.0)
    if estimator == "k1":
        return difference_T
    if estimator == "k2":
        # A token that a teacher never generates must keep its gradient: only the value is limited.
        bounded_T = difference_T.detach()
        return 0.5 * bounded_T.square() + bounded_T * (spans_T - spans_T.detach())
    return torch.expm1(-difference_T) + difference_T


def _span_logprobs(logprobs_T: Tensor, ends_T: Tensor) -> Tensor:
    """Return, at each token, the sum over the span to which it belongs, [T]. ends_T: mask of the
    last tokens of spans.
    """
    span_T = ends_T.long().cumsum(0) - ends_T.long()
    return of_rows(row_sums(logprobs_T, span_T, len(span_T) + 1), span_T)


def token_weights(
    loss_mask_T: Tensor,
    row_T: Tensor,
    num_rows: int,
    aggregation: Aggregation,
    constant_length: float = 1.0,
    *,
    counted_T: Tensor | None = None,
    share_R: Tensor | None = None,
) -> Tensor:
    """Return the weight of each token in the loss, [T] float64; 0 outside ``loss_mask_T``.

    In the following formulas, N_r is the number of counted tokens in row r, s_r is the share of row
    r, and S is the sum of s_r over rows with counted tokens.

        sequence_mean: s_r / (S N_r) (GRPO, DeepSeekMath equation 3).
        token_mean: s_r / sum_r s_r N_r (DAPO equation 8, over the whole optimizer step).
        constant_length: s_r / (S constant_length) (Liu et al., 2025, listing 1). With
            constant_length = 1, the loss is a plain sum over tokens.

    counted_T: mask of the tokens that count in the normalizers; None means the loss mask.
    share_R: relative weight of each row; None means a weight of 1 for every row.

    The normalizers cover all tokens in the arguments, so all tokens of one optimizer step must be
    passed in one call.
    """
    counted_T = (loss_mask_T if counted_T is None else counted_T).to(torch.float64)
    share_R = counted_T.new_ones(num_rows) if share_R is None else share_R
    weights_T = loss_mask_T.to(torch.float64) * share_R[row_T]
    length_R = row_sums(counted_T, row_T, num_rows)
    # If no token is counted, all weights are 0, and the clamp only prevents a division by 0.
    if aggregation == "token_mean":
        return weights_T / (share_R * length_R).sum().clamp(min=1)
    shares = torch.where(length_R > 0, share_R, 0.0).sum().clamp(min=1)
    if aggregation == "sequence_mean":
        return weights_T / (shares * length_R.clamp(min=1))[row_T]
    return weights_T / (shares * constant_length)
