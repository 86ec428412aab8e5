"""How far a student's distribution is from a teacher's, and what pulls the student's logits there.

With p the teacher's and q the student's probabilities of N outcomes, and m a mixture of both:

    forward_kl   sum p log(p / m), m = skew p + (1 - skew) q
    reverse_kl   sum q log(q / m), m = skew q + (1 - skew) p
    jsd          beta sum p log(p / m) + (1 - beta) sum q log(q / m), m = beta p + (1 - beta) q

Without skew the first two are the plain KL divergences. With it they are those of Ko et al. 2024
(DistiLLM, arXiv 2402.03898), section 3.1. jsd is Agarwal et al. 2024 (GKD, arXiv 2306.13649), eq.
1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from assay.config.distill import DivergenceKind


@dataclass(frozen=True, slots=True)
class Divergence:
    """A divergence, between distributions at a temperature.

    skew: of the two KL divergences, from 0 to below 1. beta: of ``jsd``, between 0 and 1.
    """

    kind: DivergenceKind = "forward_kl"
    skew: float = 0.0
    beta: float = 0.5
    temperature: float = 1.0

    def between(self, teacher_BN: Tensor, student_BN: Tensor) -> tuple[Tensor, Tensor]:
        """Return the divergence of each row [B], and its gradient by the student's logits [B, N].

        Both arguments are log-probabilities. With f the derivative by q, the gradient is q (f -
        sum q f).
        """
        p_BN, q_BN = teacher_BN.exp(), student_BN.exp()
        match self.kind:
            case "forward_kl":
                mixed_BN = _mixture(teacher_BN, student_BN, self.skew)
                found_B = _expected(p_BN, teacher_BN, mixed_BN)
                if not self.skew:  # f = -p / q, and q f sums up to -1
                    return found_B, q_BN.sub_(p_BN)
                pull_BN = (teacher_BN + student_BN).sub_(mixed_BN).exp_().mul_(self.skew - 1)
            case "reverse_kl":
                mixed_BN = _mixture(student_BN, teacher_BN, self.skew)
                found_B = _expected(q_BN, student_BN, mixed_BN)
                pull_BN = (student_BN - mixed_BN).mul_(q_BN)
                if self.skew:
                    share_BN = (2 * student_BN).sub_(mixed_BN).exp_()
                    pull_BN.add_(share_BN, alpha=-self.skew)
            case "jsd":
                mixed_BN = _mixture(teacher_BN, student_BN, self.beta)
                found_B = self.beta * _expected(p_BN, teacher_BN, mixed_BN)
                found_B += (1 - self.beta) * _expected(q_BN, student_BN, mixed_BN)
                pull_BN = (student_BN - mixed_BN).mul_(q_BN).mul_(1 - self.beta)
        return found_B, pull_BN.sub_(q_BN.mul_(pull_BN.sum(-1, keepdim=True)))

    def __str__(self) -> str:
        detail = f", beta {self.beta:g}" if self.kind == "jsd" else ""
        skew = f", skew {self.skew:g}" if self.skew else ""
        return f"{self.kind}{detail}{skew}, at temperature {self.temperature:g}"


def _mixture(first_BN: Tensor, second_BN: Tensor, share: float) -> Tensor:
    """Return log(share first + (1 - share) second) of logarithms."""
    if not share:
        return second_BN
    return torch.logaddexp(first_BN + math.log(share), second_BN + math.log1p(-share))


def _expected(weight_BN: Tensor, first_BN: Tensor, second_BN: Tensor) -> Tensor:
    """Return sum weight (first - second), [B]; a weight of 0 counts nothing."""
    return torch.mul(first_BN - second_BN, weight_BN).sum(-1)
