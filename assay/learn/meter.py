"""What an update reports. Tensors stay on their device until all is computed, and cross over once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from assay.learn.losses import LossParts, kl_estimate
from assay.learn.optimizer import StepReport
from assay.learn.rewards import judged_rows, reward_parts
from assay.learn.row import Algorithm
from assay.learn.trust_region import NaturalStep
from assay.model.packing import Batch

MISMATCH_QUANTILE = 0.99
LOSS_PARTS = ("loss/total", "loss/policy", "loss/kl", "loss/entropy")


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """What an update did. batch, advantages_T: what was learned from, as the rollout log keeps it."""

    metrics: dict[str, float]
    policy_version: int
    batch: Batch | None = None
    advantages_T: Tensor | None = None


class UpdateMeter:
    """Collects the facts of one update; `metrics` names them.

    carries_T: which tokens carry gradient; ratio and clip fraction are over these, in every pass.
    KL, entropy and mismatch are over all sampled tokens, each measured where the update first met
    it; the KL by k3, whatever the loss uses. KL(old || new) is over the tokens that are trained on, each
    measured where the update last met it, or after the update where that is asked for; it is left out
    where no step had been taken when it was measured.

    natural_steps: what each step of TRPO did. stopped_at: the steps after which the update was ended
    early; None: it was not.
    """

    def __init__(
        self, batch: Batch, advantages_T: Tensor, mask_T: Tensor, carries_T: Tensor
    ) -> None:
        self.batch = batch
        self._advantages_T = advantages_T
        self._mask_T = mask_T
        self._carries_T = carries_T
        self._logprobs_T = torch.zeros_like(batch.behavior_logprobs_T)
        self._entropy_T = torch.zeros_like(batch.behavior_logprobs_T)
        self._met_T = torch.zeros_like(batch.sampled_T)
        self._losses: list[Tensor] = []
        self._ratios: list[Tensor] = []
        self._clipped: list[Tensor] = []
        self._carries: list[Tensor] = []
        self._steps: list[StepReport] = []
        self._old_kl_T = torch.full_like(batch.behavior_logprobs_T, torch.nan)
        self._measured_after = False
        self.natural_steps: list[NaturalStep] = []
        self.stopped_at: int | None = None

    @property
    def num_steps(self) -> int:
        """Optimizer steps so far, those that were skipped among them."""
        return len(self._steps)

    def see(self, index_T: Tensor, logprobs_T: Tensor, entropy_T: Tensor) -> None:
        """Take in what the policy gave for the tokens at ``index_T`` when the update first met them."""
        self._logprobs_T[index_T] = logprobs_T.detach().float()
        self._entropy_T[index_T] = entropy_T.detach().float()
        self._met_T[index_T] = True

    def add_loss(self, index_T: Tensor, parts: LossParts) -> None:
        """Take in the loss of one micro-batch, the tokens at ``index_T``."""
        self._losses.append(
            torch.stack([parts.loss.detach(), parts.policy, parts.kl, parts.entropy])
        )
        self._ratios.append(parts.ratio_T)
        self._clipped.append(parts.clipped_T)
        self._carries.append(self._carries_T[index_T])
        self._old_kl_T[index_T] = parts.old_kl_T.float()

    def add_step(self, report: StepReport) -> None:
        """Take in one optimizer step."""
        self._steps.append(report)

    def see_old_kl(self, old_kl_T: Tensor) -> None:
        """Take in estimates of KL(old || new) of all tokens, measured after the update."""
        self._old_kl_T = old_kl_T
        self._measured_after = True

    def old_kl(self, mask_T: Tensor) -> float:
        """Return the mean KL(old || new) over the tokens in the mask, as they were last met in a loss."""
        return self._old_kl_T[mask_T].double().mean().item()

    def old_logprobs(self) -> Tensor:
        """Return the policy's log-probabilities [T] before the update: scored, or as first met."""
        scored_T = self.batch.old_logprobs_T
        return self._logprobs_T if scored_T is None else scored_T

    def batch_as_seen(self) -> Batch:
        """Return the batch with its old log-probabilities filled in."""
        return replace(self.batch, old_logprobs_T=self.old_logprobs())

    def metrics(self) -> dict[str, float]:
        """Return the metrics; one that has nothing to be measured on is left out."""
        sampled_T, think_T = self.batch.sampled_T, self.batch.think_T
        met_T = sampled_T & self._met_T  # all of them, unless the update ended early
        mismatch_T = (self.batch.behavior_logprobs_T - self.old_logprobs()).abs()[sampled_T]
        values = {
            "entropy/mean": self._entropy_T[met_T],
            "mismatch/mean": mismatch_T,
            "advantage/mean": self._advantages_T[self._mask_T],
            "loss/token_share": self._carries_T[sampled_T],
        }
        if self._measured_after or self.stopped_at is not None or self.num_steps > 1:
            values["kl/old"] = self._old_kl_T[self._mask_T & ~self._old_kl_T.isnan()]
        if self.batch.ref_logprobs_T is not None:
            kl_T = kl_estimate(self._logprobs_T, self.batch.ref_logprobs_T, "k3")
            values["kl/mean"] = kl_T[met_T]
            values["kl/think"] = kl_T[met_T & think_T]
            values["kl/answer"] = kl_T[met_T & ~think_T]
        extremes: dict[str, Tensor] = {}
        if len(mismatch_T):
            extremes["mismatch/p99"] = _quantile(mismatch_T, MISMATCH_QUANTILE)
        if len(values["advantage/mean"]):
            extremes["advantage/std"] = values["advantage/mean"].double().std(correction=0)
        if self._losses:
            carries_T = torch.cat(self._carries)
            ratio_T = torch.cat(self._ratios)[carries_T]
            values["ratio/mean"] = ratio_T
            values["loss/clip_fraction"] = torch.cat(self._clipped)[carries_T]
            if len(ratio_T):
                extremes["ratio/max"], extremes["ratio/min"] = ratio_T.max(), ratio_T.min()
            per_step = torch.stack(self._losses).sum(0) / max(1, len(self._steps))
            extremes |= dict(zip(LOSS_PARTS, per_step, strict=True))
        means = {name: part.double().mean() for name, part in values.items() if len(part)}
        counted = {"tokens/trained": float(self._mask_T.sum())}
        if self.stopped_at is not None:
            counted["update/stopped_at"] = float(self.stopped_at)
        counted |= natural_metrics(self.natural_steps)
        return to_floats(means | extremes) | counted | step_metrics(self._steps)


def reward_metrics(batch: Batch, algorithm: Algorithm) -> dict[str, float]:
    """Return the mean of what the algorithm adds to the verdicts' rewards, by part, over judged completions."""
    judged_R = judged_rows(batch)
    if not judged_R.any():
        return {}
    parts = reward_parts(batch, algorithm)
    parts.pop("outcome")
    return to_floats({f"reward/{name}": part[judged_R].mean() for name, part in parts.items()})


def step_metrics(steps: Sequence[StepReport]) -> dict[str, float]:
    """Return the optimizer's metrics over the steps of one update; grad_norm before clipping."""
    metrics: dict[str, float] = {}
    taken = [report for report in steps if not report.skipped]
    if taken:
        metrics["optimizer/grad_norm"] = sum(report.grad_norm for report in taken) / len(taken)
        metrics["optimizer/learning_rate"] = taken[-1].learning_rate
    metrics["optimizer/steps"] = float(len(taken))
    metrics["optimizer/skipped"] = float(len(steps) - len(taken))
    return metrics


def natural_metrics(steps: Sequence[NaturalStep]) -> dict[str, float]:
    """Return the means over the natural steps of one update; empty where there are none."""
    found = [step.metrics() for step in steps]
    return (
        {name: sum(one[name] for one in found) / len(found) for name in found[0]} if found else {}
    )


def to_floats(values: Mapping[str, Tensor]) -> dict[str, float]:
    """Return scalars as floats, sorted by name, in one transfer."""
    if not values:
        return {}
    names = sorted(values)
    numbers = torch.stack([values[name].double() for name in names]).tolist()
    return dict(zip(names, numbers, strict=True))


def _quantile(values_T: Tensor, q: float) -> Tensor:
    """The smallest value that at least a share ``q`` of all does not exceed, for any number of them."""
    return values_T.kthvalue(math.ceil(len(values_T) * q)).values
