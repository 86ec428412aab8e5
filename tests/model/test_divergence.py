"""Divergences against a loop over tokens and vocabulary in float64, whose gradient autograd finds."""

import math

import pytest
import torch
from torch import Tensor

from assay.model.divergence import Distribution, Divergence

B, N = 5, 7
KINDS = [
    Divergence("forward_kl"),
    Divergence("forward_kl", skew=0.1),
    Divergence("forward_kl", skew=0.9),
    Divergence("reverse_kl"),
    Divergence("reverse_kl", skew=0.1),
    Divergence("reverse_kl", skew=0.6),
    Divergence("jsd"),
    Divergence("jsd", beta=0.1),
]


def a_pair(spread: float = 2.0) -> tuple[Tensor, Tensor]:
    dice = torch.Generator().manual_seed(0)
    teacher, student = spread * torch.randn(2, B, N, generator=dice, dtype=torch.float64)
    return teacher.log_softmax(-1), student.requires_grad_()


def distributions(*logits: Tensor) -> list[Distribution]:
    return [Distribution.of(logits_BN) for logits_BN in logits]


def looped(divergence: Divergence, teacher_BN: Tensor, student_BN: Tensor) -> Tensor:
    """The definitions, one number at a time."""
    rows: list[Tensor] = []
    for p_log, logits in zip(teacher_BN, student_BN, strict=True):
        p, q = p_log.exp(), logits.softmax(-1)
        total = logits.new_zeros(())
        for p_j, q_j in zip(p, q, strict=True):
            match divergence.kind:
                case "forward_kl":
                    mixed = divergence.skew * p_j + (1 - divergence.skew) * q_j
                    total = total + p_j * torch.log(p_j / mixed)
                case "reverse_kl":
                    mixed = divergence.skew * q_j + (1 - divergence.skew) * p_j
                    total = total + q_j * torch.log(q_j / mixed)
                case "jsd":
                    beta = divergence.beta
                    mixed = beta * p_j + (1 - beta) * q_j
                    total = total + beta * p_j * torch.log(p_j / mixed)
                    total = total + (1 - beta) * q_j * torch.log(q_j / mixed)
        rows.append(total)
    return torch.stack(rows)


@pytest.mark.parametrize("divergence", KINDS, ids=str)
def test_value_and_gradient_are_those_of_a_loop(divergence: Divergence) -> None:
    teacher_BN, student_BN = a_pair()
    want_B = looped(divergence, teacher_BN, student_BN)
    (want_BN,) = torch.autograd.grad(want_B.sum(), student_BN)
    with torch.no_grad():
        found_B, pull_BN = divergence.between(*distributions(teacher_BN, student_BN))
    torch.testing.assert_close(found_B, want_B.detach())
    torch.testing.assert_close(pull_BN, want_BN)


@pytest.mark.parametrize("divergence", KINDS, ids=str)
def test_equal_distributions_are_at_no_distance_and_pull_nothing(divergence: Divergence) -> None:
    teacher_BN, _ = a_pair()
    found_B, pull_BN = divergence.between(*distributions(teacher_BN, teacher_BN + 3))
    assert found_B.abs().max() < 1e-12 and pull_BN.abs().max() < 1e-12


@pytest.mark.parametrize("divergence", KINDS, ids=str)
def test_what_neither_would_say_is_no_trouble_in_float32(divergence: Divergence) -> None:
    """Log-probabilities of -200 have probabilities of exactly 0."""
    teacher_BN, student_BN = (one.detach().float() for one in a_pair())
    teacher_BN[:, 0], student_BN[:, 0] = -200.0, -200.0
    teacher_BN[:, 1] = -200.0
    found_B, pull_BN = divergence.between(*distributions(teacher_BN, student_BN))
    assert found_B.isfinite().all() and pull_BN.isfinite().all()
    assert pull_BN.sum(-1).abs().max() < 1e-4


def test_jsd_is_a_scaled_kl_at_its_ends() -> None:
    """Agarwal et al. 2024, section 2: as beta goes to 0, JSD / beta goes to the forward KL."""
    teacher_BN, student_BN = a_pair(0.5)
    pair = distributions(teacher_BN, student_BN.detach())
    for beta, kind in ((1e-5, "forward_kl"), (1 - 1e-5, "reverse_kl")):
        found_B, _ = Divergence("jsd", beta=beta).between(*pair)
        kl_B, _ = Divergence(kind).between(*pair)
        torch.testing.assert_close(found_B / min(beta, 1 - beta), kl_B, rtol=1e-3, atol=1e-6)


def test_jsd_is_bounded() -> None:
    teacher_BN = torch.tensor([[0.0, -math.inf]]).clamp(min=-100.0)
    found_B, _ = Divergence("jsd").between(*distributions(teacher_BN, teacher_BN.flip(-1)))
    assert found_B.item() == pytest.approx(math.log(2), rel=1e-5)
