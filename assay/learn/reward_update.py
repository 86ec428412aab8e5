"""Learner of reward models: optimizer steps on pairs, or on labels of texts or steps."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

import numpy as np
import torch
from torch import Tensor

from assay.learn.base import Update, step_metrics, to_floats
from assay.learn.passes import Passes, PassesLearner
from assay.learn.reward_losses import (
    RIGHT,
    RewardObjective,
    label_losses,
    log_odds,
    pair_losses,
    place_weights,
)
from assay.model.score_batch import ScoreBatch, ScoredGroup, micro_batches, pack_scores
from assay.model.score_head import read_scores
from assay.types import Floats


class RewardLearner(PassesLearner):
    """Trains a model with a score head (`assay.model.score_head`)."""

    def __init__(self, passes: Passes, objective: RewardObjective) -> None:
        super().__init__(passes)
        self.objective = objective

    def update(self, groups: Sequence[ScoredGroup]) -> Update:
        """Take one optimizer step on the mean loss over the pairs, texts or steps of these groups.

        The normalizer covers the whole optimizer step, however it is split into micro-batches.
        Groups stay whole. Raises OutOfMemory.
        """
        passes = self.passes
        num_units = self._num_units(groups)
        seen: list[tuple[Tensor, Tensor]] = []
        losses: list[Tensor] = []
        with self.clock.phase("update"), passes.open():
            mine = [groups[n] for n in self._mine(groups)]
            rows = [*micro_batches(mine, passes.max_tokens, passes.layout)]
            for part in self.passes.counted(rows, "update"):
                batch = pack_scores(part, self.device)
                with passes.recomputed():
                    scores_M = self._scores(batch, learns=True)
                    loss = self._loss(scores_M, batch) / num_units
                    loss.backward()
                losses.append(loss.detach())
                seen.append((scores_M.detach(), batch.labels_M))
            report = passes.optimizer.step()
        losses, seen = passes.ranks.concatenate(losses), passes.ranks.concatenate(seen)
        metrics = to_floats({"loss/total": torch.stack(losses).sum(), **self._facts(seen)})
        metrics["tokens/trained"] = float(sum(group.num_tokens(passes.layout) for group in groups))
        return Update(metrics | step_metrics([report]), self.policy_version)

    @torch.no_grad()
    def scores(self, groups: Sequence[ScoredGroup]) -> list[Floats]:
        """Return the scores at the scored tokens of each text, one array per text; for labels,
        these are log-odds.
        """
        found: list[Floats] = []
        passes, mine = self.passes, self._mine(groups)
        with passes.open():
            own = [groups[n] for n in mine]
            for part in micro_batches(own, passes.max_tokens, passes.layout):
                scores_M = self._scores(pack_scores(part, self.device), learns=False)
                counts = [len(text.places) for group in part for text in group.texts]
                found += np.split(scores_M.cpu().numpy(), np.cumsum(counts)[:-1])
        texts = iter(found)
        scored = [(n, [next(texts) for _ in groups[n].texts]) for n in mine]
        ordered = sorted(passes.ranks.concatenate(scored), key=itemgetter(0))
        return [scores for _, of_group in ordered for scores in of_group]

    def _mine(self, groups: Sequence[ScoredGroup]) -> list[int]:
        """Return the indices of the groups on which this rank trains."""
        ranks = self.passes.ranks
        # Counting tokens compares all texts of a group, which a single process need not do.
        costs = [group.num_tokens(self.passes.layout) if ranks.divides else 0 for group in groups]
        return ranks.share(range(len(groups)), costs)

    def _scores(self, batch: ScoreBatch, learns: bool) -> Tensor:
        passes = self.passes
        accumulators = passes.optimizer.accumulator if learns else None
        return log_odds(read_scores(self.policy, batch, passes.layout, passes.lean, accumulators))

    def _num_units(self, groups: Sequence[ScoredGroup]) -> float:
        """Return the normalizer of the loss: the number of pairs, texts or steps."""
        if self.objective.kind == "preference":
            return len(groups)
        # The first backward pass already needs the normalizer of the whole step.
        texts = [text for group in groups for text in group.texts]
        if self.objective.kind == "outcome":
            return len(texts)
        labels_M = torch.from_numpy(np.concatenate([text.labels for text in texts]))
        row_M = np.repeat(np.arange(len(texts)), [len(text.labels) for text in texts])
        return place_weights(labels_M, torch.from_numpy(row_M), self.objective).sum().item()

    def _loss(self, scores_M: Tensor, batch: ScoreBatch) -> Tensor:
        """Return the sum of the losses in a micro-batch."""
        objective = self.objective
        if objective.kind == "preference":
            chosen_P, rejected_P = scores_M.view(-1, 2).unbind(1)
            return pair_losses(chosen_P, rejected_P, batch.margins_P, objective.centering).sum()
        weights_M = place_weights(batch.labels_M, batch.row_M, objective)
        return (weights_M * label_losses(scores_M, batch.labels_M, objective.loss)).sum()

    def _facts(self, seen: Sequence[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
        """Return metrics of the scores in the step, measured before the update."""
        scores_M = torch.cat([scores for scores, _ in seen]).double()
        labels_M = torch.cat([labels for _, labels in seen]).double()
        if self.objective.kind == "preference":
            chosen_P, rejected_P = scores_M.view(-1, 2).unbind(1)
            return {
                "scores/chosen": chosen_P.mean(),
                "scores/rejected": rejected_P.mean(),
                "scores/margin": (chosen_P - rejected_P).mean(),
                "scores/accuracy": (chosen_P > rejected_P).double().mean(),
            }
        right_M = labels_M >= RIGHT
        facts = {"scores/accuracy": ((scores_M >= 0) == right_M).double().mean()}
        for name, mask_M in (("right", right_M), ("wrong", ~right_M)):
            if mask_M.any():
                facts[f"scores/{name}"] = torch.sigmoid(scores_M[mask_M]).mean()
        return facts
