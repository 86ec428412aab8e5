"""Learner protocol: groups, verdicts and advantages are the input, and an update of the policy is
the output.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from assay.learn.advantages import Advantages
from assay.learn.algorithms import Algorithm
from assay.learn.optimizer import StepReport
from assay.model.packing import Batch
from assay.model.weights import Weights
from assay.types import Group, Verdict


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """Result of one update.

    batch, advantages_T: training data of the update, for the rollout log.
    """

    metrics: dict[str, float]
    policy_version: int
    batch: Batch | None = None
    advantages_T: Tensor | None = None


class Learner(Protocol):
    """Protocol of learners, which train a policy with an algorithm preset."""

    @property
    def algorithm(self) -> Algorithm:
        """The preset in effect, whose dynamic weights change from batch to batch."""
        ...

    def score(
        self,
        groups: Sequence[Group],
        verdicts: Sequence[Sequence[Verdict]],
        temperature: float | None = None,
    ) -> Batch:
        """Pack the groups into a batch, and add the log-probabilities and values from which
        advantages are computed.

        temperature: temperature at which the groups were sampled.
        """
        ...

    def update(self, batch: Batch, advantages: Advantages) -> Update:
        """Train on a scored batch and its advantages."""
        ...

    def weights(self) -> Weights:
        """Return the current weights of the policy for a generator."""
        ...

    def save_state(self, folder: Path) -> None:
        """Write the policy, and all state that training needs to resume."""
        ...

    def load_state(self, folder: Path) -> None:
        """Restore a state that `save_state` wrote, bit for bit. Raises RunError."""
        ...


def step_metrics(steps: Sequence[StepReport]) -> dict[str, float]:
    """Return optimizer metrics averaged over the steps of one update.

    ``optimizer/grad_norm`` is the gradient norm before clipping.
    """
    metrics: dict[str, float] = {}
    taken = [report for report in steps if not report.skipped]
    if taken:
        metrics["optimizer/grad_norm"] = sum(report.grad_norm for report in taken) / len(taken)
        metrics["optimizer/learning_rate"] = taken[-1].learning_rate
    metrics["optimizer/steps"] = float(len(taken))
    metrics["optimizer/skipped"] = float(len(steps) - len(taken))
    return metrics


def to_floats(values: Mapping[str, Tensor]) -> dict[str, float]:
    """Return scalars as floats, sorted by name, with one transfer from the device."""
    if not values:
        return {}
    # Reading each scalar separately would wait for the device once per scalar.
    names = sorted(values)
    numbers = torch.stack([values[name].double() for name in names]).tolist()
    return dict(zip(names, numbers, strict=True))
