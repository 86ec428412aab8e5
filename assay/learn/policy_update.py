"""The policy's part in one update: gradients of each optimizer step, and the step itself."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from assay.learn.advantages import loss_weights
from assay.learn.critic import Critic, Lesson
from assay.learn.losses import LossParts, gains_where_first_met, policy_loss
from assay.learn.meter import UpdateMeter
from assay.learn.minibatches import groups_with, tokens_of
from assay.learn.optimizer import StepReport
from assay.learn.passes import Passes
from assay.learn.row import Algorithm
from assay.learn.surrogates import log_ratio
from assay.learn.trust_region import TokenKL, natural_step
from assay.model.logprobs import TokenStats
from assay.model.packing import Batch, MicroBatch


def carriers(algorithm: Algorithm, advantages_T: Tensor, mask_T: Tensor) -> Tensor:
    """Return which of the tokens that are trained on carry gradient, [T] bool.

    Those with an advantage; all of them where the KL to a reference or the entropy is in the loss.
    What holds the policy to the one before the update (a penalty, ``tau``, a trust region) has no
    gradient until that one is left, which takes an advantage somewhere in the batch: then it counts.
    """
    has_T = mask_T & (advantages_T != 0)
    row = algorithm
    holds_back = any((row.penalty_weight, row.tau, row.trust_region))
    if row.kl_in_loss or row.entropy_weight or (holds_back and bool(has_T.any())):
        return mask_T
    return has_T


class PolicyUpdate:
    """What the optimizer steps of one update have in common.

    mask_T: the tokens that are trained on. learns: False where the policy is only looked at. joint: a
    critic on the policy's layers and what it learns here; its loss is added to the policy's.
    """

    def __init__(
        self,
        passes: Passes,
        algorithm: Algorithm,
        batch: Batch,
        advantages_T: Tensor,
        mask_T: Tensor,
        *,
        learns: bool = True,
        joint: tuple[Critic, Lesson] | None = None,
    ) -> None:
        self.passes = passes
        self.algorithm = algorithm
        self.batch = batch
        self.advantages_T = advantages_T
        self.mask_T = mask_T
        self.joint = joint
        carries_T = carriers(algorithm, advantages_T, mask_T) if joint is None else mask_T
        self.meter = UpdateMeter(batch, advantages_T, mask_T, carries_T)
        self._carriers = groups_with(batch, carries_T) if learns else set[int]()
        self._weights_T = torch.zeros_like(advantages_T)
        self._learned: list[int] = []

    def accumulate(self, groups: Sequence[int], epoch: int) -> bool:
        """Add up the gradient of an optimizer step on these groups; False where there is none.

        Groups in which nothing carries gradient are passed over: in the first epoch they are looked at.
        """
        if epoch == 0:
            self._look_at(sorted(set(groups) - self._carriers))
        self._learned = sorted(set(groups) & self._carriers)
        if not self._learned:
            return False
        step_T = tokens_of(self.batch, groups)
        self._weights_T = loss_weights(self.batch, self.algorithm, step_T).float()
        for micro_batch in self.passes.split(self.batch, self._learned):
            self._add(micro_batch, epoch)
        return True

    def went_too_far(self) -> bool:
        """Whether KL(old || new), as just accumulated, exceeds `Algorithm.stop_kl`.

        Never before the first step: the policy has not moved.
        """
        if self.algorithm.stop_kl is None or not self.meter.num_steps:
            return False
        chosen_T = self.mask_T & tokens_of(self.batch, self._learned)
        return self.meter.old_kl(chosen_T) > self.algorithm.stop_kl

    def step(self) -> None:
        """Take the step whose gradient was accumulated: the optimizer's, or a natural one."""
        bound = self.algorithm.trust_region
        if bound is None:
            self.meter.add_step(self.passes.optimizer.step())
        else:
            self.meter.add_step(self._natural_step(bound))
        if self.joint is not None:
            critic, lesson = self.joint
            critic.step(lesson)

    def drop(self) -> None:
        """Drop the gradient that was accumulated, and note that the update ends before this step."""
        self.passes.optimizer.zero_grad()
        if self.joint is not None:
            self.joint[0].optimizer.zero_grad()
        self.meter.stopped_at = self.meter.num_steps

    def measure_old_kl(self) -> None:
        """Measure KL(old || new) after the update, by a forward pass."""
        difference_T = log_ratio(self.passes.logprobs(self.batch), self.meter.old_logprobs())
        self.meter.see_old_kl(torch.expm1(difference_T) - difference_T)

    @torch.no_grad()
    def _look_at(self, groups: Sequence[int]) -> None:
        """Measure groups that carry no gradient: a forward pass, without the backward one."""
        for micro_batch in self.passes.split(self.batch, groups) if groups else []:
            stats = self.passes.stats(micro_batch)
            self.meter.see(micro_batch.token_index_T, stats.logprobs_T, stats.entropy_T)

    def _add(self, micro_batch: MicroBatch, epoch: int) -> None:
        """Add one micro-batch's share to the gradient of an optimizer step."""
        index_T, part = micro_batch.token_index_T, micro_batch.batch
        expected = None
        if epoch == 0 and part.old_logprobs_T is None:
            expected = gains_where_first_met(
                self.advantages_T[index_T],
                self._weights_T[index_T],
                self.algorithm,
                row_T=part.row_T,
                num_rows=part.num_rows,
                sampled_T=part.sampled_T,
            )
        with self.passes.recomputed():
            stats = self.passes.stats(micro_batch, expected=expected)
            if epoch == 0:
                self.meter.see(index_T, stats.logprobs_T, stats.entropy_T)
            parts = self._loss(micro_batch, stats.logprobs_T, stats.entropy_T)
            (parts.loss + self._value_loss(stats, index_T)).backward()
        self.meter.add_loss(index_T, parts)

    def _loss(self, micro_batch: MicroBatch, logprobs_T: Tensor, entropy_T: Tensor) -> LossParts:
        index_T, part = micro_batch.token_index_T, micro_batch.batch
        return policy_loss(
            logprobs_T,
            self.meter.old_logprobs()[index_T],
            self.advantages_T[index_T],
            self._weights_T[index_T],
            self.algorithm,
            row_T=part.row_T,
            num_rows=part.num_rows,
            sampled_T=part.sampled_T,
            behavior_logprobs_T=part.behavior_logprobs_T,
            ref_logprobs_T=part.ref_logprobs_T,
            entropy_T=entropy_T,
        )

    def _value_loss(self, stats: TokenStats, index_T: Tensor) -> Tensor | float:
        """Return the loss of a critic on the policy's layers, weighed; 0 where there is none."""
        if self.joint is None:
            return 0.0
        critic, lesson = self.joint
        return self.algorithm.value_weight * lesson.loss(critic.head(stats.hidden_TD), index_T)

    def _natural_step(self, max_kl: float) -> StepReport:
        """Take one step of TRPO on the gradient that was accumulated."""
        optimizer = self.passes.optimizer
        micro_batches = self.passes.split(self.batch, self._learned)
        masks = [self.mask_T[micro_batch.token_index_T] for micro_batch in micro_batches]
        kl = TokenKL(self.passes.policy, micro_batches, masks, self.passes.temperature)
        found = optimizer.gradients
        gradients = [found.get(name, torch.zeros_like(p)) for name, p in optimizer.trained.items()]
        norm = torch.nn.utils.get_total_norm(gradients).item()

        @torch.no_grad()
        def evaluate() -> tuple[float, float]:
            logprobs, entropies, distance = kl.look()
            looks = zip(micro_batches, logprobs, entropies, strict=True)
            return sum(self._loss(*look).loss.item() for look in looks), distance

        taken = natural_step(kl.parameters, gradients, kl.fisher, evaluate, max_kl)
        self.meter.natural_steps.append(taken)
        optimizer.zero_grad()
        optimizer.num_steps += taken.taken
        return StepReport(norm, taken.length, skipped=not taken.taken)
