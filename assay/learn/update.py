"""The learner: scores a packed batch, and makes one update of the policy from it."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from assay.config import OptimizerConfig
from assay.learn.advantages import loss_mask
from assay.learn.algorithms import Algorithm
from assay.learn.checkpoint import restore_weights
from assay.learn.losses import gains_where_first_met, policy_loss, row_sums, token_weights
from assay.learn.memory import RecomputedActivations
from assay.learn.meter import UpdateMeter, step_metrics, to_floats
from assay.learn.optimizer import Optimizer
from assay.learn.reference import Reference
from assay.model.head import Gains, HeadRoom
from assay.model.layouts import micro_batch_tokens
from assay.model.load import save_model
from assay.model.logprobs import TokenStats, token_logprobs
from assay.model.memory import out_of_memory_names
from assay.model.packing import Batch, Layout, MicroBatch


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """What an update did. batch, advantages_T: what was learned from, as the rollout log keeps it."""

    metrics: dict[str, float]
    policy_version: int
    batch: Batch | None = None
    advantages_T: Tensor | None = None


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
        self.policy = model
        self.tokenizer = tokenizer
        self.algorithm = algorithm
        self.temperature = temperature
        self.layout: Layout = layout
        self.lean = lean
        self.max_tokens_per_micro_batch = micro_batch_tokens(
            max_tokens_per_micro_batch, self.device.type
        )
        self.epochs = epochs
        self.num_minibatches = num_minibatches
        self.seed = seed
        needs_reference = keep_reference or algorithm.kl_weight > 0
        self.reference = Reference(model) if needs_reference else None
        self.optimizer = Optimizer(model, optimizer, total_steps)
        self._head_room = HeadRoom()
        self._recomputed = RecomputedActivations(model) if activation_checkpointing else None

    @property
    def policy_version(self) -> int:
        """Optimizer steps taken so far."""
        return self.optimizer.num_steps

    @property
    def device(self) -> torch.device:
        """Where the policy lives, and so where batches belong."""
        return next(self.policy.parameters()).device

    @property
    def scores_first(self) -> bool:
        """Whether old log-probabilities are needed before the update begins.

        Where each token is first met by the unchanged policy, they are those of that very pass, and a
        pass of their own is saved.
        """
        return self.num_minibatches > 1 or self.algorithm.kl_in_reward

    @torch.no_grad()
    def score(self, batch: Batch) -> Batch:
        """Return the batch with old and reference log-probabilities, where they are needed now."""
        with self._passes("rl"):
            if self.scores_first:
                batch = replace(batch, old_logprobs_T=self._logprobs(self.policy, batch))
            if self.reference is not None:
                with self.reference.policy() as reference:
                    batch = replace(batch, ref_logprobs_T=self._logprobs(reference, batch))
        return batch

    def update(self, batch: Batch, advantages_T: Tensor) -> Update:
        """Learn from a scored batch and its advantages: ``epochs`` passes, some optimizer steps each.

        Normalizers are those of all tokens of an optimizer step, however it is split into micro-batches.
        Groups in which nothing carries gradient are passed over, and an optimizer step with no other
        groups is not taken. Raises OutOfMemory.
        """
        mask_T = loss_mask(batch, self.algorithm)
        carries_T = mask_T
        if not self.algorithm.kl_in_loss and not self.algorithm.entropy_weight:
            carries_T = mask_T & (advantages_T != 0)
        meter = UpdateMeter(batch, advantages_T, mask_T, carries_T)
        group_T = batch.group_R[batch.row_T]
        carries_P = row_sums(carries_T.long(), group_T, batch.num_groups).tolist()
        carriers = {group for group, count in enumerate(carries_P) if count}
        with self._passes("rl"):
            for epoch, groups in self._minibatches(batch.num_groups):
                weights_T = self._weights(batch, mask_T, groups)
                if epoch == 0:
                    self._look_at(batch, sorted(set(groups) - carriers), meter)
                learned = sorted(set(groups) & carriers)
                for micro_batch in self._split(batch, learned):
                    self._accumulate(micro_batch, advantages_T, weights_T, epoch, meter)
                if learned:
                    meter.add_step(self.optimizer.step())
        return Update(meter.metrics(), self.policy_version, meter.batch_as_seen(), advantages_T)

    def update_sft(self, batch: Batch) -> Update:
        """Make one optimizer step on -sum_t log p(token_t) / T over the completions' sampled tokens.

        Raises OutOfMemory.
        """
        weights_T = token_weights(
            batch.sampled_T, batch.row_T, batch.num_rows, "token_mean"
        ).float()
        losses: list[Tensor] = []
        with self._passes("sft"):
            # A trace shares its prompt with no other, so that a tree would only add a mask.
            for micro_batch in batch.split(self.max_tokens_per_micro_batch, "plain"):
                index_T = micro_batch.token_index_T
                with self._recomputed or nullcontext():
                    stats = token_logprobs(
                        self.policy,
                        micro_batch,
                        temperature=1.0,
                        layout="plain",
                        lean=self.lean,
                        expected=Gains(-weights_T[index_T]),
                        accumulators=self.optimizer.accumulator,
                        room=self._head_room,
                    )
                    loss = -(weights_T[index_T] * stats.logprobs_T).sum()
                    loss.backward()
                entropy = (weights_T[index_T] * stats.entropy_T.detach()).sum()
                losses.append(torch.stack([loss.detach(), entropy]))
        report = self.optimizer.step()
        nll, entropy = torch.stack(losses).sum(0)
        metrics = to_floats({"loss/nll": nll, "entropy/mean": entropy})
        metrics["tokens/trained"] = float(batch.sampled_T.sum())
        return Update(metrics | step_metrics([report]), self.policy_version)

    def save_state(self, folder: Path) -> None:
        """Write the policy in Hugging Face layout, and the optimizer's state beside it."""
        if self.tokenizer is None:
            policy: Any = self.policy
            policy.save_pretrained(folder)
        else:
            save_model(self.policy, self.tokenizer, folder)
        self.optimizer.save_state(folder)

    def load_state(self, folder: Path) -> None:
        """Restore what `save_state` wrote, bit for bit, into the live policy. Raises RunError.

        There is no random state: what is shuffled is a function of seed and policy version.
        """
        restore_weights(self.policy, folder)
        self.optimizer.load_state(folder)

    @contextmanager
    def _passes(self, section: str) -> Generator[None]:
        """Name the setting where memory runs out in these passes, and give back what they shared."""
        try:
            with out_of_memory_names(f"{section}.max_tokens_per_micro_batch"):
                yield
        finally:
            self._head_room.release()

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
        for micro_batch in self._split(batch, groups):
            stats = self._stats(self.policy, micro_batch)
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
        index_T = micro_batch.token_index_T
        expected = None
        if epoch == 0 and micro_batch.batch.old_logprobs_T is None:
            expected = gains_where_first_met(
                advantages_T[index_T], weights_T[index_T], self.algorithm
            )
        with self._recomputed or nullcontext():
            stats = self._stats(self.policy, micro_batch, expected)
            if epoch == 0:
                meter.see(index_T, stats.logprobs_T, stats.entropy_T)
            parts = policy_loss(
                stats.logprobs_T,
                meter.old_logprobs()[index_T],
                advantages_T[index_T],
                weights_T[index_T],
                self.algorithm,
                ref_logprobs_T=micro_batch.batch.ref_logprobs_T,
                entropy_T=stats.entropy_T,
            )
            parts.loss.backward()
        meter.add_loss(index_T, parts)

    def _split(self, batch: Batch, groups: Sequence[int]) -> list[MicroBatch]:
        return batch.split(self.max_tokens_per_micro_batch, self.layout, groups) if groups else []

    def _stats(
        self, model: nn.Module, micro_batch: MicroBatch, expected: Gains | None = None
    ) -> TokenStats:
        return token_logprobs(
            model,
            micro_batch,
            temperature=self.temperature,
            layout=self.layout,
            lean=self.lean,
            expected=expected,
            accumulators=self.optimizer.accumulator if model is self.policy else None,
            room=self._head_room,
        )

    def _logprobs(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return a model's log-probability of each token, [T], without gradient."""
        logprobs_T = torch.zeros_like(batch.behavior_logprobs_T)
        for micro_batch in batch.split(self.max_tokens_per_micro_batch, self.layout):
            logprobs_T[micro_batch.token_index_T] = self._stats(
                model, micro_batch
            ).logprobs_T.float()
        return logprobs_T
