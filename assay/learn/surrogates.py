"""Surrogate losses per token, as functions of the ratio of the new policy to the old policy.

Each function returns the unweighted loss of each token, [T], with gradient. Clipped surrogates also
return the mask of tokens whose clip is active.
"""

from __future__ import annotations

import torch
from torch import Tensor

from assay.config.algorithm import RatioLevel
from assay.learn.rows import of_rows, row_sums
from assay.model.packing import Batch

MAX_LOG_RATIO = 20.0
"""Bound on log-ratios before the exponential. Beyond the bound a token has no gradient. Without it
the gradient could be infinite, or NaN after multiplication by the 0 of a clipped branch."""


def log_ratio(logprobs_T: Tensor, old_logprobs_T: Tensor) -> Tensor:
    """Return the log-ratio logprobs - old_logprobs, [T], clamped to +-`MAX_LOG_RATIO`."""
    return (logprobs_T - old_logprobs_T).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def leveled_log_ratio(
    log_ratio_T: Tensor,
    level: RatioLevel,
    batch: Batch | None,
) -> Tensor:
    """Return the log-ratio at its level, [T], where d_t is the log-ratio of a token and N the
    number of sampled tokens in a row.

        token: d_t (PPO).
        sequence_mean: (1/N) sum_t d_t, the logarithm of the geometric mean of the ratios (GSPO
        equation 7). sequence_product: sum_t d_t, the log-ratio of the whole completion (DeepSeek-R1
        equation 1).

    At the sequence levels, all tokens of a row share the log-ratio of the row, clamped to
    +-`MAX_LOG_RATIO`, and therefore its surrogate. The aggregation ``sequence_mean`` counts the
    surrogate of a row once, as in the papers. All other aggregations count the surrogate of a row
    once per token.
    """
    if level == "token":
        return log_ratio_T
    row_T, total_R, num_R = _row_log_ratio(log_ratio_T, batch)
    if level == "sequence_mean":
        total_R = total_R / num_R
    return of_rows(total_R.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO), row_T)


def clipped_surrogate(
    ratio_T: Tensor,
    advantages_T: Tensor,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Return (-min(r A, clip(r, 1 - low, 1 + high) A), mask of tokens whose clip is active), [T]
    each.

    The clipped surrogate is equation 7 of Schulman et al., 2017 (PPO), and with unequal ranges
    equation 10 of DAPO. With a dual clip c, tokens with A < 0 have the loss -max(min(r A, clip(r)
    A), c A) (Ye et al., 2020, arXiv 1912.09729, equation 5).
    """
    # The smaller gain is taken: beyond the clip, a ratio that lowers the gain keeps its gradient.
    clipped_ratio_T = ratio_T.clamp(1.0 - clip_low, 1.0 + clip_high)
    unclipped_T = ratio_T * advantages_T
    surrogate_T = torch.minimum(unclipped_T, clipped_ratio_T * advantages_T)
    if dual_clip is not None:
        surrogate_T = _bounded_below(surrogate_T, advantages_T, dual_clip)
    return -surrogate_T, (surrogate_T != unclipped_T).detach()


def ratio_surrogate(
    ratio_T: Tensor, advantages_T: Tensor, dual_clip: float | None = None
) -> tuple[Tensor, Tensor]:
    """Return (-r A, mask of tokens whose dual clip is active), [T] each.

    The ratio surrogate is equation 14 of Schulman et al., 2015 (TRPO), and equations 6 and 8 of
    Schulman et al., 2017 (PPO).
    """
    unclipped_T = ratio_T * advantages_T
    surrogate_T = unclipped_T
    if dual_clip is not None:
        surrogate_T = _bounded_below(surrogate_T, advantages_T, dual_clip)
    return -surrogate_T, (surrogate_T != unclipped_T).detach()


def cispo_surrogate(
    logprobs_T: Tensor,
    ratio_T: Tensor,
    advantages_T: Tensor,
    clip_low: float,
    clip_high: float,
) -> tuple[Tensor, Tensor]:
    """Return (-sg(clip(r, 1 - low, 1 + high)) A log p, mask of tokens with a clipped weight), [T]
    each.

    The ``cispo`` surrogate follows equations 4 and 5 of MiniMax-M1 (arXiv 2506.13585). The operator
    sg stops the gradient through the weight, so that a clipped token keeps its own gradient.
    """
    ratio_T = ratio_T.detach()
    weight_T = ratio_T.clamp(1.0 - clip_low, 1.0 + clip_high)
    return -weight_T * advantages_T * logprobs_T, weight_T != ratio_T


def mirror_surrogate(
    logprobs_T: Tensor,
    log_ratio_T: Tensor,
    advantages_T: Tensor,
    tau: float,
    batch: Batch | None,
) -> Tensor:
    """Return -A log p + (tau / 2) S^2 / N, [T].

    In the term with tau, S is the sum of the log-ratios over the N sampled tokens of the row.
    Summed over a row, the loss is -A log p(y) + (tau / 2) (log p(y) / p_old(y))^2. The negated
    gradient of the loss of a row is the gradient of Kimi k1.5 (arXiv 2501.12599), section 2.3.2,
    with p_old the policy before the update.
    """
    row_T, total_R, num_R = _row_log_ratio(log_ratio_T, batch)
    return -advantages_T * logprobs_T + 0.5 * tau * of_rows(total_R.square() / num_R, row_T)


def importance_weight(old_logprobs_T: Tensor, behavior_logprobs_T: Tensor, cap: float) -> Tensor:
    """Return the importance weight min(p_old / p_behavior, cap), [T], without gradient.

    The weight is truncated importance sampling between the generator's policy and the learner's
    policy before the update (Ionides 2008; for language models Yao et al., 2025).
    """
    return log_ratio(old_logprobs_T, behavior_logprobs_T).exp().clamp(max=cap).detach()


def _bounded_below(surrogate_T: Tensor, advantages_T: Tensor, dual_clip: float) -> Tensor:
    bounded_T = torch.maximum(surrogate_T, dual_clip * advantages_T)
    return torch.where(advantages_T < 0, bounded_T, surrogate_T)


def _row_log_ratio(log_ratio_T: Tensor, batch: Batch | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return (row_T, sum of the sampled log-ratios of each row [R], number of sampled tokens [R]).

    The number of sampled tokens is at least 1 in the result, because it is a divisor. Raises
    ValueError without a batch.
    """
    if batch is None:
        raise ValueError("a ratio of whole completions needs the batch that they are of")
    row_T, num_rows = batch.row_T, batch.num_rows
    total_R = row_sums(torch.where(batch.sampled_T, log_ratio_T, 0.0), row_T, num_rows)
    num_R = row_sums(batch.sampled_T.to(total_R.dtype), row_T, num_rows).clamp(min=1)
    return row_T, total_R, num_R
