"""The learner of one machine: scores a packed batch, and makes one update of the policy from it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from assay.config import CriticConfig
from assay.errors import ConfigError, RunError, message
from assay.learn.advantages import Advantages
from assay.learn.algorithms import Algorithm
from assay.learn.base import Update
from assay.learn.critic import Critic, Lesson
from assay.learn.meter import reward_metrics, update_metrics
from assay.learn.passes import Passes, PassesLearner
from assay.learn.policy_update import PolicyUpdate, carriers
from assay.learn.reference import Reference
from assay.learn.spans import AnyTeacher
from assay.model.packing import Batch, pack
from assay.model.value_head import ValueModel
from assay.types import Group, Verdict

STATE_FILE = "learner.json"
DYNAMIC = {"kl_weight": "kl_target", "penalty_weight": "penalty_target"}
"""Weights of the algorithm that updates move, each towards its target, where it has one."""

PENALTY_BAND = 1.5
"""How far an update's KL may be from its target, as a factor, before the weight moves."""
PENALTY_FACTOR = 2.0
MAX_ERROR = 0.2
"""A deviation of the reference KL counts at most this much, as a share of its target."""


class PolicyLearner(PassesLearner):
    """Trains a policy by an algorithm's row.

    epochs: passes over a batch; num_minibatches: optimizer steps a pass, each on a share of the
    groups. total_steps: optimizer steps of a critic in all, for its schedule; the policy's are
    fewer by those of the critic's warm-up. keep_reference: measure the KL to the starting policy
    even where the algorithm has none. teacher: what stands in the reference's place. critic:
    settings of the critic, where the algorithm has one. critic_start: what a critic with layers of
    its own starts from; None: the policy. seed: shuffles groups into minibatches.

    Make it before a checkpoint is loaded: the reference is the policy at this moment. ``algorithm``
    is the row in effect: a dynamic weight changes from batch to batch.

    Raises ModelError, and ConfigError where critic and algorithm do not go together.
    """

    def __init__(
        self,
        passes: Passes,
        algorithm: Algorithm,
        *,
        total_steps: int,
        epochs: int = 1,
        num_minibatches: int = 1,
        keep_reference: bool = False,
        teacher: AnyTeacher | None = None,
        critic: CriticConfig | None = None,
        critic_start: ValueModel | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(passes)
        self.algorithm = algorithm
        self.epochs = epochs
        self.num_minibatches = num_minibatches
        self.seed = seed
        needs_reference = keep_reference or algorithm.kl_weight > 0
        self.reference = teacher or (Reference(passes.policy) if needs_reference else None)
        self.optimizer = passes.optimizer
        self.critic = None
        if algorithm.has_critic:
            of_policy = (passes, critic or CriticConfig(), self.optimizer.config)
            self.critic = Critic.beside(*of_policy, total_steps, critic_start)
        self._check_trust_region()

    @property
    def all_passes(self) -> list[Passes]:
        """Runners of the policy and of the critic."""
        return [self.passes, *([] if self.critic is None else [self.critic.passes])]

    @property
    def scores_first(self) -> bool:
        """Whether old log-probabilities are needed before the update begins.

        Where each token is first met by the unchanged policy, they are those of that very pass, and
        a pass of their own is saved.
        """
        return self.num_minibatches > 1 or self.algorithm.kl_in_reward

    def score(
        self,
        groups: Sequence[Group],
        verdicts: Sequence[Sequence[Verdict]],
        temperature: float | None = None,
    ) -> Batch:
        """Pack groups and verdicts to where the policy is; return them as `score_batch` does."""
        return self.score_batch(pack(groups, verdicts, self.device), temperature)

    @torch.no_grad()
    def score_batch(self, batch: Batch, temperature: float | None = None) -> Batch:
        """Return the batch with what is needed: old and reference log-probabilities, and values.

        temperature: that of the batch, from here on; None: as before.
        """
        if temperature is not None:
            self.passes.temperature = temperature
        with self.clock.phase("score"), self.passes.open():
            if self.critic is not None and self.critic.shared:
                logprobs_T, values_T = self.passes.logprobs_and(self.critic.head, batch)
                batch = replace(batch, old_logprobs_T=logprobs_T, values_T=values_T)
            else:
                if self.scores_first:
                    batch = replace(batch, old_logprobs_T=self.passes.logprobs(batch))
                if self.critic is not None:
                    batch = replace(batch, values_T=self.critic.values(batch))
            if self.reference is not None:
                logprobs_T = self.reference.logprobs(batch, self.passes)
                batch = replace(batch, ref_logprobs_T=logprobs_T)
        return batch

    def update(self, batch: Batch, advantages: Advantages) -> Update:
        """Learn from a scored batch and its advantages: ``epochs`` passes of some optimizer steps.

        Normalizers are those of all tokens of an optimizer step, however it is split into
        micro-batches. Groups in which nothing carries gradient are only measured, by a forward
        pass: entropy, KL and mismatch are of all completions. An optimizer step with no other
        groups is not taken: weights, moments, weight decay, schedule and policy version stay. So do
        a critic's where its values are the returns, and its warm-up goes on. The first step before
        which the policy has gone further than `Algorithm.stop_kl` is the end. A critic learns
        beside the policy, and in its first batches alone. Dynamic weights of the algorithm are
        moved at the end. Raises OutOfMemory.
        """
        row, passes, lesson = self.algorithm, self.passes, None
        carries_T = carriers(row, advantages)
        if self.critic is not None:
            lesson = Lesson(self.critic, batch, advantages, row, pulled=bool(carries_T.any()))
            carries_T = advantages.mask_T if lesson.joins else carries_T
        learns = self.critic is None or not self.critic.warms_up
        policy = PolicyUpdate(passes, row, batch, advantages, carries_T, learns)
        with self.clock.phase("update"), passes.open():
            steps = [*self._minibatches(batch)]
            for number, (epoch, groups) in enumerate(steps):
                if lesson is not None:
                    lesson.turn_to(groups)
                micro_batches = policy.begin_step(groups, epoch)
                part = number, len(steps)
                for micro_batch in self.clock.each(micro_batches, "update", part):
                    gains = policy.gains(micro_batch) if epoch == 0 else None
                    with passes.recomputed():
                        stats = passes.stats(micro_batch, expected=gains)
                        if epoch == 0:
                            policy.see(micro_batch, stats)
                        loss_of = policy.loss_of(micro_batch)
                        parts = loss_of(stats.logprobs_T, entropy_T=stats.entropy_T)
                        joint = lesson.joint_loss(micro_batch, stats) if lesson else 0.0
                        (parts.loss + joint).backward()
                    policy.add_loss(micro_batch, parts)
                if micro_batches and policy.went_too_far():
                    break
                if micro_batches:
                    policy.step()
                if lesson is not None:
                    lesson.step(bool(micro_batches))
            if row.penalty_target is not None and policy.steps:
                policy.measure_old_kl()
        metrics = update_metrics(policy) | (lesson.finish() if lesson else {})
        metrics |= self._finish(metrics, batch.num_rows) | reward_metrics(batch, row)
        batch = replace(batch, old_logprobs_T=policy.old_logprobs_T)
        return Update(metrics, self.policy_version, batch, advantages.advantages_T)

    @property
    def state_version(self) -> int:
        """A number that every optimizer step raises, the critic's too."""
        critic = 0 if self.critic is None else self.critic.optimizer.num_steps
        return self.policy_version + critic

    def save_state(self, folder: Path) -> None:
        """Write the policy in Hugging Face layout, and the state of optimizer and algorithm.

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
        """Reject settings that a natural gradient step does not support."""
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


def minibatches(
    num_groups: int, num_minibatches: int, epochs: int, seed: int, version: int
) -> Iterator[tuple[int, list[int]]]:
    """Yield (epoch, groups) of each optimizer step; the order is a function of seed and version.

    Whole groups, as evenly as they go; an epoch of fewer groups than minibatches has fewer steps.
    """
    for epoch in range(epochs):
        order = np.arange(num_groups)
        if num_minibatches > 1:
            order = np.random.default_rng((seed, version, epoch)).permutation(num_groups)
        for part in np.array_split(order, num_minibatches):
            if len(part):
                yield epoch, part.tolist()


def next_penalty_weight(weight: float, kl: float, target: float) -> float:
    """Return the weight of the penalty on KL(old || new) for the next update.

        kl < target / 1.5    weight / 2
        kl > target * 1.5    weight * 2

    Schulman et al. 2017 (PPO), section 4; ``kl`` is measured after the update that ``weight`` was
    used in, in the unit of ``target``. A KL that is not a number leaves the weight; it never
    becomes 0, from where it could not be doubled.
    """
    if kl < target / PENALTY_BAND:
        return max(weight / PENALTY_FACTOR, sys.float_info.min)
    if kl > target * PENALTY_BAND:
        return weight * PENALTY_FACTOR
    return weight


def next_kl_weight(
    weight: float, kl: float, target: float, num_completions: int, horizon: float
) -> float:
    """Return the weight of the KL to the reference for the next step.

        e      = clip((kl - target) / target, -0.2, 0.2)
        weight = weight (1 + e num_completions / horizon)

    Ziegler et al. 2019 (arXiv 1909.08593), section 2.2: there the gain K is 0.1 a batch; here it is
    the step's number of completions over a horizon, so that it does not depend on how large a step
    is. A KL that is not a number leaves the weight; no weight falls to 0 or below, whatever the
    horizon.
    """
    if kl != kl:
        return weight
    error = min(max((kl - target) / target, -MAX_ERROR), MAX_ERROR)
    return weight * max(1.0 + error * num_completions / horizon, 1.0 - MAX_ERROR)


def steer(
    algorithm: Algorithm, *, kl: float | None, old_kl: float | None, num_completions: int
) -> Algorithm:
    """Return the row for the next step, with its dynamic weights moved where it has any.

    kl: mean KL to the reference; old_kl: mean KL(old || new) after the update, both in nats a
    token. None: not measured, and the weight stays.
    """
    if algorithm.kl_target is not None and kl is not None:
        weight = next_kl_weight(
            algorithm.kl_weight, kl, algorithm.kl_target, num_completions, algorithm.kl_horizon
        )
        algorithm = replace(algorithm, kl_weight=weight)
    if algorithm.penalty_target is not None and old_kl is not None:
        weight = next_penalty_weight(algorithm.penalty_weight, old_kl, algorithm.penalty_target)
        algorithm = replace(algorithm, penalty_weight=weight)
    return algorithm
