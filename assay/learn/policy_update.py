"""Token data of one update: old log-probabilities, losses and optimizer steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from assay.learn.advantages import Advantages, loss_weights
from assay.learn.algorithms import Algorithm
from assay.learn.losses import LossParts, gains_where_first_met, policy_loss
from assay.learn.optimizer import StepReport
from assay.learn.passes import Passes
from assay.learn.rows import groups_with, tokens_of
from assay.learn.surrogates import log_ratio
from assay.learn.trust_region import NaturalStep, TokenKL, natural_step
from assay.model.head import Gains
from assay.model.logprobs import TokenStats
from assay.model.packing import Batch, MicroBatch


def carriers(algorithm: Algorithm, advantages: Advantages) -> Tensor:
    """Return which of the tokens that are trained on carry gradient, [T] bool.

    Those with an advantage; all of them where the KL to a reference or the entropy is in the loss.
    What holds the policy to the one before the update (a penalty, ``tau``, a trust region) has no
    gradient until that one is left, which takes an advantage somewhere in the batch: then it
    counts.
    """
    has_T = advantages.mask_T & (advantages.advantages_T != 0)
    row = algorithm
    holds_back = any((row.penalty_weight, row.tau, row.trust_region))
    if row.kl_in_loss or row.entropy_weight or (holds_back and bool(has_T.any())):
        return advantages.mask_T
    return has_T


class PolicyUpdate:
    """Token data of one policy update.

    policy_version: before the update. carries_T: the tokens that carry gradient. learns: False
    where the policy is only looked at.

    old_logprobs_T: of the policy before the update, as it was scored, or as each token was first
    met; first_logprobs_T, entropy_T: as first met; met_T: which were. old_kl_T: estimates of KL(old
    || new), each where the token was last met in a loss, or after the update (``kl_after``); not a
    number before. losses: of each micro-batch, with the tokens that it has of ``carries_T``. steps:
    of the optimizer, those that were skipped among them. natural_steps: of TRPO. stopped_at: the
    steps after which the update was ended early; None: it was not.
    """

    def __init__(
        self,
        passes: Passes,
        algorithm: Algorithm,
        batch: Batch,
        advantages: Advantages,
        carries_T: Tensor,
        learns: bool = True,
    ) -> None:
        self.passes = passes
        self.algorithm = algorithm
        self.batch = batch
        self.advantages = advantages
        self.carries_T = carries_T
        nothing_T = torch.zeros_like(batch.behavior_logprobs_T)
        scored_T = batch.old_logprobs_T
        self.first_logprobs_T = nothing_T.clone()
        self.old_logprobs_T = self.first_logprobs_T if scored_T is None else scored_T
        self.entropy_T = nothing_T.clone()
        self.met_T = torch.zeros_like(batch.sampled_T)
        self.old_kl_T = torch.full_like(nothing_T, torch.nan)
        self.kl_after = False
        self.losses: list[tuple[LossParts, Tensor]] = []
        self.policy_version = passes.optimizer.num_steps
        self.steps: list[StepReport] = []
        self.natural_steps: list[NaturalStep] = []
        self.stopped_at: int | None = None
        self._carriers = groups_with(batch, carries_T) if learns else set[int]()
        self._weights_T = nothing_T
        self._groups: list[int] = []

    def begin_step(self, groups: Sequence[int], epoch: int) -> list[MicroBatch]:
        """Return what an optimizer step on these groups learns from; none: there is no such step.

        Groups in which nothing carries gradient are passed over: in the first epoch they are looked
        at.
        """
        if epoch == 0:
            self._look_at(sorted(set(groups) - self._carriers))
        self._groups = sorted(set(groups) & self._carriers)
        if not self._groups:
            return []
        step_T, masks = tokens_of(self.batch, groups), self.advantages
        chosen = (masks.mask_T & step_T, masks.counted_T & step_T)
        self._weights_T = loss_weights(self.batch, self.algorithm, *chosen).float()
        return self.passes.split(self.batch, self._groups)

    def gains(self, micro_batch: MicroBatch) -> Gains | None:
        """Return the loss's gradients by each token, where they are known before it is met."""
        if self.batch.old_logprobs_T is not None:
            return None
        index_T = micro_batch.token_index_T
        of_tokens = self.advantages.advantages_T[index_T], self._weights_T[index_T]
        return gains_where_first_met(*of_tokens, self.algorithm, micro_batch.batch)

    def see(self, micro_batch: MicroBatch, stats: TokenStats) -> None:
        """Keep what the policy gave for tokens where the update first meets them."""
        index_T = micro_batch.token_index_T
        self.first_logprobs_T[index_T] = stats.logprobs_T.detach().float()
        self.entropy_T[index_T] = stats.entropy_T.detach().float()
        self.met_T[index_T] = True

    def loss_of(self, micro_batch: MicroBatch) -> Callable[..., LossParts]:
        """Return `policy_loss` as a function of log-probabilities and entropies alone."""
        index_T = micro_batch.token_index_T
        return partial(
            policy_loss,
            old_logprobs_T=self.old_logprobs_T[index_T],
            advantages_T=self.advantages.advantages_T[index_T],
            weights_T=self._weights_T[index_T],
            algorithm=self.algorithm,
            batch=micro_batch.batch,
        )

    def add_loss(self, micro_batch: MicroBatch, parts: LossParts) -> None:
        """Keep the loss of one micro-batch, without its gradient."""
        index_T = micro_batch.token_index_T
        parts = replace(parts, loss=parts.loss.detach())
        self.losses.append((parts, self.carries_T[index_T]))
        self.old_kl_T[index_T] = parts.old_kl_T.float()

    def went_too_far(self) -> bool:
        """Whether KL(old || new), as just accumulated, exceeds `Algorithm.stop_kl`.

        Then the gradient is dropped. Never before the first step: the policy has not moved.
        """
        limit = self.algorithm.stop_kl
        if limit is None or not self.steps or self.step_kl() <= limit:
            return False
        self.passes.optimizer.zero_grad()
        self.stopped_at = len(self.steps)
        return True

    def step_kl(self) -> float:
        """Return the mean KL(old || new) over the tokens of the step at hand."""
        chosen_T = self.advantages.mask_T & tokens_of(self.batch, self._groups)
        return self.old_kl_T[chosen_T].double().mean().item()

    def step(self) -> None:
        """Take the step whose gradient was accumulated: the optimizer's, or a natural one."""
        bound = self.algorithm.trust_region
        optimizer = self.passes.optimizer
        self.steps.append(optimizer.step() if bound is None else self._natural_step(bound))

    def measure_old_kl(self) -> None:
        """Measure KL(old || new) after the update, by a forward pass."""
        difference_T = log_ratio(self.passes.logprobs(self.batch), self.old_logprobs_T)
        self.old_kl_T = torch.expm1(difference_T) - difference_T
        self.kl_after = True

    @torch.no_grad()
    def _look_at(self, groups: Sequence[int]) -> None:
        """Measure groups that carry no gradient: a forward pass, without the backward one."""
        micro_batches = self.passes.split(self.batch, groups) if groups else []
        for micro_batch in self.passes.clock.each(micro_batches, "measuring groups"):
            self.see(micro_batch, self.passes.stats(micro_batch))

    def _natural_step(self, max_kl: float) -> StepReport:
        """Take one step of TRPO on the gradient that was accumulated."""
        optimizer = self.passes.optimizer
        micro_batches = self.passes.split(self.batch, self._groups)
        masks = [self.advantages.mask_T[one.token_index_T] for one in micro_batches]
        kl = TokenKL(self.passes.policy, micro_batches, masks, self.passes.temperature)
        found = optimizer.gradients
        gradients = [found.get(name, torch.zeros_like(p)) for name, p in optimizer.trained.items()]
        norm = torch.nn.utils.get_total_norm(gradients).item()

        @torch.no_grad()
        def evaluate() -> tuple[float, float]:
            logprobs, entropies, distance = kl.look()
            looks = zip(micro_batches, logprobs, entropies, strict=True)
            return sum(
                self.loss_of(m)(new, entropy_T=e).loss.item() for m, new, e in looks
            ), distance

        taken = natural_step(kl.parameters, gradients, kl.fisher, evaluate, max_kl)
        self.natural_steps.append(taken)
        optimizer.zero_grad()
        optimizer.num_steps += taken.taken
        return StepReport(norm, taken.length, skipped=not taken.taken)
