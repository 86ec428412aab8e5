"""Supervised learner: optimizer steps on target completions or on the distributions of a
teacher."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from assay.learn.base import Update, step_metrics, to_floats
from assay.learn.losses import token_weights
from assay.learn.passes import Passes, PassesLearner
from assay.model.head import Gains, Target
from assay.model.packing import Batch, MicroBatch


class Teacher(Protocol):
    """Target distributions for the tokens of a batch, from a teacher."""

    def target(self, micro_batch: MicroBatch, passes: Passes) -> Target:
        """Return the target distributions at the tokens of a micro-batch. passes: runner of the
        policy.
        """
        ...


class SFTLearner(PassesLearner):
    """Trains a policy on traces by cross-entropy, optionally with distillation from a teacher.

    cross_entropy: weight c of the cross-entropy in the loss. The divergence from the teacher has
        the weight 1 - c.
    teacher: teacher of updates that are called without a teacher, such as the copy that each
        learner rank loads.
    """

    def __init__(
        self, passes: Passes, cross_entropy: float = 1.0, teacher: Teacher | None = None
    ) -> None:
        super().__init__(passes)
        self.cross_entropy = cross_entropy
        self.teacher = teacher

    def update(self, batch: Batch, teacher: Teacher | None = None) -> Update:
        """Take one optimizer step on the mean loss over the sampled tokens.

            With a teacher, the loss of a token is -c log p(token) + (1 - c) temperature^2 D.

        Here c is the weight of the cross-entropy, and D is the divergence of the two distributions
        at the temperature of the teacher (Hinton et al., 2015, arXiv 1503.02531, section 2). The
        factor temperature^2 keeps the scale of the gradient. Without a teacher, the loss has no
        divergence term. Raises OutOfMemory.
        """
        passes = self.passes
        teacher = self.teacher if teacher is None else teacher
        weights_T = token_weights(
            batch.sampled_T, batch.row_T, batch.num_rows, "token_mean"
        ).float()
        sums: list[Tensor] = []
        with self.clock.phase("update"), passes.open():
            for micro_batch in passes.each(passes.split(batch), "update"):
                part_T = weights_T[micro_batch.token_index_T]
                target = None if teacher is None else teacher.target(micro_batch, passes)
                pull = 0.0 if target is None else (1 - self.cross_entropy) * target.temperature**2
                # The loss is linear in the token statistics, so its gradient is known in advance.
                gains = Gains(
                    -self.cross_entropy * part_T,
                    divergence_T=None if target is None else pull * part_T,
                )
                with passes.recomputed():
                    stats = passes.stats(micro_batch, expected=gains, target=target)
                    loss = -self.cross_entropy * (part_T * stats.logprobs_T).sum()
                    if stats.divergence_T is not None:
                        loss = loss + pull * (part_T * stats.divergence_T).sum()
                    passes.backward(loss)
                parts = [-stats.logprobs_T, stats.entropy_T, stats.divergence_T]
                found = [(part_T * part.detach()).sum() for part in parts if part is not None]
                sums.append(torch.stack([loss.detach(), *found]))
            report = passes.optimizer.step()
        sums = passes.ranks.concatenate(sums)
        names = ("loss/total", "loss/nll", "entropy/mean", "loss/divergence")
        metrics = to_floats(dict(zip(names, torch.stack(sums).sum(0), strict=False)))
        if teacher is None:
            # Without a teacher, loss/total would only repeat loss/nll.
            del metrics["loss/total"]
        metrics["tokens/trained"] = float(batch.sampled_T.sum())
        return Update(metrics | step_metrics([report]), self.policy_version)
