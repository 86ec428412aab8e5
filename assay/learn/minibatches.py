"""The groups of a batch, shared out among optimizer steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from assay.learn.rows import row_sums
from assay.model.packing import Batch


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


def tokens_of(batch: Batch, groups: Sequence[int]) -> Tensor:
    """Return which tokens are of these groups, [T] bool."""
    chosen_P = torch.zeros(batch.num_groups, dtype=torch.bool, device=batch.device)
    chosen_P[groups] = True
    return chosen_P[batch.group_R[batch.row_T]]


def groups_with(batch: Batch, mask_T: Tensor) -> set[int]:
    """Return the groups that have a token in the mask."""
    count_P = row_sums(mask_T.long(), batch.group_R[batch.row_T], batch.num_groups)
    return {group for group, count in enumerate(count_P.tolist()) if count}
