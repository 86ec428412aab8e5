"""Sums and medians over the rows or groups of a packed batch, and token masks of groups."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from assay.model.packing import Batch
from assay.model.transfer import on_device


def row_sums(values_T: Tensor, row_T: Tensor, num_rows: int) -> Tensor:
    """Return the sum over the tokens of each row, [R]."""
    return values_T.new_zeros(num_rows).index_add_(0, row_T, values_T)


def of_rows(values_R: Tensor, row_T: Tensor) -> Tensor:
    """Expand row values to tokens: ``values_R[row_T]`` with a deterministic gradient, [T].

    The backward pass adds the gradients of the tokens of a row in a fixed order. Indexing adds in
    no fixed order on a CPU, and `index_select` does not on CUDA, so each device uses the other
    operation.
    """
    return values_R[row_T] if values_R.is_cuda else values_R.index_select(0, row_T)


def row_medians(values_T: Tensor, mask_T: Tensor, row_T: Tensor, num_rows: int) -> Tensor:
    """Return the median of each row's values inside the mask, [R]; 0 for rows without such values.

    The median of an even number of values is the mean of the two middle values.
    """
    count_R = row_sums(mask_T.long(), row_T, num_rows)
    if not mask_T.any():
        return values_T.new_zeros(num_rows)
    values_N, row_N = values_T[mask_T], row_T[mask_T]
    order_N = values_N.argsort(stable=True)
    sorted_N = values_N[order_N[row_N[order_N].argsort(stable=True)]]
    first_R = count_R.cumsum(0) - count_R
    last = len(sorted_N) - 1
    lower_R = sorted_N[(first_R + (count_R - 1).clamp(min=0) // 2).clamp(max=last)]
    upper_R = sorted_N[(first_R + count_R // 2).clamp(max=last)]
    # Half of the distance is added, so that the median of two equal values is exact.
    return torch.where(count_R > 0, lower_R + (upper_R - lower_R) / 2, 0.0)


def tokens_of(batch: Batch, groups: Sequence[int]) -> Tensor:
    """Return the mask of the tokens that belong to these groups, [T] bool."""
    # Indexing by a list would wait for the device, so the mask is built in host memory.
    chosen_P = torch.zeros(batch.num_groups, dtype=torch.bool)
    chosen_P[groups] = True
    return on_device(chosen_P, batch.device)[batch.group_R[batch.row_T]]


def groups_with(batch: Batch, mask_T: Tensor) -> set[int]:
    """Return the groups that have at least one token in the mask."""
    count_P = row_sums(mask_T.long(), batch.group_R[batch.row_T], batch.num_groups)
    return {group for group, count in enumerate(count_P.tolist()) if count}
