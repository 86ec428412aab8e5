"""Weights that answer what they weigh: one pure rule each, from a measured KL to the next weight.

Two different KLs are steered, and are not to be confused: that of one update, KL(old || new), by the
weight of a penalty on it; and that to the frozen reference, by the weight of the KL term.
"""

from __future__ import annotations

import sys
from dataclasses import replace

from assay.learn.algorithms import Algorithm

PENALTY_BAND = 1.5
"""How far the KL of an update may be from its target, as a factor either way, before the weight moves."""
PENALTY_FACTOR = 2.0
MAX_ERROR = 0.2
"""A deviation of the reference KL counts at most this much, as a share of its target."""


def next_penalty_weight(weight: float, kl: float, target: float) -> float:
    """Return the weight of the penalty on KL(old || new) for the next update.

        kl < target / 1.5    weight / 2
        kl > target * 1.5    weight * 2

    Schulman et al. 2017 (PPO), section 4; ``kl`` is measured after the update that ``weight`` was used
    in, in the unit of ``target``. A KL that is not a number leaves the weight; it never becomes 0, from
    where it could not be doubled.
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

    Ziegler et al. 2019 (arXiv 1909.08593), section 2.2: there the gain K is 0.1 a batch; here it is the
    step's number of completions over a horizon, so that it does not depend on how large a step is. A KL
    that is not a number leaves the weight; no weight falls to 0 or below, whatever the horizon.
    """
    if kl != kl:
        return weight
    error = min(max((kl - target) / target, -MAX_ERROR), MAX_ERROR)
    return weight * max(1.0 + error * num_completions / horizon, 1.0 - MAX_ERROR)


def steer(
    algorithm: Algorithm, *, kl: float | None, old_kl: float | None, num_completions: int
) -> Algorithm:
    """Return the row for the next step, with its dynamic weights moved where it has any.

    kl: mean KL to the reference; old_kl: mean KL(old || new) after the update, both in nats a token.
    None: not measured, and the weight stays.
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
