"""The learner: scores a packed batch, and makes one update of the policy from it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from assay.config import CriticConfig, OptimizerConfig
from assay.errors import ConfigError, RunError, message
from assay.learn.advantages import compute_returns, loss_mask
from assay.learn.algorithms import Algorithm
from assay.learn.controllers import steer
from assay.learn.critic import Critic, Lesson
from assay.learn.meter import Update, reward_metrics
from assay.learn.minibatches import minibatches
from assay.learn.optimizer import Optimizer
from assay.learn.passes import Passes, PassesLearner
from assay.learn.policy_update import PolicyUpdate, carriers
from assay.learn.reference import Reference
from assay.model.packing import Batch, Layout
from assay.model.value_head import ValueModel
from assay.run.timing import phase

STATE_FILE = "learner.json"
DYNAMIC = {"kl_weight": "kl_target", "penalty_weight": "penalty_target"}
"""Weights of the algorithm that updates move, each towards its target, where it has one."""


class Learner(PassesLearner):
    """Trains a policy by an algorithm's row.

    policy: the live model. policy_version: +1 per optimizer step taken. epochs: passes over a batch;
    num_minibatches: optimizer steps a pass, each on a share of the groups. total_steps: optimizer
    steps in all, those of the critic's warm-up among them, for the schedule. keep_reference: measure
    the KL to the starting policy even where the algorithm has none. max_tokens_per_micro_batch: None:
    by the device. lean: go through the layers by `assay.model.lean_decoder` where the model is of its
    family. critic: settings of the critic, where the algorithm has one. critic_start: what a critic
    with layers of its own starts from; None: the policy. seed: shuffles groups into minibatches.
    tokenizer: saved with the policy, so that a checkpoint loads as a model; None: a checkpoint is only
    good for `load_state`.

    Make it before a checkpoint is loaded: the reference is the policy at this moment. ``algorithm`` is
    the row in effect: a dynamic weight changes from batch to batch.

    Raises ModelError, and ConfigError where critic and algorithm do not go together.
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
        critic: CriticConfig | None = None,
        critic_start: ValueModel | None = None,
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
        critic = critic or CriticConfig()
        waits = critic.warmup_steps * epochs * num_minibatches if algorithm.has_critic else 0
        self.optimizer = Optimizer(model, optimizer, max(1, total_steps - waits))
        passes = Passes(
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
        super().__init__(passes)
        self.critic = None
        if algorithm.has_critic:
            settings = self.optimizer.config
            self.critic = Critic.beside(self.passes, critic, settings, total_steps, critic_start)
        self._check_trust_region()

    @property
    def scores_first(self) -> bool:
        """Whether old log-probabilities are needed before the update begins.

        Where each token is first met by the unchanged policy, they are those of that very pass, and a
        pass of their own is saved.
        """
        return self.num_minibatches > 1 or self.algorithm.kl_in_reward

    @torch.no_grad()
    @phase("score")
    def score(self, batch: Batch, temperature: float | None = None) -> Batch:
        """Return the batch with what is needed now: old and reference log-probabilities, and values.

        temperature: that of the batch, from here on; None: as before.
        """
        if temperature is not None:
            self.passes.temperature = temperature
        with self.passes.open():
            if self.critic is not None and self.critic.shared:
                logprobs_T, values_T = self.passes.logprobs_and(self.critic.head, batch)
                batch = replace(batch, old_logprobs_T=logprobs_T, values_T=values_T)
            else:
                if self.scores_first:
                    batch = replace(batch, old_logprobs_T=self.passes.logprobs(batch))
                if self.critic is not None:
                    batch = replace(batch, values_T=self.critic.values(batch))
            if self.reference is not None:
                with self.reference.policy() as reference:
                    batch = replace(batch, ref_logprobs_T=self.passes.logprobs(batch, reference))
        return batch

    @phase("update")
    def update(self, batch: Batch, advantages_T: Tensor, learns: bool = True) -> Update:
        """Learn from a scored batch and its advantages: ``epochs`` passes, some optimizer steps each.

        Normalizers are those of all tokens of an optimizer step, however it is split into micro-batches.
        Groups in which nothing carries gradient are only measured, by a forward pass: entropy, KL and
        mismatch are of all completions. An optimizer step with no other groups is not taken: weights,
        moments, weight decay, schedule and policy version stay. So do a critic's where its values are
        the returns, and its warm-up goes on. The first step before which the policy has gone further
        than `Algorithm.stop_kl` is the end. A critic learns beside the policy, and in its first batches
        alone. Dynamic weights of the algorithm are moved at the end. Raises OutOfMemory.

        learns: False: nothing in the batch carries gradient, whatever the algorithm adds up in it.
        """
        row, critic = self.algorithm, self.critic
        mask_T = loss_mask(batch, row) if learns else torch.zeros_like(batch.sampled_T)
        advantages_T = torch.where(mask_T, advantages_T, 0.0)
        lesson = joint = None
        if critic is not None:
            lesson = Lesson(batch, compute_returns(batch, row), mask_T, row.value_clip)
            joins = critic.shared and not critic.warms_up
            pulled = joins and bool(carriers(row, advantages_T, mask_T).any())
            lesson.is_known = lesson.foreseen and not pulled
            joint = (critic, lesson) if joins and not lesson.is_known else None
        policy = PolicyUpdate(
            self.passes,
            row,
            batch,
            advantages_T,
            mask_T,
            learns=critic is None or not critic.warms_up,
            joint=joint,
        )
        with self.passes.open():
            for epoch, groups in self._minibatches(batch):
                if lesson is not None:
                    lesson.turn_to(groups)
                if policy.accumulate(groups, epoch):
                    if policy.went_too_far():
                        policy.drop()
                        break
                    policy.step()
                if critic is not None and lesson is not None and joint is None:
                    critic.learn(lesson)
            if row.penalty_target is not None and policy.meter.num_steps:
                policy.measure_old_kl()
        metrics = policy.meter.metrics() | (lesson.metrics() if lesson else {})
        if critic is not None and lesson is not None:
            critic.num_updates += not lesson.is_known
        metrics |= self._finish(metrics, batch.num_rows) | reward_metrics(batch, row)
        batch = policy.meter.batch_as_seen()
        return Update(metrics, self.policy_version, batch, advantages_T)

    def save_state(self, folder: Path) -> None:
        """Write the policy in Hugging Face layout, and beside it the state of optimizer and algorithm.

        A critic has a folder of its own in there.
        """
        self.passes.save_state(folder)
        state: dict[str, float] = {name: getattr(self.algorithm, name) for name in self._moving}
        if self.critic is not None:
            state["critic_updates"] = self.critic.num_updates
            self.critic.save_state(folder)
        if state:
            text = json.dumps(state, sort_keys=True)
            (folder / STATE_FILE).write_text(text, encoding="utf-8")

    def load_state(self, folder: Path) -> None:
        """Restore what `save_state` wrote, bit for bit, into the live policy. Raises RunError.

        There is no random state: what is shuffled is a function of seed and policy version.
        """
        self.passes.load_state(folder)
        if self.critic is None and not self._moving:
            return
        file = folder / STATE_FILE
        try:
            state = json.loads(file.read_text(encoding="utf-8"))
            self.algorithm = replace(self.algorithm, **{name: state[name] for name in self._moving})
            if self.critic is not None:
                self.critic.num_updates = state["critic_updates"]
        except (OSError, ValueError, KeyError) as error:
            raise RunError(message(str(file), error, "the file of an earlier save")) from error
        if self.critic is not None:
            self.critic.load_state(folder)

    @property
    def _moving(self) -> list[str]:
        """The algorithm's dynamic weights."""
        return [weight for weight, goal in DYNAMIC.items() if getattr(self.algorithm, goal)]

    def _minibatches(self, batch: Batch) -> Iterator[tuple[int, list[int]]]:
        settings = (self.num_minibatches, self.epochs, self.seed, self.policy_version)
        return minibatches(batch.num_groups, *settings)

    def _check_trust_region(self) -> None:
        """Complain of what a natural step cannot be taken on."""
        if self.algorithm.trust_region is None:
            return
        if self.critic is not None and self.critic.shared:
            found = '"shared", with a trust region: its loss would be part of the natural gradient'
            raise ConfigError(message("critic.backbone", found, '"copy"'))
        dtypes = {parameter.dtype for parameter in self.optimizer.trained.values()}
        if dtypes != {torch.float32}:
            found = f"{min(map(str, dtypes - {torch.float32}))}, with a trust region"
            raise ConfigError(
                message("model.dtype", found, "float32: steps are too small for less")
            )

    def _finish(self, metrics: Mapping[str, float], num_completions: int) -> dict[str, float]:
        """Move the algorithm's dynamic weights, and return what they were in it.

        A batch from which the policy took no step says nothing of what a weight does to it.
        """
        row = self.algorithm
        if metrics["optimizer/steps"]:
            self.algorithm = steer(
                row,
                kl=metrics.get("kl/mean"),
                old_kl=metrics.get("kl/old"),
                num_completions=num_completions,
            )
        weights: dict[str, float] = {}
        if row.kl_target is not None:
            weights["kl/weight"] = row.kl_weight
        if row.penalty_target is not None:
            weights["penalty/weight"] = row.penalty_weight
        return weights
