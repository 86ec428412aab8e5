"""Rewards per completion or per token, computed from the verdicts.

The reward of an unjudged completion may have any value, because no result uses it. `advantages`
excludes it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from assay.config.algorithm import Algorithm
from assay.learn.losses import kl_estimate
from assay.learn.rows import row_sums
from assay.model.packing import Batch


def judged_rows(batch: Batch) -> Tensor:
    """Return the mask of completions that have a finite reward, [R] bool."""
    return batch.judged_R & batch.rewards_R.isfinite()


def reward_parts(batch: Batch, algorithm: Algorithm) -> dict[str, Tensor]:
    """Return the terms of the reward of each completion, [R] float64 each.

    outcome: The verdict's reward. If the algorithm has an ``outcome_gate``, groups without a passed
        completion use the score of the verdict instead. With ``keep = "correct"`` and no baseline,
        the outcome is 1 for completions that passed, so that all of them have the same weight.
        overlong: `overlong_penalty`, if a buffer is configured; 0 in groups whose outcome gate is
        closed. kl: -kl_weight sum_t KL_t over the sampled tokens, if the reward has a KL term.
    """
    gate_R = _open_gates(batch)[batch.group_R] if algorithm.outcome_gate else None
    outcome_R = batch.rewards_R.double()
    if gate_R is not None:
        outcome_R = torch.where(gate_R, outcome_R, batch.scores_R.double())
    if algorithm.keep == "correct" and not algorithm.group_relative:
        outcome_R = batch.correct_R.double()
    parts = {"outcome": outcome_R}
    buffer = algorithm.overlong_tokens()
    if buffer:
        assert algorithm.max_tokens is not None
        overlong_R = overlong_penalty(batch.length_R, algorithm.max_tokens, buffer)
        parts["overlong"] = overlong_R if gate_R is None else torch.where(gate_R, overlong_R, 0.0)
    if algorithm.kl_in_reward:
        kl_T = token_kl(batch, algorithm)
        parts["kl"] = -algorithm.kl_weight * row_sums(kl_T, batch.row_T, batch.num_rows)
    return parts


def shape_rewards(batch: Batch, algorithm: Algorithm) -> Tensor:
    """Return the reward of each completion, [R] float64: the sum of its `reward_parts`."""
    return torch.stack(list(reward_parts(batch, algorithm).values())).sum(0)


def token_rewards(batch: Batch, algorithm: Algorithm) -> Tensor:
    """Return the reward of each token, [T] float64; 0 in unjudged completions.

        r_t = -kl_weight KL_t + [t is the last sampled token] (outcome + overlong).

    The token reward is equation 2 of Ziegler et al., 2019 (Stiennon et al., 2020; Ouyang et al.,
    2022). With the credit ``turns``, the weighted score of a step is at the end of the step, and
    the rest of the outcome at the end of the completion. The token rewards of a completion add up
    to the completion's reward in `shape_rewards`.
    """
    parts = reward_parts(batch, algorithm)
    parts.pop("kl", None)
    last_R = torch.stack(list(parts.values())).sum(0)
    judged_T = judged_rows(batch)[batch.row_T]
    acts_T = batch.sampled_T & judged_T
    index_T = torch.arange(batch.num_tokens, device=batch.device)
    # Injected tokens may follow the last sampled token, so the end of the row is no sampled token.
    last_index_R = index_T.new_full((batch.num_rows,), -1).scatter_reduce_(
        0, batch.row_T, torch.where(acts_T, index_T, -1), "amax"
    )
    at_last_T = acts_T & (index_T == last_index_R[batch.row_T])
    early_T = torch.zeros_like(batch.row_T, dtype=torch.float64)
    if algorithm.credit == "turns" and batch.step_scores_T is not None:
        early_T = torch.where(judged_T, batch.step_scores_T.double(), 0.0)
        last_R = last_R - row_sums(early_T, batch.row_T, batch.num_rows)
    rewards_T = early_T + torch.where(at_last_T, last_R[batch.row_T], 0.0)
    if algorithm.kl_in_reward:
        kl_T = token_kl(batch, algorithm)
        rewards_T = rewards_T - algorithm.kl_weight * torch.where(judged_T, kl_T, 0.0)
    return rewards_T


def token_kl(batch: Batch, algorithm: Algorithm) -> Tensor:
    """Return the KL to the reference at each sampled token, times the factor of its row, [T]
    float64.

    The preset selects the estimator. ``kl_clamp`` raises negative KL estimates to 0 (Dubois et al.,
    2023, AlpacaFarm). Raises ValueError if the batch lacks the log-probabilities that
    `Learner.score` computes.
    """
    if batch.old_logprobs_T is None or batch.ref_logprobs_T is None:
        raise ValueError("a KL in the reward needs a batch that Learner.score has filled")
    kl_T = kl_estimate(
        batch.old_logprobs_T.double(), batch.ref_logprobs_T.double(), algorithm.kl_estimator
    )
    if algorithm.kl_clamp:
        kl_T = kl_T.clamp(min=0.0)
    if batch.kl_factor_R is not None:
        kl_T = kl_T * batch.kl_factor_R[batch.row_T]
    return torch.where(batch.sampled_T, kl_T, 0.0)


def overlong_penalty(length_R: Tensor, max_tokens: int, buffer: int) -> Tensor:
    """Return the penalty for completions within ``buffer`` tokens of the length limit, [R] in [-1,
    0].

    The penalty is DAPO equation 13: 0 up to max_tokens - buffer tokens, then linear down to -1 at
    max_tokens.
    """
    over_R = length_R.double() - (max_tokens - buffer)
    return -(over_R / buffer).clamp(0.0, 1.0)


def _open_gates(batch: Batch) -> Tensor:
    """Return the mask of groups in which a judged completion passed, [P] bool."""
    passed_R = judged_rows(batch) & (batch.correct_R == 1)
    return row_sums(passed_R.long(), batch.group_R, batch.num_groups) > 0
