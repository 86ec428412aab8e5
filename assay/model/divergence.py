"""Divergences between the distributions of a teacher and a student, and their gradients.

With p the teacher's and q the student's probabilities of N outcomes, and m a mixture of both:

    forward_kl = sum p log(p / m),  m = skew p + (1 - skew) q.
    reverse_kl = sum q log(q / m),  m = skew q + (1 - skew) p.
    jsd = beta sum p log(p / m) + (1 - beta) sum q log(q / m),  m = beta p + (1 - beta) q.

Without skew, forward_kl and reverse_kl are the plain KL divergences. With skew, both KL divergences
follow Ko et al., 2024 (DistiLLM, arXiv 2402.03898), section 3.1. jsd follows Agarwal et al., 2024
(GKD, arXiv 2306.13649), equation 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from assay.config.distill import DivergenceKind


@dataclass(frozen=True, slots=True, eq=False)
class Distribution:
    """B distributions over N outcomes: logits [B, N], probabilities [B, N], and log-normalizers
    [B].

    A log-probability is a logit minus the log-normalizer of the logit's row. The [B, N]
    log-probabilities are never allocated: a divergence needs only differences of logits, and the
    normalizer of each row.
    """

    logits_BN: Tensor
    probs_BN: Tensor
    normalizer_B: Tensor

    @classmethod
    def of(cls, logits_BN: Tensor) -> Distribution:
        """Create the distributions of logits."""
        probs_BN = logits_BN.softmax(-1)
        # In each row, the largest logit and the largest probability belong to the same token.
        # Logit minus log-probability gives the normalizer without a second pass of exp().
        normalizer_B = logits_BN.amax(-1) - probs_BN.amax(-1).log()
        return cls(logits_BN, probs_BN, normalizer_B)

    def mixed(self, other: Distribution, share: float) -> Distribution:
        """Return the mixture share self + (1 - share) other, with its log-probabilities as
        logits."""
        probs_BN = torch.lerp(other.probs_BN, self.probs_BN, share)
        # The logarithm must be finite where both probabilities are 0: 0 times infinity is NaN.
        probs_BN.clamp_(min=torch.finfo(probs_BN.dtype).tiny)
        return Distribution(probs_BN.log(), probs_BN, torch.zeros_like(self.normalizer_B))

    def from_other(self, other: Distribution) -> tuple[Tensor, Tensor]:
        """Return KL(self || other) [B], and log(self / other) minus this KL [B, N]."""
        above_BN = self.logits_BN - other.logits_BN
        mean_B = torch.mul(above_BN, self.probs_BN).sum(-1)
        above_BN.sub_(mean_B[:, None])
        return mean_B.sub_(self.normalizer_B).add_(other.normalizer_B), above_BN


@dataclass(frozen=True, slots=True)
class Divergence:
    """A divergence between two distributions, computed at a temperature.

    skew: parameter of the two KL divergences, in [0, 1). beta: parameter of ``jsd``, in (0, 1).
    """

    kind: DivergenceKind = "forward_kl"
    skew: float = 0.0
    beta: float = 0.5
    temperature: float = 1.0

    def between(self, teacher: Distribution, student: Distribution) -> tuple[Tensor, Tensor]:
        """Return the divergence of each row [B], and its gradient with respect to the student's
        logits [B, N].

        With f the derivative of the divergence with respect to q, the gradient is q (f - sum q f).
        For f = log(q / m), the gradient is q times the second result of the function
        `Distribution.from_other`.
        """
        p_BN, q_BN = teacher.probs_BN, student.probs_BN
        match self.kind:
            # For f = -p / q, the sum of q f over all outcomes is -1.
            case "forward_kl" if not self.skew:
                return teacher.from_other(student)[0], q_BN - p_BN
            case "forward_kl":
                mixed = teacher.mixed(student, self.skew)
                found_B, _ = teacher.from_other(mixed)
                pull_BN = torch.div(p_BN, mixed.probs_BN).mul_(q_BN).mul_(self.skew - 1)
                pull_BN.sub_(q_BN * pull_BN.sum(-1, keepdim=True))
            case "reverse_kl" if not self.skew:
                found_B, above_BN = student.from_other(teacher)
                pull_BN = above_BN.mul_(q_BN)
            case "reverse_kl":
                mixed = student.mixed(teacher, self.skew)
                found_B, above_BN = student.from_other(mixed)
                share_BN = torch.div(q_BN, mixed.probs_BN)
                pull_BN = above_BN.sub_(share_BN, alpha=self.skew).mul_(q_BN)
                pull_BN.sub_(q_BN * pull_BN.sum(-1, keepdim=True))
            case "jsd":
                mixed = teacher.mixed(student, self.beta)
                ours_B, above_BN = student.from_other(mixed)
                found_B = ours_B.lerp(teacher.from_other(mixed)[0], self.beta)
                pull_BN = above_BN.mul_(q_BN).mul_(1 - self.beta)
        return found_B, pull_BN

    def __str__(self) -> str:
        detail = f", beta {self.beta:g}" if self.kind == "jsd" else ""
        skew = f", skew {self.skew:g}" if self.skew else ""
        return f"{self.kind}{detail}{skew}, at temperature {self.temperature:g}"
