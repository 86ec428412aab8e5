"""One policy update: old log-probabilities, losses and optimizer steps."""

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
    """Return the mask of trained tokens that carry gradient, [T] bool.

    Tokens with a nonzero advantage carry gradient. All trained tokens carry gradient if the loss
    has a KL to the reference or an entropy bonus. A penalty on KL(old || new), ``tau`` and a trust
    region have a zero gradient at the old policy. The penalty, ``tau`` and the trust region
    therefore count only if some token in the batch has an advantage: otherwise the policy never
    moves away from the old policy.
    """
    has_T = advantages.mask_T & (advantages.advantages_T != 0)
    row = algorithm
    # These terms have zero gradient at the old policy, which only advantages move away from.
    holds_back = any((row.penalty_weight, row.tau, row.trust_region))
    if row.kl_in_loss or row.entropy_weight or (holds_back and bool(has_T.any())):
        return advantages.mask_T
    return has_T


class PolicyUpdate:
    """Data per token of one policy update.

    carries_T: mask of the tokens that carry gradient. learns: whether the update trains the policy;
    if False, the policy is only measured.

    Attributes:

    policy_version: version before the update.
    old_logprobs_T: log-probabilities before the update, from scoring or from the first forward pass
        of each token in the update.
    first_logprobs_T, entropy_T: values of the first forward pass of each token in the update.
    met_T: mask of the tokens that have had a forward pass.
    old_kl_T: estimates of KL(old || new), from the last loss of each token or from after the update
        (``kl_after``). NaN: not measured.
    losses: loss and ``carries_T`` of each micro-batch.
    steps: reports of all optimizer steps, including those that were skipped.
    natural_steps: reports of TRPO steps.
    stopped_at: number of steps before an early stop; None without an early stop.
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
        # NaN marks a token that no forward pass has reached yet.
        self.old_kl_T = torch.full_like(nothing_T, torch.nan)
        self.kl_after = False
        self.losses: list[tuple[LossParts, Tensor]] = []
        self._num_exchanged = 0
        self._fresh: list[Tensor] = []
        self.policy_version = passes.optimizer.num_steps
        self.steps: list[StepReport] = []
        self.natural_steps: list[NaturalStep] = []
        self.stopped_at: int | None = None
        self._carriers = groups_with(batch, carries_T) if learns else set[int]()
        self._weights_T = nothing_T
        self._groups: list[int] = []

    def begin_step(self, groups: Sequence[int], epoch: int) -> list[MicroBatch]:
        """Return the micro-batches of an optimizer step on these groups; without a step, the list
        is empty.

        Groups without gradient are skipped; in the first epoch, a forward pass measures these
        groups.
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
        """Return the gradient of the loss with respect to the token statistics, if it is known in
        advance.
        """
        # After the first step that uses the same scored log-probabilities, ratios are not 1.
        if self.batch.old_logprobs_T is not None:
            return None
        index_T = micro_batch.token_index_T
        of_tokens = self.advantages.advantages_T[index_T], self._weights_T[index_T]
        return gains_where_first_met(*of_tokens, self.algorithm, micro_batch.batch)

    def see(self, micro_batch: MicroBatch, stats: TokenStats) -> None:
        """Record the log-probabilities and entropies of the first forward pass of a token."""
        index_T = micro_batch.token_index_T
        self.first_logprobs_T[index_T] = stats.logprobs_T.detach().float()
        self.entropy_T[index_T] = stats.entropy_T.detach().float()
        # Assigning a Python number by index would make the host wait for the device.
        self.met_T.index_fill_(0, index_T, True)
        self._fresh.append(index_T)

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
        """Record the loss of one micro-batch without its graph."""
        index_T = micro_batch.token_index_T
        parts = replace(parts, loss=parts.loss.detach())
        self.losses.append((parts, self.carries_T[index_T]))
        self.old_kl_T[index_T] = parts.old_kl_T.float()
        self._fresh.append(index_T)

    def exchange(self) -> None:
        """Exchange the records since the last exchange among the ranks."""
        ranks, fresh = self.passes.ranks, self._fresh
        self._fresh = []
        if not ranks.divides:
            return
        columns = (self.first_logprobs_T, self.entropy_T, self.met_T, self.old_kl_T)
        index_T = torch.cat(fresh).unique() if fresh else torch.zeros(0, dtype=torch.long)
        found = index_T.cpu(), [column_T[index_T].cpu() for column_T in columns]
        for others_T, values in ranks.gather(found):
            there_T = others_T.to(self.batch.device)
            for column_T, value_T in zip(columns, values, strict=True):
                column_T[there_T] = value_T.to(column_T.device)
        # All ranks have the losses in the same order, so their metrics are equal bit for bit.
        mine = self.losses[self._num_exchanged :]
        self.losses[self._num_exchanged :] = ranks.concatenate(mine)
        self._num_exchanged = len(self.losses)

    def went_too_far(self) -> bool:
        """Whether the current estimate of KL(old || new) exceeds `Algorithm.stop_kl`.

        If the result is True, the accumulated gradient is dropped. Before the first step the result
        is False, because the policy has not moved yet.
        """
        limit = self.algorithm.stop_kl
        if limit is None or not self.steps or self.step_kl() <= limit:
            return False
        # The gradient of a skipped step must not enter a later step, so it is dropped.
        self.passes.optimizer.zero_grad()
        self.stopped_at = len(self.steps)
        return True

    def step_kl(self) -> float:
        """Return the mean of KL(old || new) over the trained tokens of the current step."""
        chosen_T = self.advantages.mask_T & tokens_of(self.batch, self._groups)
        return self.old_kl_T[chosen_T].double().mean().item()

    def step(self) -> None:
        """Apply the accumulated gradient, by the optimizer or as a natural gradient step."""
        bound = self.algorithm.trust_region
        optimizer = self.passes.optimizer
        self.steps.append(optimizer.step() if bound is None else self._natural_step(bound))

    def measure_old_kl(self) -> None:
        """Measure KL(old || new) after the update by a forward pass."""
        difference_T = log_ratio(self.passes.logprobs(self.batch), self.old_logprobs_T)
        self.old_kl_T = torch.expm1(difference_T) - difference_T
        self.kl_after = True

    @torch.no_grad()
    def _look_at(self, groups: Sequence[int]) -> None:
        """Measure groups without gradient by a forward pass."""
        micro_batches = self.passes.split(self.batch, groups) if groups else []
        for micro_batch in self.passes.each(micro_batches, "measuring groups"):
            self.see(micro_batch, self.passes.stats(micro_batch))

    @property
    def learns_now(self) -> bool:
        """Whether the current optimizer step has groups with gradient on any rank."""
        return bool(self._groups)

    def _natural_step(self, max_kl: float) -> StepReport:
        """Take one TRPO step along the accumulated gradient."""
        optimizer = self.passes.optimizer
        micro_batches = self.passes.split(self.batch, self._groups)
        masks = [self.advantages.mask_T[one.token_index_T] for one in micro_batches]
        ranks = self.passes.ranks
        kl = TokenKL(self.passes.policy, micro_batches, masks, self.passes.temperature, ranks)
        found = optimizer.summed_gradients()
        gradients = [found.get(name, torch.zeros_like(p)) for name, p in optimizer.trained.items()]
        # The trust region limits the step, so the gradient norm is logged but not clipped.
        norm = torch.nn.utils.get_total_norm(gradients).item()

        @torch.no_grad()
        def evaluate() -> tuple[float, float]:
            logprobs, entropies, distance = kl.look()
            looks = zip(micro_batches, logprobs, entropies, strict=True)
            own = sum(self.loss_of(m)(new, entropy_T=e).loss.item() for m, new, e in looks)
            return sum(ranks.gather(own)), distance

        taken = natural_step(kl.parameters, gradients, kl.fisher, evaluate, max_kl)
        self.natural_steps.append(taken)
        optimizer.zero_grad()
        # A natural gradient step replaces the optimizer's step, so the version advances here.
        optimizer.num_steps += taken.taken
        return StepReport(norm, taken.length, skipped=not taken.taken)
