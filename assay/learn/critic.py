"""The critic: the values of the states at each token, and the training of the critic.

A critic has its own layers (`ValueModel`), or is a head on the policy's layers (`ValueHead`). A
critic with its own layers has its own forward and backward passes, and its own optimizer steps. The
loss of a critic that shares the policy's layers is added to the policy loss: one backward pass
serves both losses, and only the head has its own optimizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from assay.config import CriticConfig, OptimizerConfig
from assay.learn.advantages import Advantages
from assay.learn.algorithms import Algorithm
from assay.learn.base import to_floats
from assay.learn.losses import token_weights
from assay.learn.optimizer import Optimizer, StepReport
from assay.learn.passes import Passes
from assay.learn.rows import groups_with, tokens_of
from assay.model.logprobs import TokenStats
from assay.model.packing import Batch, MicroBatch
from assay.model.value_head import ValueHead, ValueModel, width_of

FOLDER = "critic"


def value_loss(
    values_T: Tensor,
    old_values_T: Tensor,
    returns_T: Tensor,
    weights_T: Tensor,
    value_clip: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Return (sum_t w_t loss_t, mask of tokens whose gradient the clip removes [T]).

        loss = 1/2 (V - R)^2, and with a value clip c
        loss = 1/2 max((V - R)^2, (clip(V, V_old - c, V_old + c) - R)^2).

    This is PPO's value loss (Schulman et al., 2017, equation 9). The clip follows the code of the
    PPO authors, Ouyang et al., 2022, and the reproduction by Huang et al., 2024 (detail 20).
    Gradients flow through values_T only.
    """
    squares_T = (values_T - returns_T).square()
    clipped_T = torch.zeros_like(squares_T, dtype=torch.bool)
    if value_clip is not None:
        moved_T = (values_T - old_values_T).clamp(-value_clip, value_clip)
        # As in PPO's ratio clip, the larger loss is taken, so that a clip never reduces the loss.
        bounded_T = (old_values_T + moved_T - returns_T).square()
        clipped_T = (bounded_T > squares_T).detach()
        squares_T = torch.maximum(squares_T, bounded_T)
    return 0.5 * (weights_T * squares_T).sum(), clipped_T


def explained_variance(values_N: Tensor, returns_N: Tensor) -> float | None:
    """Return the explained variance 1 - Var(R - V) / Var(R), or None if R is constant.

    1 means perfect prediction. An explained variance of 0 means that the critic is no better than a
    constant.
    """
    if len(returns_N) < 2:
        return None
    values_N, returns_N = values_N.double(), returns_N.double()
    variance = returns_N.var(correction=0)
    if not variance > 0:
        return None
    return 1.0 - ((returns_N - values_N).var(correction=0) / variance).item()


class Critic:
    """Values of states, from a separate value model or from a head on the policy.

    model: a `ValueModel`, or a `ValueHead` on the policy.
    passes: runner of the policy's forward and backward passes.
    warmup_steps: number of first batches on which only the critic is trained.

    ``num_updates`` counts the batches on which the critic was trained.
    """

    def __init__(
        self,
        model: ValueModel | ValueHead,
        passes: Passes,
        optimizer: OptimizerConfig,
        total_steps: int,
        warmup_steps: int = 0,
    ) -> None:
        self.own = model if isinstance(model, ValueModel) else None
        self.head = model.head if isinstance(model, ValueModel) else model
        self.optimizer = Optimizer(model, optimizer, total_steps, ranks=passes.ranks)
        self.passes = passes
        if self.own is not None:
            self.passes = passes.beside(self.own.backbone, self.optimizer)
        self.warmup_steps = warmup_steps
        self.num_updates = 0

    @classmethod
    def beside(
        cls,
        passes: Passes,
        config: CriticConfig,
        optimizer: OptimizerConfig,
        total_steps: int,
        start: ValueModel | None = None,
    ) -> Critic:
        """Construct the configured critic for the policy that ``passes`` runs.

        optimizer: optimizer settings of the policy. Settings in ``config`` override them.
        start: initial value model of a critic with its own layers; None means a copy of the policy.
        """
        if config.backbone == "shared":
            model = ValueHead(width_of(passes.policy), passes.device)
            own = {}
        else:
            model = start or ValueModel.of_policy(passes.policy)
            own = {"max_grad_norm": config.max_grad_norm}
        if config.learning_rate is not None:
            own["learning_rate"] = config.learning_rate
        settings = optimizer.model_copy(update=own)
        return cls(model, passes, settings, total_steps, config.warmup_steps)

    @property
    def shared(self) -> bool:
        """Whether the critic is a head on the layers of the policy."""
        return self.own is None

    @property
    def warms_up(self) -> bool:
        """Whether the next batch trains only the critic."""
        return self.num_updates < self.warmup_steps

    @torch.no_grad()
    def values(self, batch: Batch) -> Tensor:
        """Return the value of the state before each token, [T] in float32."""
        values_T = torch.zeros_like(batch.behavior_logprobs_T)
        for micro_batch in self.passes.counted(self.passes.split(batch), "values"):
            values_T[micro_batch.token_index_T] = self.head(self.passes.hidden(micro_batch)).float()
        # At the tokens of other ranks, the values of this rank are 0, so their sum is exact.
        self.passes.ranks.add([values_T])
        return values_T

    def save_state(self, folder: Path) -> None:
        """Write ``critic/``: head, optimizer state, and the value model in Hugging Face layout."""
        place = folder / FOLDER
        with self.passes.ranks.in_step():
            if not self.passes.ranks.rank:
                place.mkdir(parents=True, exist_ok=True)
        if self.own is not None:
            # The head is written into the score layer: the folder loads as a reward model, too.
            self.own.write_score()
            self.passes.save_state(place)
        else:
            self.optimizer.save_state(place)
        with self.passes.ranks.in_step():
            if not self.passes.ranks.rank:
                self.head.save(place)

    def load_state(self, folder: Path) -> None:
        """Restore the critic from `save_state`, bit for bit. Raises RunError."""
        place = folder / FOLDER
        if self.own is not None:
            self.passes.load_state(place)
        else:
            self.optimizer.load_state(place)
        self.head.load(place)


class CriticUpdate:
    """One update of the critic: the loss, the optimizer steps and the metrics for one batch.

    pulled: whether the policy is trained on the same batch.

    ``joins`` says whether the critic's loss is added to the policy loss, which requires shared
        layers.
    ``is_known`` says whether the values already equal the returns before the update, so that the
        critic takes no step of its own.
    """

    def __init__(
        self,
        critic: Critic,
        batch: Batch,
        advantages: Advantages,
        algorithm: Algorithm,
        pulled: bool,
    ) -> None:
        assert batch.values_T is not None and advantages.returns_T is not None
        self.critic = critic
        self.batch = batch
        self.algorithm = algorithm
        self.old_values_T = batch.values_T
        self.returns_T = advantages.returns_T
        self.mask_T = advantages.mask_T
        shared = critic.shared and not critic.warms_up
        # Before the first nonzero reward, a critic that starts at 0 predicts the returns exactly.
        # A step without a gradient would move the weights only by momentum and weight decay.
        foreseen = not bool((self.mask_T & (self.returns_T != self.old_values_T)).any())
        self.is_known = foreseen and not (shared and pulled)
        self.joins = shared and not self.is_known
        self._groups: list[int] = []
        self._weights_T = torch.zeros_like(self.returns_T)
        self._losses: list[Tensor] = []
        self._clipped: list[Tensor] = []
        self._reports: list[StepReport] = []

    def turn_to(self, groups: Sequence[int]) -> None:
        """Select the groups of the next optimizer step of the critic. The loss of the critic's step
        is the mean over the tokens of these groups."""
        batch = self.batch
        mask_T = self.mask_T & tokens_of(batch, groups)
        self._groups = [] if self.is_known else sorted(groups_with(batch, mask_T))
        # In the critic's loss all states count equally, however the policy loss is aggregated.
        weights_T = token_weights(mask_T, batch.row_T, batch.num_rows, "token_mean")
        self._weights_T = weights_T.float()

    def joint_loss(self, micro_batch: MicroBatch, stats: TokenStats) -> Tensor | float:
        """Return the value loss that is added to the policy loss of a micro-batch.

        The value loss is 0 if the critic is trained separately.
        """
        if not self.joins:
            return 0.0
        loss = self._loss(self.critic.head(stats.hidden_TD), micro_batch.token_index_T)
        return self.algorithm.value_weight * loss

    def step(self, policy_stepped: bool) -> None:
        """Take one optimizer step.

        A joint update of policy and critic uses the gradients of the policy's backward pass. A
        separate update of the critic runs its own passes; if the critic shares the policy's layers,
        it trains only the head.
        """
        critic, passes = self.critic, self.critic.passes
        if not self.joins:
            micro_batches = passes.split(self.batch, self._groups) if self._groups else []
            for micro_batch in passes.counted(micro_batches, "critic"):
                with passes.recomputed():
                    # During a shared critic's warm-up, only the head learns, not the layers.
                    with torch.set_grad_enabled(not critic.shared):
                        hidden_TD = passes.hidden(micro_batch)
                    self._loss(critic.head(hidden_TD), micro_batch.token_index_T).backward()
        if policy_stepped if self.joins else self._groups:
            self._reports.append(critic.optimizer.step())

    def finish(self) -> dict[str, float]:
        """End the update of the critic, and return its metrics.

        The value metrics and the explained variance use the values before the update.
        """
        # If the policy took no step, a joint loss has left gradients in the critic's optimizer.
        self.critic.optimizer.zero_grad()
        self.critic.num_updates += not self.is_known
        ranks = self.critic.passes.ranks
        self._losses = ranks.concatenate(self._losses)
        self._clipped = ranks.concatenate(self._clipped)
        values_N, returns_N = self.old_values_T[self.mask_T], self.returns_T[self.mask_T]
        found: dict[str, Tensor] = {}
        if len(values_N):
            found["critic/value_mean"] = values_N.double().mean()
            found["critic/return_mean"] = returns_N.double().mean()
        if self._losses:
            found["critic/loss"] = torch.stack(self._losses).sum() / max(1, len(self._reports))
            clipped_N, counts_N = torch.cat(self._clipped, 1)
            clipped_N = clipped_N[counts_N]
            if len(clipped_N):
                found["critic/clip_fraction"] = clipped_N.double().mean()
        metrics = to_floats(found)
        explained = explained_variance(values_N, returns_N)
        if explained is not None:
            metrics["critic/explained_variance"] = explained
        taken = [report for report in self._reports if not report.skipped]
        if taken:
            metrics["critic/grad_norm"] = sum(report.grad_norm for report in taken) / len(taken)
        return metrics

    def _loss(self, values_T: Tensor, index_T: Tensor) -> Tensor:
        """Return the value loss of the tokens at the indices ``index_T``, with gradient."""
        weights_T = self._weights_T[index_T]
        old = (self.old_values_T[index_T], self.returns_T[index_T], weights_T)
        loss, clipped_T = value_loss(values_T, *old, self.algorithm.value_clip)
        self._losses.append(loss.detach())
        self._clipped.append(torch.stack([clipped_T, weights_T > 0]))
        return loss
