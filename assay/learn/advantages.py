"""Per-token advantages and loss masks, computed from the rewards of a batch.

The masks select completions to train on: judged completions of groups with enough judged
completions, optionally without truncated or wrong completions. `loss_weights` weights the selected
completions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from assay.config.algorithm import Algorithm
from assay.errors import ConfigError, message
from assay.learn.baselines import group_advantages, group_scale
from assay.learn.gae import discounted_to_go, gae_advantages
from assay.learn.losses import token_weights
from assay.learn.rewards import judged_rows, shape_rewards, token_kl, token_rewards
from assay.learn.rows import row_sums
from assay.model.determinism import fixed_order
from assay.model.packing import Batch

VARIANCE_EPSILON = 1e-8


@dataclass(frozen=True, slots=True, eq=False)
class Advantages:
    """Per-token advantages and loss masks of a batch.

    advantages_T: float32; 0 at tokens that carry no gradient.
    mask_T: tokens to train on.
    counted_T: tokens that count in the normalizers of the loss; a superset of mask_T.
    returns_T: target values of the critic, float32; None without a critic.
    """

    advantages_T: Tensor
    mask_T: Tensor
    counted_T: Tensor
    returns_T: Tensor | None = None


def compute_advantages(batch: Batch, algorithm: Algorithm) -> Advantages:
    """Return the advantage of each token, with the credit assignment of the preset.

        completion: each completion is one action, whose advantage all of its tokens get. A KL in
            the reward is summed over the completion before the baseline is subtracted (Ahmadian et
            al., 2024, section 2). steps: the sum of the group-normalized rewards of steps that end
            at or after the token (DeepSeekMath, section 4.1.3), minus the KL in the reward from the
            token on. turns: each assistant turn is one action. The advantage of a turn is the
            discounted sum of rewards from the turn on, minus the baseline of the group at the same
            turn number (`_of_turns`). to_go: the discounted sum of token rewards from the token on,
            minus a baseline: for example, the mean of this sum at the first tokens of the other
            completions.
        gae: generalized advantage estimates from token rewards and values (Schulman et al., 2016).
            The critic's target returns are the advantage estimates before whitening plus the
            values.

    Some presets whiten the advantages over the trained tokens (mean 0, variance 1). A KL in the
    reward, or a critic, requires that `Learner.score` has scored the batch.
    """
    with fixed_order(batch.device):
        return _compute_advantages(batch, algorithm)


def _compute_advantages(batch: Batch, algorithm: Algorithm) -> Advantages:
    mask_T, counted_T = loss_masks(batch, algorithm)
    returns_T = None
    match algorithm.credit:
        case "completion":
            advantages_T = _of_completions(batch, algorithm)
        case "steps":
            advantages_T = _of_steps(batch, algorithm)
        case "turns":
            advantages_T = _of_turns(batch, algorithm)
        case "to_go":
            advantages_T = _to_go(batch, algorithm)
        case "gae":
            advantages_T, returns_T = _by_critic(batch, algorithm)
    if algorithm.whiten_advantages:
        advantages_T = whiten(advantages_T, mask_T)
    # Group baselines subtract nearly equal numbers, so all sums up to this line are in float64.
    advantages_T = torch.where(mask_T, advantages_T, 0.0).float()
    return Advantages(advantages_T, mask_T, counted_T, returns_T)


def loss_masks(batch: Batch, algorithm: Algorithm) -> tuple[Tensor, Tensor]:
    """Return the masks of trained tokens and of counted tokens, [T] bool each.

    Counted tokens are those that enter the normalizers of the loss. These tokens are in neither
    mask:

        - injected tokens;
        - tokens of unjudged completions;
        - tokens of groups with fewer than `Algorithm.min_siblings` judged completions;
        - with `Algorithm.mask_truncated`, tokens of truncated completions (their rewards count in
          the baseline);
        - with `Algorithm.dynamic_sampling`, all tokens if no group has right and wrong completions.

    DAPO trains only on mixed groups (equation 11), so every loss term is 0 for a batch without
    mixed groups. With `Algorithm.keep` = ``correct``, completions that did not pass are counted but
    not trained on.
    """
    judged_R = judged_rows(batch)
    num_judged_P = row_sums(judged_R.long(), batch.group_R, batch.num_groups)
    counted_R = judged_R & (num_judged_P >= algorithm.min_siblings)[batch.group_R]
    if algorithm.mask_truncated:
        counted_R = counted_R & ~batch.truncated_R
    if algorithm.dynamic_sampling and not _has_mixed_group(batch):
        # A length penalty must not train on groups that dynamic sampling rejected.
        counted_R = torch.zeros_like(counted_R)
    counted_T = batch.sampled_T & counted_R[batch.row_T]
    if algorithm.keep == "all":
        return counted_T, counted_T
    return counted_T & (batch.correct_R == 1)[batch.row_T], counted_T


def _has_mixed_group(batch: Batch) -> bool:
    right_P, wrong_P = (
        row_sums((batch.judged_R & chosen_R).long(), batch.group_R, batch.num_groups)
        for chosen_R in (batch.correct_R == 1, batch.correct_R == 0)
    )
    return bool(((right_P > 0) & (wrong_P > 0)).any())


def loss_weights(batch: Batch, algorithm: Algorithm, mask_T: Tensor, counted_T: Tensor) -> Tensor:
    """Return the weight of each token in the loss of an optimizer step, [T] float64.

    If group sizes differ (``rl.max_group_size``), the share of a completion (`token_weights`) is
    inversely proportional to the size of its group, so that all prompts have the same weight. If
    all groups have the same size, all shares are 1.

    mask_T, counted_T: as in `Advantages`, for the tokens of this optimizer step.
    """
    constant = 1.0
    if algorithm.aggregation == "constant_length":
        constant = algorithm.constant_length()
    ones_R = torch.ones(batch.num_rows, dtype=torch.float64, device=batch.device)
    size_P = row_sums(ones_R, batch.group_R, batch.num_groups)
    return token_weights(
        mask_T,
        batch.row_T,
        batch.num_rows,
        algorithm.aggregation,
        constant,
        counted_T=counted_T,
        # Dividing the shares by their maximum gives exactly 1 for groups of equal size.
        share_R=size_P.max() / size_P[batch.group_R],
    )


def _of_completions(batch: Batch, algorithm: Algorithm) -> Tensor:
    judged_R = judged_rows(batch)
    rewards_R = _whitened_rewards(shape_rewards(batch, algorithm), judged_R, algorithm)
    return _relative_to_group(rewards_R, judged_R, batch.group_R, batch.num_groups, algorithm)[
        batch.row_T
    ]


def _of_steps(batch: Batch, algorithm: Algorithm) -> Tensor:
    judged_R = judged_rows(batch)
    if batch.step_ends_T is None or batch.step_scores_T is None:
        raise ConfigError(
            message(
                "algorithm.credit",
                "'steps', and no completion with step scores",
                "completion | to_go | gae, or a verifier that judges steps",
            )
        )
    ends_T = batch.step_ends_T & judged_R[batch.row_T]
    scores_T = _whitened_rewards(batch.step_scores_T, ends_T, algorithm)
    group_T = batch.group_R[batch.row_T]
    normalized_T = _relative_to_group(
        scores_T, ends_T, group_T, batch.num_groups, algorithm, batch.row_T
    )
    if algorithm.kl_in_reward:
        normalized_T = normalized_T - algorithm.kl_weight * token_kl(batch, algorithm)
    return discounted_to_go(normalized_T, batch.row_T, batch.num_rows, batch.sampled_T, 1.0)


def _of_turns(batch: Batch, algorithm: Algorithm) -> Tensor:
    """Return, for each token, the advantage of the turn to which it belongs, [T] float64.

        G_k = sum_l gamma^l r_{k+l},  A_k = (G_k - baseline) / scale

    over the assistant turns k, where r_k is the sum of `token_rewards` in turn k. The baseline and
    the scale of turn k come from those completions of the group that have a turn k. Whether a
    completion has a turn k is known before the action of the turn, so this selection adds no bias.
    A turn that no other completion of the group has gets the advantage 0. Turns as actions follow
    Zhou et al., 2024 (arXiv 2402.19446). Rewards at turns follow Zeng et al., 2025 (arXiv
    2505.11821), who normalize the reward of each turn; here, the discounted sums are normalized.
    """
    acts_T, rewards_T = _episodes(batch, algorithm)
    turn_T, num_turns = torch.zeros_like(batch.row_T), 1
    if batch.turn_T is not None:
        turn_T, num_turns = batch.turn_T, int(batch.turn_T.max()) + 1
    # The axis U counts the turns of all rows; rows with fewer turns have empty entries.
    place_T = batch.row_T * num_turns + turn_T
    row_U = torch.arange(batch.num_rows, device=batch.device).repeat_interleave(num_turns)
    number_U = torch.arange(num_turns, device=batch.device).repeat(batch.num_rows)
    acts_U = row_sums(acts_T.long(), place_T, len(row_U)) > 0
    rewards_U = row_sums(rewards_T, place_T, len(row_U))
    returns_U = discounted_to_go(rewards_U, row_U, batch.num_rows, acts_U, algorithm.gamma)
    siblings_U = batch.group_R[row_U] * num_turns + number_U
    num_groups = batch.num_groups * num_turns
    return _relative_to_group(returns_U, acts_U, siblings_U, num_groups, algorithm)[place_T]


def _to_go(batch: Batch, algorithm: Algorithm) -> Tensor:
    acts_T, rewards_T = _episodes(batch, algorithm)
    row_T, num_rows = batch.row_T, batch.num_rows
    returns_T = discounted_to_go(rewards_T, row_T, num_rows, acts_T, algorithm.gamma)
    if not algorithm.group_relative:
        return returns_T
    # Only the return from the first token of a row is compared with those of its group.
    # Rows differ in length, so returns from later tokens have no counterpart in other rows.
    before_T = acts_T.long().cumsum(0) - acts_T.long()
    length_R = row_sums(acts_T.long(), row_T, num_rows)
    first_T = acts_T & (before_T == (length_R.cumsum(0) - length_R)[row_T])
    whole_R = row_sums(torch.where(first_T, returns_T, 0.0), row_T, num_rows)
    judged_R = length_R > 0
    advantages_R = _relative_to_group(whole_R, judged_R, batch.group_R, batch.num_groups, algorithm)
    since_T = returns_T - whole_R[row_T]
    if algorithm.scale == "std":
        ddof, epsilon = algorithm.std_ddof, algorithm.std_epsilon
        groups = (batch.group_R, batch.num_groups)
        scale_R = group_scale(whole_R, judged_R, *groups, ddof, epsilon)[batch.group_R]
        since_T = since_T / scale_R[row_T]
    return advantages_R[row_T] + since_T


def _by_critic(batch: Batch, algorithm: Algorithm) -> tuple[Tensor, Tensor]:
    """Return generalized advantage estimates and the target returns of the critic, [T] each."""
    values_T = batch.values_T
    if values_T is None:
        raise ValueError("credit 'gae' needs a batch with a critic's values")
    acts_T, rewards_T = _episodes(batch, algorithm)
    rates = (algorithm.gamma, algorithm.gae_lambda)
    advantages_T = gae_advantages(rewards_T, values_T, batch.row_T, batch.num_rows, acts_T, *rates)
    # The critic's target is the lambda return: the advantage plus the old value.
    returns_T = torch.where(acts_T, advantages_T + values_T.double(), 0.0).float()
    return advantages_T, returns_T


def _episodes(batch: Batch, algorithm: Algorithm) -> tuple[Tensor, Tensor]:
    """Return the mask of actions in judged completions, [T] bool, and the token rewards, [T]."""
    acts_T = batch.sampled_T & judged_rows(batch)[batch.row_T]
    return acts_T, _whitened_rewards(token_rewards(batch, algorithm), acts_T, algorithm)


def _whitened_rewards(rewards_T: Tensor, mask_T: Tensor, algorithm: Algorithm) -> Tensor:
    if algorithm.whiten_rewards == "none":
        return rewards_T
    return whiten(rewards_T, mask_T, shift=algorithm.whiten_rewards == "shift_and_scale")


def _relative_to_group(
    rewards_R: Tensor,
    judged_R: Tensor,
    group_R: Tensor,
    num_groups: int,
    algorithm: Algorithm,
    owner_R: Tensor | None = None,
) -> Tensor:
    return group_advantages(
        rewards_R,
        judged_R,
        group_R,
        num_groups,
        baseline=algorithm.baseline,
        scale=algorithm.scale,
        std_ddof=algorithm.std_ddof,
        std_epsilon=algorithm.std_epsilon,
        owner_R=owner_R,
    )


def whiten(values_T: Tensor, mask_T: Tensor, *, shift: bool = True) -> Tensor:
    """Return (v - mean) / sqrt(var + 1e-8) over the values inside the mask, [T] float64; 0 at other
    tokens.

    With ``shift=False`` the mean is added back, so that only deviations are scaled, as in the
    reward whitening of Ziegler et al., 2019 (in their code). var is the sample variance, sum (v -
    mean)^2 / (n - 1). Equal values have deviations of exactly 0.
    """
    chosen_N = values_T[mask_T].double()
    if len(chosen_N) == 0:
        return torch.zeros_like(values_T, dtype=torch.float64)
    lowest = chosen_N.min()
    # With the minimum subtracted instead of the mean, equal values become exactly 0.
    above_N = chosen_N - lowest
    deviation_N = above_N - above_N.mean()
    variance = deviation_N.square().sum() / max(1, len(chosen_N) - 1)
    whitened_N = deviation_N * (variance + VARIANCE_EPSILON).rsqrt()
    if not shift:
        whitened_N = whitened_N + (lowest + above_N.mean())
    whitened_T = torch.zeros_like(values_T, dtype=torch.float64)
    whitened_T[mask_T] = whitened_N
    return whitened_T
