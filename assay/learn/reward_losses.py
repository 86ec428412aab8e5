"""Losses of reward models: Bradley-Terry for pairs, and label losses for texts or steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Kind = Literal["preference", "outcome", "process"]
LabelLoss = Literal["cross_entropy", "squared"]
RIGHT = 0.5
"""Threshold probability of a right label or prediction."""


@dataclass(frozen=True, slots=True)
class RewardObjective:
    """Objective of a reward model. `assay.config.RewardModelConfig` defines the settings."""

    kind: Kind = "preference"
    centering: float = 0.0
    loss: LabelLoss = "cross_entropy"
    until_first_error: bool = False


def pair_losses(
    chosen_P: Tensor, rejected_P: Tensor, margins_P: Tensor | None = None, centering: float = 0.0
) -> Tensor:
    """Return the loss of each pair, [P]: -log sigmoid(r_c - r_r - m) + c (r_c + r_r)^2.

    The first term is the negative Bradley-Terry log-likelihood of one pair (Ouyang et al., 2022,
    arXiv:2203.02155, equation 1), with the margin m of Llama 2 (Touvron et al., 2023,
    arXiv:2307.09288, equation 2). Pairs determine the scores only up to a constant. The second term
    of the pair loss centers the scores at 0 (Eisenstein et al., 2023, arXiv:2312.09244). The caller
    divides the sum of pair losses by the number of pairs.
    """
    differences_P = chosen_P - rejected_P
    if margins_P is not None:
        differences_P = differences_P - margins_P
    losses_P = -F.logsigmoid(differences_P)
    if centering:
        losses_P = losses_P + centering * (chosen_P + rejected_P).square()
    return losses_P


def log_odds(logits_MC: Tensor) -> Tensor:
    """Return the log-odds that a text or step is right, [M]. The sigmoid is the probability.

    For a score head with one class, the log-odds are the logit itself. For a score head with two
    classes, the log-odds are z_1 - z_0, so that the sigmoid equals the softmax of class 1.
    """
    if logits_MC.shape[-1] == 1:
        return logits_MC[..., 0]
    return logits_MC[..., 1] - logits_MC[..., 0]


def label_losses(log_odds_M: Tensor, labels_M: Tensor, loss: LabelLoss) -> Tensor:
    """Return the loss of each label, [M], with p = sigmoid(log-odds) and a label y in [0, 1].

    ``cross_entropy`` is -y log p - (1 - y) log(1 - p): Math-Shepherd's equation 1 for whole texts
    and equation 2 for steps (Wang et al., 2023, arXiv:2312.08935), with its hard or soft labels
    (equations 3 and 4). ``squared`` is the Brier score (p - y)^2. The caller normalizes.
    """
    if loss == "squared":
        return (torch.sigmoid(log_odds_M) - labels_M).square()
    return F.binary_cross_entropy_with_logits(log_odds_M, labels_M, reduction="none")


def until_first_error(labels_M: Tensor, row_M: Tensor) -> Tensor:
    """Return the mask of the steps up to and including the first wrong step of each row, [M] bool.

    The steps of a row must be adjacent. Steps after a mistake are neither right nor wrong (Lightman
    et al., 2023, arXiv:2305.20050, section 2.6).
    """
    wrong_M = (labels_M < RIGHT).long()
    # The number of wrong steps before each step is first counted over all rows.
    # The count at the start of a row is the offset of the row, so it is subtracted.
    before_M = wrong_M.cumsum(0) - wrong_M
    starts_M = torch.ones_like(row_M, dtype=torch.bool)
    starts_M[1:] = row_M[1:] != row_M[:-1]
    first_M = before_M[starts_M].repeat_interleave(
        torch.diff(starts_M.nonzero()[:, 0], append=row_M.new_tensor([len(row_M)]))
    )
    return before_M == first_M


def place_weights(labels_M: Tensor, row_M: Tensor, objective: RewardObjective) -> Tensor:
    """Return the weight of the loss at each scored token (place), [M], before normalization.

    ``outcome``: 1 / (number of scored tokens in the text), so that every text has the same weight.
    ``process``: 1, so that every step has the same weight. With ``until_first_error``, scored
    tokens after the first error have the weight 0.
    """
    if objective.kind == "outcome":
        counts_R = torch.bincount(row_M)
        return 1.0 / counts_R[row_M]
    if objective.until_first_error:
        return until_first_error(labels_M, row_M).to(labels_M.dtype)
    return torch.ones_like(labels_M)
