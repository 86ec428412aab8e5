"""Distillation targets: the logits of a loaded teacher, or cached top-k teacher logits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from assay.model.divergence import Distribution, Divergence
from assay.model.head import LOGITS_AT_ONCE, Head, HeadRoom

LEAST = -100.0
"""Lower bound of the log-probability of all uncached tokens together, whose true value may
be -inf."""


@dataclass(frozen=True, eq=False)
class TeacherStates:
    """Hidden states [T, D] and output head of a teacher; the full logits are computed in chunks.

    Teacher and student may have vocabularies that are padded to different sizes. Teacher and
    student are compared only on tokens that are in both vocabularies.
    """

    head: Head
    hidden_TD: Tensor
    divergence: Divergence

    @property
    def temperature(self) -> float:
        """Temperature of both compared distributions."""
        return self.divergence.temperature

    def logits(self, chunk: slice, room: HeadRoom) -> Tensor:
        """Return the raw teacher logits of a chunk of tokens, [B, V]."""
        return self.head.product(self.hidden_TD[chunk], room, "teacher")

    def compare(
        self, student: Distribution, raw_BV: Tensor | None, part: slice
    ) -> tuple[Tensor, Tensor]:
        """Return the divergence of some tokens, and its gradient with respect to the student's
        logits.
        """
        assert raw_BV is not None
        taught_BV = self.head.scaled(raw_BV, self.temperature)
        ours, theirs = student.logits_BN.shape[1], taught_BV.shape[1]
        # Student logits beyond the teacher's vocabulary belong to padding, so they are cut off.
        if theirs < ours:
            student = Distribution.of(student.logits_BN[:, :theirs])
        return self.divergence.between(Distribution.of(taught_BV[:, :ours]), student)

    def top_k(self, count: int, size: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the top-k tokens [T, K], their log-probabilities, and the log-probability of all
        other tokens together [T].

        size: number of vocabulary entries to compare, from the first entry on.
        """
        room, found = HeadRoom(), list[tuple[Tensor, Tensor, Tensor]]()
        at_once = max(1, LOGITS_AT_ONCE // len(self.head.weight_VD))
        for first in range(0, len(self.hidden_TD), at_once):
            raw_BV = self.logits(slice(first, first + at_once), room)
            taught_BV = self.head.scaled(raw_BV, self.temperature)
            found.append(keep_top_k(taught_BV[:, :size], count))
        tokens, logprobs, rest = (torch.cat(column) for column in zip(*found, strict=True))
        return tokens, logprobs, rest


@dataclass(frozen=True, eq=False)
class TopKLogprobs:
    """Cached teacher logits: the top-k tokens of each position, and the probability of all other
    tokens together.

    logprobs_TK: log-probabilities of ``tokens_TK`` at the temperature of the divergence. rest_T:
    logarithm of the total probability of all other tokens. Teacher and student are compared on K +
    1 events: each of the K tokens, and any other token. The divergence over the K + 1 events is a
    lower bound of the divergence over all tokens.
    """

    tokens_TK: Tensor
    logprobs_TK: Tensor
    rest_T: Tensor
    divergence: Divergence

    @property
    def temperature(self) -> float:
        """Temperature of both compared distributions."""
        return self.divergence.temperature

    def logits(self, chunk: slice, room: HeadRoom) -> None:
        """Return None, because the cache does not have the full logits of the teacher."""

    def compare(
        self, student: Distribution, raw_BV: Tensor | None, part: slice
    ) -> tuple[Tensor, Tensor]:
        """Return the divergence of some tokens, and its gradient with respect to the student's
        logits.

        The gradient for "any other token" is distributed over these tokens in proportion to their
        probabilities.
        """
        tokens_BK = self.tokens_TK[part]
        chosen_BK = student.logits_BN.gather(-1, tokens_BK) - student.normalizer_B[:, None]
        others_BV = student.probs_BN.scatter(-1, tokens_BK, 0.0)
        mass_B1 = others_BV.sum(-1, keepdim=True)
        taught_BN = _joined(self.logprobs_TK[part].to(chosen_BK.dtype), self.rest_T[part, None])
        student_BN = _joined(chosen_BK, mass_B1.log())
        found_B, pull_BN = self.divergence.between(
            Distribution.of(taught_BN), Distribution.of(student_BN)
        )
        share_B1 = pull_BN[:, -1:] / mass_B1.clamp(min=torch.finfo(mass_B1.dtype).tiny)
        return found_B, others_BV.mul_(share_B1).scatter_(-1, tokens_BK, pull_BN[:, :-1])


def _joined(chosen_BK: Tensor, rest_B1: Tensor) -> Tensor:
    return torch.cat([chosen_BK, rest_B1.to(chosen_BK.dtype).clamp(min=LEAST)], dim=-1)


def keep_top_k(logits_BV: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the top-k tokens [B, K], their log-probabilities, and the log-probability of all other
    tokens together [B].

    Raises RuntimeError if ``count`` is larger than the vocabulary.
    """
    logprobs_BV = logits_BV.log_softmax(-1)
    logprobs_BK, tokens_BK = logprobs_BV.topk(count, dim=-1)
    rest_B = logprobs_BV.scatter_(-1, tokens_BK, -torch.inf).logsumexp(-1)
    return tokens_BK, logprobs_BK, rest_B.clamp_(min=LEAST)
