"""The supervised learner: one optimizer step makes given completions more likely."""

from __future__ import annotations

import torch
from torch import Tensor

from assay.learn.base import Update, step_metrics, to_floats
from assay.learn.losses import token_weights
from assay.learn.passes import PassesLearner
from assay.model.head import Gains
from assay.model.packing import Batch


class SFTLearner(PassesLearner):
    """Trains a policy on traces."""

    def update(self, batch: Batch) -> Update:
        """Make one optimizer step on -sum_t log p(token_t) / T over the sampled tokens.

        Raises OutOfMemory.
        """
        passes = self.passes
        weights_T = token_weights(
            batch.sampled_T, batch.row_T, batch.num_rows, "token_mean"
        ).float()
        losses: list[Tensor] = []
        with self.clock.phase("update"), passes.open():
            for micro_batch in passes.split(batch):
                index_T = micro_batch.token_index_T
                with passes.recomputed():
                    stats = passes.stats(micro_batch, expected=Gains(-weights_T[index_T]))
                    loss = -(weights_T[index_T] * stats.logprobs_T).sum()
                    loss.backward()
                entropy = (weights_T[index_T] * stats.entropy_T.detach()).sum()
                losses.append(torch.stack([loss.detach(), entropy]))
            report = passes.optimizer.step()
        nll, entropy = torch.stack(losses).sum(0)
        metrics = to_floats({"loss/nll": nll, "entropy/mean": entropy})
        metrics["tokens/trained"] = float(batch.sampled_T.sum())
        return Update(metrics | step_metrics([report]), self.policy_version)
