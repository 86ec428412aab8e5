"""Divergences and their gradients equal to those of TRL's GKD on the same logits.

TRL's loss has no skewed KL, and does not multiply by the squared temperature: there the learning rate
makes up for it. Its beta of 0 and 1 are our two kinds of KL.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from assay.model.divergence import Distribution, Divergence

pytestmark = [pytest.mark.peer, pytest.mark.filterwarnings("ignore")]

KINDS = {
    0.0: Divergence("forward_kl", temperature=1.7),
    0.2: Divergence("jsd", beta=0.2, temperature=1.7),
    0.5: Divergence("jsd", beta=0.5),
    1.0: Divergence("reverse_kl", temperature=0.8),
}


def theirs(beta: float, temperature: float, student_TV: Tensor, teacher_TV: Tensor) -> Any:
    from trl.experimental.gkd import GKDTrainer

    labels = torch.zeros(1, len(student_TV), dtype=torch.long)
    labels[0, -1] = -100  # padding
    return GKDTrainer.generalized_jsd_loss(
        student_TV[None], teacher_TV[None], labels, beta, temperature
    )


@pytest.mark.parametrize("beta", KINDS)
def test_divergence_and_gradient_equal_trls_gkd_loss(beta: float) -> None:
    dice = torch.Generator().manual_seed(0)
    teacher_TV, student_TV = 3 * torch.randn(2, 9, 31, generator=dice, dtype=torch.float64)
    student_TV.requires_grad_()
    divergence = KINDS[beta]
    want = theirs(beta, divergence.temperature, student_TV, teacher_TV)
    (want_TV,) = torch.autograd.grad(want, student_TV)
    with torch.no_grad():
        tau = divergence.temperature
        taught, own = (Distribution.of(one / tau) for one in (teacher_TV, student_TV))
        found_T, pull_TV = divergence.between(taught, own)
    torch.testing.assert_close(found_T[:-1].mean(), want.detach())
    torch.testing.assert_close(pull_TV[:-1] / tau / 8, want_TV[:-1])
