"""Preference learner: training steps on chosen and rejected completions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from assay.config.preference import Preference
from assay.learn.base import Update, step_metrics, to_floats
from assay.learn.passes import Passes, PassesLearner
from assay.learn.preference_losses import implicit_rewards, preference_loss, reference_point
from assay.learn.ranks import Ranks
from assay.learn.reference import Reference
from assay.learn.rows import row_sums
from assay.model.head import Gains
from assay.model.layouts import fill
from assay.model.packing import Batch, MicroBatch


@dataclass(frozen=True, eq=False)
class PreferenceBatch:
    """Completions of a training step, with their log-probabilities under the reference.

    batch: completions; rows marked ``correct`` are chosen or desirable. A pair is a group of two
        rows, of which exactly one is chosen.
    ref_logprobs_R: log pi_ref(y|x), summed over the tokens, float64; None without a reference.
    mismatched: the same completions after other prompts, for the reference point of KTO.
    """

    batch: Batch
    ref_logprobs_R: Tensor | None = None
    mismatched: Batch | None = None
    mismatched_ref_logprobs_R: Tensor | None = None

    @property
    def chosen_R(self) -> Tensor:
        """Mask of chosen or desirable completions, [R] bool."""
        return self.batch.correct_R == 1.0


class PreferenceLearner(PassesLearner):
    """Trains a policy with a preference preset.

    Both completions of a pair share one forward and backward pass, because the gradient of either
    completion depends on both. A pair that exceeds a micro-batch takes two passes instead. For a
    pair that exceeds a micro-batch, the first pass runs without gradient, and gives the derivative
    of the loss by each log-probability. For a pair that exceeds a micro-batch, the second pass
    trains the completions one at a time. Two passes give the same gradient as one pass, but cost a
    third more.

    keep_reference: whether to keep a copy of the initial policy, for `reference_logprobs`.
    """

    def __init__(self, passes: Passes, row: Preference, keep_reference: bool = False) -> None:
        super().__init__(passes)
        self.row = row
        self.reference = Reference(passes.policy) if keep_reference else None

    @torch.no_grad()
    def logprobs(self, batch: Batch) -> Tensor:
        """Return the log-probability of each completion under the policy, [R] float64."""
        with self.passes.open():
            return sequence_logprobs(batch, self.passes.logprobs(batch))

    @torch.no_grad()
    def reference_logprobs(self, batch: Batch) -> Tensor:
        """Return the log-probability of each completion under the reference, [R] float64."""
        assert self.reference is not None
        with self.passes.open():
            return sequence_logprobs(batch, self.reference.logprobs(batch, self.passes))

    def refresh_reference(self) -> None:
        """Copy the weights of the current policy into the reference."""
        assert self.reference is not None
        self.reference.refresh()

    def load_reference(self, folder: Path) -> None:
        """Restore a reference that `Reference.save_state` wrote, bit for bit. Raises RunError."""
        assert self.reference is not None
        self.reference.load_state(folder)

    def update(self, pairs: PreferenceBatch, beta: float | None = None) -> Update:
        """Take one optimizer step on the mean loss of these pairs.

        beta: value of beta in this step; None means the preset's value. Raises OutOfMemory.
        """
        batch, passes = pairs.batch, self.passes
        with self.clock.phase("update"), passes.open():
            task = _Task(pairs, self.row, beta or self.row.beta, self._reference_point(pairs))
            whole, apart = self._plan(batch)
            for micro_batch in self.passes.counted(whole, "update"):
                with passes.recomputed():
                    stats = passes.stats(micro_batch)
                    task.see(micro_batch, stats.logprobs_T, stats.entropy_T)
                    logprobs_R = sequence_logprobs(micro_batch.batch, stats.logprobs_T)
                    task.loss(logprobs_R, micro_batch.row_index_R).backward()
            if apart:
                self._learn_apart(batch, apart, task)
            task.exchange(passes.ranks)
            report = passes.optimizer.step()
        return Update(task.metrics() | step_metrics([report]), self.policy_version)

    def look(self, pairs: PreferenceBatch, beta: float | None = None) -> dict[str, float]:
        """Return the metrics of these pairs without training on them."""
        task = _Task(pairs, self.row, beta or self.row.beta, self._reference_point(pairs))
        with torch.no_grad(), self.passes.open():
            micro_batches = self.passes.split(pairs.batch)
            for micro_batch in self.passes.counted(micro_batches, "held-out pairs"):
                stats = self.passes.stats(micro_batch)
                task.see(micro_batch, stats.logprobs_T, stats.entropy_T)
            task.exchange(self.passes.ranks)
            all_R = torch.arange(pairs.batch.num_rows, device=self.device)
            task.loss(task.logprobs_R, all_R)
        return task.metrics()

    def _reference_point(self, pairs: PreferenceBatch) -> Tensor | None:
        """Return KTO's z0; if the batch has a single prompt, no estimate exists and the result is
        0.
        """
        if self.row.paired:
            return None
        if pairs.mismatched is None:
            return torch.zeros((), dtype=torch.float64, device=self.device)
        assert pairs.mismatched_ref_logprobs_R is not None
        return reference_point(self.logprobs(pairs.mismatched), pairs.mismatched_ref_logprobs_R)

    def _plan(self, batch: Batch) -> tuple[list[MicroBatch], list[int]]:
        """Return the micro-batches of whole groups for this rank, and the rank's groups that exceed
        a micro-batch."""
        shape, most = batch.shape, self.passes.max_tokens
        costs = shape.group_tokens(self.passes.layout).tolist()
        mine = self.passes.ranks.share(range(batch.num_groups), costs)
        num_rows_P = np.bincount(shape.group_R, minlength=batch.num_groups)
        size_P = np.bincount(shape.group_R, weights=shape.length_R).astype(np.int64)
        size_P += shape.prompt_length_P * (1 if self.passes.layout == "tree" else num_rows_P)
        fits_P = (size_P <= most) | (num_rows_P == 1)
        is_mine_P = np.isin(np.arange(batch.num_groups), mine)
        fitting = np.flatnonzero(fits_P & is_mine_P)
        # With a limit above the size of the batch, each call of `split` returns one micro-batch.
        everything = int(size_P.sum()) + 1
        micro_batches = [
            part
            for first, last in fill(size_P[fitting], most)
            for part in batch.split(everything, self.passes.layout, fitting[first:last].tolist())
        ]
        return micro_batches, np.flatnonzero(~fits_P & is_mine_P).tolist()

    def _learn_apart(self, batch: Batch, groups: list[int], task: _Task) -> None:
        """Accumulate the gradient of groups whose rows need separate passes."""
        passes = self.passes
        # These groups already belong to this rank, so they are not divided among ranks again.
        parts = batch.split(passes.max_tokens, passes.layout, groups)
        with torch.no_grad():
            for part in parts:
                stats = passes.stats(part)
                task.see(part, stats.logprobs_T, stats.entropy_T)
        chosen = torch.isin(batch.group_R, torch.tensor(groups, device=batch.device))
        index_R = chosen.nonzero()[:, 0]
        logprobs_R = task.logprobs_R[index_R].requires_grad_()
        (by_logprobs_R,) = torch.autograd.grad(task.loss(logprobs_R, index_R), logprobs_R)
        gains_R = torch.zeros_like(task.logprobs_R)
        gains_R[index_R] = by_logprobs_R
        for part in self.passes.counted(parts, "update"):
            gains_T = gains_R[part.row_index_R][part.batch.row_T] * part.batch.sampled_T
            gains_T = gains_T.float()
            with passes.recomputed():
                stats = passes.stats(part, expected=Gains(gains_T))
                # The linear loss below has the true loss's gradient, and needs one row at a time.
                (gains_T * stats.logprobs_T).sum().backward()


class _Task:
    """Loss of one training step, summed over its micro-batches, and the metrics of the step."""

    def __init__(
        self, pairs: PreferenceBatch, row: Preference, beta: float, z0: Tensor | None
    ) -> None:
        batch = pairs.batch
        self.pairs, self.row, self.beta, self.z0 = pairs, row, beta, z0
        self.chosen_R = pairs.chosen_R
        sampled_T = batch.sampled_T.double()
        self.length_R = row_sums(sampled_T, batch.row_T, batch.num_rows).clamp(min=1)
        self.normalizer = batch.num_groups if row.paired else batch.num_rows
        self.logprobs_R = torch.zeros_like(self.length_R)
        self.strengths_R = torch.zeros_like(self.length_R)
        self.entropy_T = torch.zeros_like(batch.behavior_logprobs_T)
        self.losses: list[Tensor] = []

    def see(self, micro_batch: MicroBatch, logprobs_T: Tensor, entropy_T: Tensor) -> None:
        """Record the log-probabilities and entropies of the tokens in a micro-batch."""
        logprobs_R = sequence_logprobs(micro_batch.batch, logprobs_T.detach())
        self.logprobs_R[micro_batch.row_index_R] = logprobs_R
        self.entropy_T[micro_batch.token_index_T] = entropy_T.detach().float()

    def loss(self, logprobs_R: Tensor, index_R: Tensor) -> Tensor:
        """Return the contribution of the completions at ``index_R`` to the loss; pairs must be
        whole.
        """
        ref_R = self.pairs.ref_logprobs_R
        parts = preference_loss(
            logprobs_R,
            self.length_R[index_R],
            self.chosen_R[index_R],
            self.row,
            beta=self.beta,
            normalizer=self.normalizer,
            ref_logprobs_R=None if ref_R is None else ref_R[index_R],
            z0=self.z0,
        )
        self.strengths_R[index_R] = parts.strengths_R
        self.losses.append(torch.stack([parts.loss.detach(), parts.preference, parts.nll]))
        return parts.loss

    def exchange(self, ranks: Ranks) -> None:
        """Exchange the records among the learner ranks."""
        # At the completions of other ranks, a rank's records are 0, so the sums are exact.
        ranks.add([self.logprobs_R, self.strengths_R, self.entropy_T])
        self.losses = ranks.concatenate(self.losses)

    def metrics(self) -> dict[str, float]:
        """Return the metrics of all micro-batches recorded so far."""
        batch = self.pairs.batch
        total, preference, nll = torch.stack(self.losses).sum(0)
        found = {"loss/total": total, "loss/preference": preference}
        if self.row.nll_weight:
            found["loss/nll"] = nll
        found["entropy/mean"] = self.entropy_T[batch.sampled_T].double().mean()
        found |= preference_metrics(
            self.logprobs_R,
            self.strengths_R,
            self.length_R,
            self.chosen_R,
            self.row,
            self.beta,
            self.pairs.ref_logprobs_R,
        )
        if self.z0 is not None:
            found["preference/kl"] = self.z0
        counted = {
            "tokens/trained": float(batch.sampled_T.sum()),
            "preference/beta": self.beta,
            "preference/pairs" if self.row.paired else "preference/completions": self.normalizer,
        }
        return to_floats(found) | counted


def sequence_logprobs(batch: Batch, logprobs_T: Tensor) -> Tensor:
    """Return log pi(y|x) of each completion, [R] float64, as the sum over its sampled tokens."""
    chosen_T = torch.where(batch.sampled_T, logprobs_T.double(), 0.0)
    return row_sums(chosen_T, batch.row_T, batch.num_rows)


def preference_metrics(
    logprobs_R: Tensor,
    strengths_R: Tensor,
    length_R: Tensor,
    chosen_R: Tensor,
    row: Preference,
    beta: float,
    ref_logprobs_R: Tensor | None = None,
) -> dict[str, Tensor]:
    """Return means over chosen (desirable) and over rejected (undesirable) completions, as scalars.

    Keys start with ``preference/``; ``*`` is ``chosen`` or ``rejected``:

        reward_*: implicit reward.
        margin: reward_chosen - reward_rejected.
        accuracy: share of the pairs whose chosen completion has the larger implicit reward.
        logprob_*: log-probability of a completion.
        logprob_*_token: log-probability of a completion, divided by the number of its tokens.
        change_*, change_*_token: increase of the log-probability relative to the reference.
        both_fall: share of the pairs in which both log-probabilities are lower than under the
        reference. length_*: length in tokens.

    Without pairs, the accuracy compares every desirable completion with every undesirable one. In
    the accuracy, a tie counts as one half. With a reference, all comparisons are ties before the
    first step. Metrics that compare chosen and rejected completions are omitted if the batch has
    only one kind.
    """
    rewards_R = implicit_rewards(strengths_R, row, beta)
    columns = {
        "reward": rewards_R,
        "logprob": logprobs_R,
        "logprob_{}_token": logprobs_R / length_R,
        "length": length_R,
    }
    changes_R: Tensor | None = None
    if ref_logprobs_R is not None:
        changes_R = logprobs_R - ref_logprobs_R
        columns |= {"change": changes_R, "change_{}_token": changes_R / length_R}
    found: dict[str, Tensor] = {}
    for side, of_side_R in (("chosen", chosen_R), ("rejected", ~chosen_R)):
        for name, values_R in columns.items():
            key = name.format(side) if "{}" in name else f"{name}_{side}"
            if of_side_R.any():
                found[f"preference/{key}"] = values_R[of_side_R].mean()
    chosen, rejected = rewards_R[chosen_R], rewards_R[~chosen_R]
    if len(chosen) and len(rejected):
        found["preference/margin"] = chosen.mean() - rejected.mean()
        ahead = chosen - rejected if row.paired else chosen[:, None] - rejected[None]
        found["preference/accuracy"] = (0.5 + 0.5 * ahead.sign()).mean()
    if changes_R is not None and row.paired:
        both = (changes_R[chosen_R] < 0) & (changes_R[~chosen_R] < 0)
        found["preference/both_fall"] = both.double().mean()
    return found
