"""Metrics of an update. Metrics of a policy update; all tensors stay on their device until the
metrics are computed."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from assay.learn.algorithms import Algorithm
from assay.learn.base import step_metrics, to_floats
from assay.learn.losses import kl_estimate
from assay.learn.policy_update import PolicyUpdate
from assay.learn.rewards import judged_rows, reward_parts
from assay.model.packing import Batch

MISMATCH_QUANTILE = 0.99
LOSS_PARTS = ("loss/total", "loss/policy", "loss/kl", "loss/entropy")


def update_metrics(seen: PolicyUpdate) -> dict[str, float]:
    """Return the metrics of a policy update. Metrics without data are omitted.

    The ratio and the clip fraction cover the tokens that carry gradient, in all epochs. Entropy,
    mismatch and the KL to the reference cover all sampled tokens, at the first forward pass of each
    token in the update. The metric of the KL to the reference uses the k3 estimator, whatever
    estimator the loss uses, and skips tokens without a teacher score. The metric KL(old || new)
    covers the trained tokens. KL(old || new) is omitted if no optimizer step preceded the
    measurement.
    """
    batch, mask_T = seen.batch, seen.advantages.mask_T
    sampled_T, think_T = batch.sampled_T, batch.think_T
    # After an early stop of the update, some tokens have had no forward pass.
    met_T = sampled_T & seen.met_T
    mismatch_T = (batch.behavior_logprobs_T - seen.old_logprobs_T).abs()[sampled_T]
    values = {
        "entropy/mean": seen.entropy_T[met_T],
        "mismatch/mean": mismatch_T,
        "advantage/mean": seen.advantages.advantages_T[mask_T],
        "loss/token_share": seen.carries_T[sampled_T],
    }
    if seen.kl_after or seen.stopped_at is not None or len(seen.steps) > 1:
        values["kl/old"] = seen.old_kl_T[mask_T & ~seen.old_kl_T.isnan()]
    if batch.ref_logprobs_T is not None:
        kl_T = kl_estimate(seen.first_logprobs_T, batch.ref_logprobs_T, "k3")
        unheard_T = batch.ref_logprobs_T == torch.inf
        # Only a teacher with another tokenizer leaves some tokens without a score.
        if (unheard_T | batch.ref_logprobs_T.isnan()).any():
            values["kl/unaligned"] = unheard_T[sampled_T]
            met_T = met_T & ~unheard_T
        values["kl/mean"] = kl_T[met_T]
        values["kl/think"] = kl_T[met_T & think_T]
        values["kl/answer"] = kl_T[met_T & ~think_T]
    extremes: dict[str, Tensor] = {}
    if len(mismatch_T):
        extremes["mismatch/p99"] = _quantile(mismatch_T, MISMATCH_QUANTILE)
    if len(values["advantage/mean"]):
        extremes["advantage/std"] = values["advantage/mean"].double().std(correction=0)
    if seen.losses:
        carries_T = torch.cat([carried for _, carried in seen.losses])
        ratio_T = torch.cat([parts.ratio_T for parts, _ in seen.losses])[carries_T]
        values["ratio/mean"] = ratio_T
        clipped_T = torch.cat([parts.clipped_T for parts, _ in seen.losses])
        values["loss/clip_fraction"] = clipped_T[carries_T]
        if len(ratio_T):
            extremes["ratio/max"], extremes["ratio/min"] = ratio_T.max(), ratio_T.min()
        losses = [torch.stack([p.loss, p.policy, p.kl, p.entropy]) for p, _ in seen.losses]
        # The losses of the micro-batches of one optimizer step add up, so only steps are averaged.
        per_step = torch.stack(losses).sum(0) / max(1, len(seen.steps))
        extremes |= dict(zip(LOSS_PARTS, per_step, strict=True))
    means = {name: part.double().mean() for name, part in values.items() if len(part)}
    counted = {"tokens/trained": float(mask_T.sum())}
    if seen.stopped_at is not None:
        counted["update/stopped_at"] = float(seen.stopped_at)
    counted |= age_metrics(batch, seen.policy_version)
    natural = [step.metrics() for step in seen.natural_steps]
    for name in natural[0] if natural else ():
        counted[name] = sum(one[name] for one in natural) / len(natural)
    return to_floats(means | extremes) | counted | step_metrics(seen.steps)


def age_metrics(batch: Batch, policy_version: int) -> dict[str, float]:
    """Return the ages of sampled tokens in policy versions; {} if all ages are 0.

    spanning: share of the completions whose tokens were sampled by several policy versions.
    age_passed, age_failed: mean age of the tokens in completions that passed or failed. If these
    ages differ, difficult problems, whose completions are often long, are learned from later.
    """
    sampled_T, num_rows = batch.sampled_T, len(batch.length_R)
    age_T = (policy_version - batch.versions_T)[sampled_T]
    # Synchronous training always samples from the newest policy version, so the ages are 0.
    if not (age_T > 0).any():
        return {}
    row_T = batch.row_T[sampled_T]
    youngest_R = age_T.new_full((num_rows,), torch.iinfo(age_T.dtype).max)
    youngest_R.scatter_reduce_(0, row_T, age_T, "amin")
    oldest_R = age_T.new_zeros(num_rows).scatter_reduce_(0, row_T, age_T, "amax")
    found = {
        "policy/age_mean": age_T.double().mean().item(),
        "policy/age_max": float(age_T.max()),
        "policy/spanning": (oldest_R > youngest_R).double().mean().item(),
    }
    for name, correct in (("policy/age_passed", 1.0), ("policy/age_failed", 0.0)):
        own_T = age_T[batch.correct_R[row_T] == correct]
        if len(own_T):
            found[name] = own_T.double().mean().item()
    return found


def reward_metrics(batch: Batch, algorithm: Algorithm) -> dict[str, float]:
    """Return the mean of each additional reward term over the judged completions."""
    judged_R = judged_rows(batch)
    if not judged_R.any():
        return {}
    parts = reward_parts(batch, algorithm)
    parts.pop("outcome")
    return to_floats({f"reward/{name}": part[judged_R].mean() for name, part in parts.items()})


def _quantile(values_T: Tensor, q: float) -> Tensor:
    """Return the smallest value v such that a share ``q`` of all values is at most v."""
    # `torch.quantile` does not accept tensors of more than 2^24 elements.
    return values_T.kthvalue(math.ceil(len(values_T) * q)).values
