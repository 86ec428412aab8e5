"""Preference losses as plain functions over completions.

A preference loss is the mean over the pairs of an optimizer step or, for unpaired methods, over its
completions. The loss depends on a completion only through the log-probability of the whole
completion. Each micro-batch divides by the number of pairs or completions in the whole step, so
that the losses of micro-batches add up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from assay.config.preference import Preference

MAX_MEAN_LOGPROB = -1e-9
"""Upper bound on the mean log-probability in log odds, which are infinite at 0."""


@dataclass(frozen=True, eq=False)
class PreferenceParts:
    """A preference loss and its terms. Only ``loss`` has a gradient.

    preference, nll: the two terms of the loss; ``nll`` is without its weight.
    strengths_R: the quantity of each completion that the loss compares (see `strengths`).
    """

    loss: Tensor
    preference: Tensor
    nll: Tensor
    strengths_R: Tensor


def preference_loss(
    logprobs_R: Tensor,
    length_R: Tensor,
    chosen_R: Tensor,
    row: Preference,
    *,
    beta: float,
    normalizer: int,
    ref_logprobs_R: Tensor | None = None,
    z0: Tensor | None = None,
) -> PreferenceParts:
    """Return the sum of the losses of these pairs or completions, divided by ``normalizer``.

    logprobs_R: log pi(y|x) of each completion, with gradient.
    chosen_R: bool; True for the chosen completion of a pair, or for a desirable unpaired
        completion. The n-th chosen completion and the n-th rejected completion form a pair. beta:
        value of beta in this step, because a schedule may change the preset's beta. normalizer:
        number of pairs in the optimizer step; under ``prospect``, number of completions.
        ref_logprobs_R: log-probabilities under the reference, which some presets require.
    z0: result of `reference_point`, which ``prospect`` requires.
    """
    strengths_R = strengths(logprobs_R, length_R, row, ref_logprobs_R)
    if row.paired:
        losses = pair_losses(strengths_R[chosen_R], strengths_R[~chosen_R], row, beta)
    else:
        assert z0 is not None, "single completions are measured from a reference point"
        losses = label_losses(strengths_R, chosen_R, row, beta, z0)
    preference = losses.sum() / normalizer
    means_R = logprobs_R / length_R
    nll = -means_R[chosen_R].sum() / normalizer
    loss = preference + row.nll_weight * nll if row.nll_weight else preference
    return PreferenceParts(loss, preference.detach(), nll.detach(), strengths_R.detach())


def strengths(
    logprobs_R: Tensor, length_R: Tensor, row: Preference, ref_logprobs_R: Tensor | None
) -> Tensor:
    """Return the strength of each completion, [R], which is the quantity that the loss compares.

    The implicit reward of a completion is beta times its strength. The strength depends on the
    preset:

        default: log pi(y|x) - log pi_ref(y|x), summed over the tokens (Rafailov et al., 2023,
            equation 5).
        length_normalized: the default divided by |y| (Tulu 3, equation 6).
        reference_free: log pi(y|x), or log pi(y|x) / |y| (SimPO, equation 4).
        odds: log p - log(1 - p) with p = pi(y|x)^(1/|y|) (ORPO, equations 3 and 4).
    """
    if row.link == "odds":
        means_R = (logprobs_R / length_R).clamp(max=MAX_MEAN_LOGPROB)
        return means_R - log1mexp(means_R)
    ratios_R = logprobs_R
    if row.needs_reference:
        assert ref_logprobs_R is not None, f"{row.name} needs reference log-probabilities"
        ratios_R = logprobs_R - ref_logprobs_R
    return ratios_R / length_R if row.length_normalized else ratios_R


def pair_losses(chosen_P: Tensor, rejected_P: Tensor, row: Preference, beta: float) -> Tensor:
    """Return the loss of each pair, [P], with d the difference of the pair's strengths.

    logistic: -(1 - e) log sigmoid(z) - e log sigmoid(-z) with z = beta d - margin (DPO equation
        7, SimPO equation 6). e is label_smoothing (Mitchell 2023).
    robust: [-(1 - e) log sigmoid(z) + e log sigmoid(-z)] / (1 - 2 e) (Chowdhury et al., 2024).
    square: (d - 1 / (2 beta))^2 (IPO equation 17).
    odds: -beta log sigmoid(d) (ORPO equation 7).
    """
    difference_P = chosen_P - rejected_P
    if row.link == "square":
        return (difference_P - 1.0 / (2.0 * beta)).square()
    if row.link == "odds":
        return -beta * logsigmoid(difference_P)
    z_P = beta * difference_P - row.margin
    wrong = row.label_smoothing
    right_P, wrong_P = -(1.0 - wrong) * logsigmoid(z_P), -wrong * logsigmoid(-z_P)
    if row.robust:
        return (right_P - wrong_P) / (1.0 - 2.0 * wrong)
    return right_P + wrong_P


def label_losses(
    strengths_R: Tensor, desirable_R: Tensor, row: Preference, beta: float, z0: Tensor
) -> Tensor:
    """Return the loss of each unpaired completion, [R]: w (1 - sigmoid(+-beta (s - z0))).

    In the prospect loss, the sign +- is + for desirable completions and - for others. The loss is
    lambda_y - v(x, y) of KTO equations 7 and 8, with the preset's weights as lambda. z0 has no
    gradient.
    """
    above_R = beta * (strengths_R - z0.detach())
    weights_R = torch.where(desirable_R, row.desirable_weight, row.undesirable_weight)
    return weights_R * (1.0 - torch.sigmoid(torch.where(desirable_R, above_R, -above_R)))


def reference_point(logprobs_R: Tensor, ref_logprobs_R: Tensor) -> Tensor:
    """Return z0 = max(0, mean over R of log pi(y'|x) - log pi_ref(y'|x)), without gradient.

    Here y' are completions of other prompts, so that z0 estimates KL(pi || pi_ref) (KTO, section
    4.1).
    """
    return (logprobs_R - ref_logprobs_R).mean().clamp(min=0.0).detach()


def log1mexp(values: Tensor) -> Tensor:
    """Return log(1 - exp(x)) for x < 0, which is exact near 0 and for large -x."""
    near_zero = values > -math.log(2.0)
    # The branch that is not selected must be finite, because 0 times infinity would be NaN.
    low = torch.where(near_zero, -1.0, values)
    high = torch.where(near_zero, values, -1.0)
    return torch.where(near_zero, torch.log(-torch.expm1(high)), torch.log1p(-torch.exp(low)))


def implicit_rewards(strengths_R: Tensor, row: Preference, beta: float) -> Tensor:
    """Return the implicit reward, [R]: beta times the strength or, under ``odds``, the log odds."""
    return strengths_R if row.link == "odds" else beta * strengths_R
