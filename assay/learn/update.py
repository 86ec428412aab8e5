"""The learner: scores a packed batch, and makes one update of the policy from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from assay.config import OptimizerConfig
from assay.learn.advantages import loss_mask
from assay.learn.algorithms import Algorithm
from assay.learn.losses import gains_where_first_met, policy_loss, row_sums, token_weights
from assay.learn.meter import Update, UpdateMeter
from assay.learn.optimizer import Optimizer
from assay.learn.passes import Passes
from assay.learn.reference import Reference
from assay.model.packing import Batch, Layout, MicroBatch


class Learner:
    """Trains a policy by an algorithm's row.

    policy: the live model. policy_version: +1 per optimizer step taken. epochs: passes over a batch;
    num_minibatches: optimizer steps a pass, each on a share of the groups. total_steps: optimizer
    steps in all, for the schedule. keep_reference: measure the KL to the starting policy even where the
    algorithm has none. max_tokens_per_micro_batch: None: by the device. lean: go through the layers by
    `assay.model.lean_decoder` where the model is of its family. seed: shuffles groups into
    minibatches. tokenizer: saved with the policy, so that a checkpoint loads as a model; None: a
    checkpoint is only good for `load_state`.

    Make it before a checkpoint is loaded: the reference is the policy at this moment.
    """

    def __init__(
        self,
        model: nn.Module,
        algorithm: Algorithm,
        optimizer: OptimizerConfig,
        *,
        total_steps: int,
        temperature: float = 1.0,
        layout: Layout = "tree",
        lean: bool = True,
        max_tokens_per_micro_batch: int | None = None,
        epochs: int = 1,
        num_minibatches: int = 1,
        keep_reference: bool = False,
        activation_checkpointing: bool = False,
        seed: int = 0,
        tokenizer: Any = None,
    ) -> None:
        self.algorithm = algorithm
        self.epochs = epochs
        self.num_minibatches = num_minibatches
        self.seed = seed
        needs_reference = keep_reference or algorithm.kl_weight > 0
        self.reference = Reference(model) if needs_reference else None
        self.optimizer = Optimizer(model, optimizer, total_steps)
        self.passes = Passes(
            model,
            self.optimizer,
            section="rl",
            temperature=temperature,
            layout=layout,
            lean=lean,
            max_tokens_per_micro_batch=max_tokens_per_micro_batch,
            activation_checkpointing=activation_checkpointing,
            tokenizer=tokenizer,
        )

    @property
    def policy(self) -> nn.Module:
        """The live model."""
        return self.passes.policy

    @property
    def policy_version(self) -> int:
        """Optimizer steps taken so far."""
        return self.optimizer.num_steps

    @property
    def device(self) -> torch.device:
        """Where the policy lives, and so where batches belong."""
        return self.passes.device

    @property
    def scores_first(self) -> bool:
        """Whether old log-probabilities are needed before the update begins.

        Where each token is first met by the unchanged policy, they are those of that very pass, and a
        pass of their own is saved.
        """
        return self.num_minibatches > 1 or self.algorithm.kl_in_reward

    @torch.no_grad()
    def score(self, batch: Batch, temperature: float | None = None) -> Batch:
        """Return the batch with old and reference log-probabilities, where they are needed now.

        temperature: that of the batch, from here on; None: as before.
        """
        if temperature is not None:
            self.passes.temperature = temperature
        with self.passes.open():
            if self.scores_first:
                batch = replace(batch, old_logprobs_T=self.passes.logprobs(batch))
            if self.reference is not None:
                with self.reference.policy() as reference:
                    batch = replace(batch, ref_logprobs_T=self.passes.logprobs(batch, reference))
        return batch

    def update(self, batch: Batch, advantages_T: Tensor) -> Update:
        """Learn from a scored batch and its advantages: ``epochs`` passes, some optimizer steps each.

        Normalizers are those of all tokens of an optimizer step, however it is split into micro-batches.
        Groups in which nothing carries gradient are passed over, and an optimizer step with no other
        groups is not taken. Raises OutOfMemory.
        """
        mask_T = loss_mask(batch, self.algorithm)
        carries_T = mask_T
        if not self._pulls_everywhere:
            carries_T = mask_T & (advantages_T != 0)
        meter = UpdateMeter(batch, advantages_T, mask_T, carries_T)
        group_T = batch.group_R[batch.row_T]
        carries_P = row_sums(carries_T.long(), group_T, batch.num_groups).tolist()
        carriers = {group for group, count in enumerate(carries_P) if count}
        with self.passes.open():
            for epoch, groups in self._minibatches(batch.num_groups):
                weights_T = self._weights(batch, mask_T, groups)
                if epoch == 0:
                    self._look_at(batch, sorted(set(groups) - carriers), meter)
                learned = sorted(set(groups) & carriers)
                for micro_batch in self.passes.split(batch, learned) if learned else []:
                    self._accumulate(micro_batch, advantages_T, weights_T, epoch, meter)
                if learned:
                    meter.add_step(self.optimizer.step())
        return Update(meter.metrics(), self.policy_version, meter.batch_as_seen(), advantages_T)

    @property
    def _pulls_everywhere(self) -> bool:
        """Whether tokens without an advantage have a gradient too."""
        row = self.algorithm
        weights = (row.entropy_weight, row.penalty_weight, row.tau)
        return row.kl_in_loss or any(weight != 0 for weight in weights)

    def save_state(self, folder: Path) -> None:
        """Write the policy in Hugging Face layout, and the optimizer's state beside it."""
        self.passes.save_state(folder)

    def load_state(self, folder: Path) -> None:
        """Restore what `save_state` wrote, bit for bit, into the live policy. Raises RunError.

        There is no random state: what is shuffled is a function of seed and policy version.
        """
        self.passes.load_state(folder)

    def _minibatches(self, num_groups: int) -> Iterator[tuple[int, list[int]]]:
        """Yield (epoch, groups) of each optimizer step; the order is a function of seed and version."""
        version = self.policy_version
        for epoch in range(self.epochs):
            order = np.arange(num_groups)
            if self.num_minibatches > 1:
                order = np.random.default_rng((self.seed, version, epoch)).permutation(num_groups)
            for part in np.array_split(order, self.num_minibatches):
                if len(part):
                    yield epoch, part.tolist()

    def _weights(self, batch: Batch, mask_T: Tensor, groups: Sequence[int]) -> Tensor:
        chosen_P = torch.zeros(batch.num_groups, dtype=torch.bool, device=mask_T.device)
        chosen_P[groups] = True
        algorithm = self.algorithm
        constant = 1.0
        if algorithm.aggregation == "constant_length":
            constant = algorithm.constant_length()
        mask_T = mask_T & chosen_P[batch.group_R[batch.row_T]]
        aggregation = algorithm.aggregation
        return token_weights(mask_T, batch.row_T, batch.num_rows, aggregation, constant).float()

    @torch.no_grad()
    def _look_at(self, batch: Batch, groups: Sequence[int], meter: UpdateMeter) -> None:
        """Measure groups that carry no gradient: a forward pass, without the backward one."""
        for micro_batch in self.passes.split(batch, groups) if groups else []:
            stats = self.passes.stats(micro_batch)
            meter.see(micro_batch.token_index_T, stats.logprobs_T, stats.entropy_T)

    def _accumulate(
        self,
        micro_batch: MicroBatch,
        advantages_T: Tensor,
        weights_T: Tensor,
        epoch: int,
        meter: UpdateMeter,
    ) -> None:
        """Add one micro-batch's share to the gradient of an optimizer step."""
        index_T, part = micro_batch.token_index_T, micro_batch.batch
        rows = {"row_T": part.row_T, "num_rows": part.num_rows, "sampled_T": part.sampled_T}
        expected = None
        if epoch == 0 and part.old_logprobs_T is None:
            expected = gains_where_first_met(
                advantages_T[index_T], weights_T[index_T], self.algorithm, **rows
            )
        with self.passes.recomputed():
            stats = self.passes.stats(micro_batch, expected=expected)
            if epoch == 0:
                meter.see(index_T, stats.logprobs_T, stats.entropy_T)
            parts = policy_loss(
                stats.logprobs_T,
                meter.old_logprobs()[index_T],
                advantages_T[index_T],
                weights_T[index_T],
                self.algorithm,
                **rows,
                behavior_logprobs_T=part.behavior_logprobs_T,
                ref_logprobs_T=part.ref_logprobs_T,
                entropy_T=stats.entropy_T,
            )
            parts.loss.backward()
        meter.add_loss(index_T, parts)
