"""Policy learner of one process: it scores packed batches and updates the policy."""

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
from assay.learn.critic import Critic, CriticUpdate
from assay.learn.meter import reward_metrics, update_metrics
from assay.learn.optimizer import Optimizer
from assay.learn.passes import Passes, PassesLearner
from assay.learn.policy_update import PolicyUpdate, carriers
from assay.learn.reference import Reference
from assay.learn.spans import AnyTeacher, SpanTeacher
from assay.learn.teacher import TeacherElsewhere
from assay.model.determinism import fixed_order
from assay.model.packing import Batch, pack
from assay.model.value_head import ValueModel
from assay.types import Group, Problem, Verdict

STATE_FILE = "learner.json"
DYNAMIC = {"kl_weight": "kl_target", "penalty_weight": "penalty_target"}
"""Dynamic weights of the algorithm, and the target that each is adjusted towards."""

PENALTY_BAND = 1.5
"""Factor between KL and target above which the penalty weight changes."""
PENALTY_FACTOR = 2.0
MAX_ERROR = 0.2
"""Bound on the relative error of the reference KL."""


class PolicyLearner(PassesLearner):
    """Trains a policy with an algorithm preset.

    total_steps: number of optimizer steps of the critic, for its learning-rate schedule. During the
        critic's warm-up, the policy takes no steps.
    epochs: passes over each batch.
    num_minibatches: number of optimizer steps per epoch, each on a share of the groups.
    keep_reference: whether to measure the KL to the initial policy even if the algorithm has no KL
    term. teacher: teacher that replaces the reference in KL terms.
    critic: settings of the critic, if the algorithm has one.
    critic_start: initial value model of a critic with its own layers; None means a copy of the
    policy. seed: seed for the assignment of groups to minibatches.
    kl_factors: factor of the KL to the reference, by tag of the problem. If several tags of a
    problem have a KL factor, the first of these tags counts.

    ``algorithm`` is the preset in effect, whose dynamic weights change from batch to batch.

    The learner must be constructed before a checkpoint is loaded, because the reference is a copy
    of the policy at construction. Raises ModelError, and ConfigError if the critic does not fit the
    algorithm.
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
        kl_factors: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__(passes)
        self.algorithm = algorithm
        self.epochs = epochs
        self.num_minibatches = num_minibatches
        self.seed = seed
        self.kl_factors = dict(kl_factors or {})
        needs_reference = keep_reference or algorithm.kl_weight > 0
        # A teacher replaces the reference, so with a teacher no copy of the policy is kept.
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
    def all_optimizers(self) -> list[Optimizer]:
        """Optimizers of the policy and of the critic. A critic that shares the policy's layers has
        an optimizer only for its head."""
        return [self.optimizer, *([] if self.critic is None else [self.critic.optimizer])]

    @property
    def scores_first(self) -> bool:
        """Whether the update needs old log-probabilities before its first forward pass.

        With one minibatch, the first forward pass of the update already gives the old
        log-probabilities. With one minibatch, a separate pass to score the batch is therefore
        skipped.
        """
        return self.num_minibatches > 1 or self.algorithm.kl_in_reward

    def score(
        self,
        groups: Sequence[Group],
        verdicts: Sequence[Sequence[Verdict]],
        temperature: float | None = None,
    ) -> Batch:
        """Pack groups and verdicts on the policy's device, and score the batch by `score_batch`."""
        if temperature is not None:
            # A teacher that only rank 0 queries scores before the shared call sets the temperature.
            self.passes.temperature = temperature
        batch = pack(groups, verdicts, self.device)
        if any(factor != 1.0 for factor in self.kl_factors.values()):
            factors = [self._kl_factor(group.problem) for group in groups]
            factor_P = torch.tensor(factors, dtype=torch.float32, device=self.device)
            batch = replace(batch, kl_factor_R=factor_P[batch.group_R])
        if self.passes.ranks.size > 1:
            # Only rank 0 is connected to a remote teacher, or has problems for it to render.
            if isinstance(self.reference, TeacherElsewhere | SpanTeacher):
                with self.clock.phase("score"), self.passes.open():
                    logprobs_T = self.reference.logprobs(batch, self.passes)
                batch = replace(batch, ref_logprobs_T=logprobs_T)
            # Problems contain answers and tests, which other ranks do not need: they are not sent.
            batch = replace(batch, problems=())
        return self.score_batch(batch, temperature)

    def _kl_factor(self, problem: Problem) -> float:
        found = (self.kl_factors[tag] for tag in problem.tags if tag in self.kl_factors)
        return next(found, 1.0)

    @torch.no_grad()
    def score_batch(self, batch: Batch, temperature: float | None = None) -> Batch:
        """Add the old log-probabilities, reference log-probabilities and values that the batch
        still needs.

        temperature: sampling temperature from this batch on; None leaves it unchanged.
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
            if self.reference is not None and batch.ref_logprobs_T is None:
                logprobs_T = self.reference.logprobs(batch, self.passes)
                batch = replace(batch, ref_logprobs_T=logprobs_T)
        return batch

    def update(self, batch: Batch, advantages: Advantages) -> Update:
        """Train on a scored batch for ``epochs`` epochs.

        The normalizers count all tokens of an optimizer step, so the loss does not depend on the
        split into micro-batches. Groups without gradient get only a forward pass, because entropy,
        KL and mismatch cover all completions. A minibatch without gradient takes no optimizer step:
        weights, moments, weight decay, schedule and policy version stay unchanged. If the values of
        the critic equal the returns, the critic takes no step, and the batch does not count as
        warm-up. The update stops before the first step at which KL(old || new) exceeds
        `Algorithm.stop_kl`. If the critic has a warm-up, the first batches train only the critic.
        The dynamic weights of the preset change at the end of an update. Raises OutOfMemory.
        """
        row, passes, critic_update = self.algorithm, self.passes, None
        carries_T = carriers(row, advantages)
        if self.critic is not None:
            critic_update = CriticUpdate(
                self.critic, batch, advantages, row, pulled=bool(carries_T.any())
            )
            carries_T = advantages.mask_T if critic_update.joins else carries_T
        learns = self.critic is None or not self.critic.warms_up
        policy = PolicyUpdate(passes, row, batch, advantages, carries_T, learns)
        with self.clock.phase("update"), passes.open():
            steps = [*self._minibatches(batch)]
            for number, (epoch, groups) in enumerate(steps):
                if critic_update is not None:
                    critic_update.turn_to(groups)
                micro_batches = policy.begin_step(groups, epoch)
                part = number, len(steps)
                for micro_batch in passes.each(micro_batches, "update", part):
                    # Before the first optimizer step, every ratio is 1, so the gradient is known.
                    gains = policy.gains(micro_batch) if epoch == 0 else None
                    with passes.recomputed():
                        stats = passes.stats(micro_batch, expected=gains)
                        if epoch == 0:
                            policy.see(micro_batch, stats)
                        loss_of = policy.loss_of(micro_batch)
                        parts = loss_of(stats.logprobs_T, entropy_T=stats.entropy_T)
                        joint = (
                            critic_update.joint_loss(micro_batch, stats) if critic_update else 0.0
                        )
                        # Policy and critic share layers, so one backward pass serves both losses.
                        passes.backward(parts.loss + joint)
                    policy.add_loss(micro_batch, parts)
                # The ranks exchange the KL first: all of them must make the same decision to stop.
                policy.exchange()
                if policy.learns_now and policy.went_too_far():
                    break
                if policy.learns_now:
                    policy.step()
                if critic_update is not None:
                    critic_update.step(policy.learns_now)
            if row.penalty_target is not None and policy.steps:
                policy.measure_old_kl()
        with fixed_order(self.device):
            metrics = update_metrics(policy) | (critic_update.finish() if critic_update else {})
            metrics |= self._finish(metrics, batch.num_rows) | reward_metrics(batch, row)
        # Without a separate scoring pass, the first forward pass gives the old log-probabilities.
        batch = replace(batch, old_logprobs_T=policy.old_logprobs_T)
        return Update(metrics, self.policy_version, batch, advantages.advantages_T)

    @property
    def state_version(self) -> int:
        """Number of optimizer steps of the policy and of the critic."""
        critic = 0 if self.critic is None else self.critic.optimizer.num_steps
        return self.policy_version + critic

    def save_state(self, folder: Path) -> None:
        """Write the policy in Hugging Face layout, and the state of the optimizer and of the
        algorithm.

        The state of the critic is written to a subfolder.
        """
        self.passes.save_state(folder)
        state: dict[str, float] = {name: getattr(self.algorithm, name) for name in self._moving}
        if self.critic is not None:
            state["critic_updates"] = self.critic.num_updates
            self.critic.save_state(folder)
        with self.passes.ranks.in_step():
            if state and self.passes.ranks.rank == 0:
                text = json.dumps(state, sort_keys=True)
                (folder / STATE_FILE).write_text(text, encoding="utf-8")

    def load_state(self, folder: Path) -> None:
        """Restore a state that `save_state` wrote, bit for bit, into the live policy. Raises
        RunError.

        The learner has no random state, because shuffles depend only on the seed and the policy
        version.
        """
        super().load_state(folder)
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
        """Reject settings that a natural gradient step (TRPO) does not support."""
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
        """Adjust the dynamic weights of the algorithm, and return their values in this update.

        If the policy took no step, the weights stay unchanged, because the batch shows nothing
        about their effect.
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
    """Yield (epoch, groups) for each optimizer step; the order depends on the seed and the policy
    version.

    Groups stay whole, and are divided among the steps as evenly as possible. An epoch with fewer
    groups than minibatches has fewer optimizer steps.
    """
    for epoch in range(epochs):
        order = np.arange(num_groups)
        if num_minibatches > 1:
            # Seed, version and epoch determine the order: a resumed run needs no random state.
            order = np.random.default_rng((seed, version, epoch)).permutation(num_groups)
        for part in np.array_split(order, num_minibatches):
            if len(part):
                yield epoch, part.tolist()


def next_penalty_weight(weight: float, kl: float, target: float) -> float:
    """Return the weight of the penalty on KL(old || new) for the next update.

        If kl < target / 1.5, the new weight is weight / 2.
        If kl > target * 1.5, the new weight is weight * 2.

    This rule for the penalty weight is that of Schulman et al., 2017 (PPO), section 4. ``kl`` is
    measured after the update that used ``weight``, in the unit of ``target``. If ``kl`` is NaN, the
    penalty weight stays unchanged. The penalty weight never reaches 0, because doubling could not
    increase a weight of 0.
    """
    if kl < target / PENALTY_BAND:
        # Doubling could never increase a weight of 0, so the weight stays above 0.
        return max(weight / PENALTY_FACTOR, sys.float_info.min)
    if kl > target * PENALTY_BAND:
        return weight * PENALTY_FACTOR
    return weight


def next_kl_weight(
    weight: float, kl: float, target: float, num_completions: int, horizon: float
) -> float:
    """Return the weight of the KL to the reference for the next training step.

        e      = clip((kl - target) / target, -0.2, 0.2),
        weight = weight (1 + e num_completions / horizon).

    This rule for the KL weight is that of Ziegler et al., 2019 (arXiv 1909.08593), section 2.2.
    Ziegler et al., 2019, use a gain of 0.1 per batch. Here the gain is the number of completions
    divided by the horizon, so that the speed does not depend on the number of completions per step.
    If ``kl`` is NaN, the KL weight stays unchanged. The KL weight stays positive for every horizon.
    """
    if kl != kl:
        return weight
    error = min(max((kl - target) / target, -MAX_ERROR), MAX_ERROR)
    return weight * max(1.0 + error * num_completions / horizon, 1.0 - MAX_ERROR)


def steer(
    algorithm: Algorithm, *, kl: float | None, old_kl: float | None, num_completions: int
) -> Algorithm:
    """Return the preset for the next training step, with adjusted dynamic weights.

    kl: mean KL to the reference. old_kl: mean of KL(old || new) after the update. Both mean KL
    values are in nats per token. A KL that is None was not measured, and leaves its weight
    unchanged.
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
