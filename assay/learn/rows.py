"""Sums and medians over the rows of a packed batch or its groups, and the tokens of some groups."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from assay.model.packing import Batch


def row_sums(values_T: Tensor, row_T: Tensor, num_rows: int) -> Tensor:
    """Return the sum of each row's values, [R]."""
    return values_T.new_zeros(num_rows).index_add_(0, row_T, values_T)


def of_rows(values_R: Tensor, row_T: Tensor) -> Tensor:
    """Return each token's value of its row, [T]: ``values_R[row_T]``, with a gradient that repeats.

    Gradients of a row's tokens are added in the same order every time: on a CPU indexing does not
    promise that, on CUDA `index_select` does not.
    """
    return values_R[row_T] if values_R.is_cuda else values_R.index_select(0, row_T)


def row_medians(values_T: Tensor, mask_T: Tensor, row_T: Tensor, num_rows: int) -> Tensor:
    """Return the median of each row's values in the mask, [R]; 0 where there are none.

    Of an even number, the mean of the two in the middle.
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
    # Half the distance, so that two equal values have exactly that value as their median.
    return torch.where(count_R > 0, lower_R + (upper_R - lower_R) / 2, 0.0)


def tokens_of(batch: Batch, groups: Sequence[int]) -> Tensor:
    """Return which tokens are of these groups, [T] bool."""
    chosen_P = torch.zeros(batch.num_groups, dtype=torch.bool, device=batch.device)
    chosen_P[groups] = True
    return chosen_P[batch.group_R[batch.row_T]]


def groups_with(batch: Batch, mask_T: Tensor) -> set[int]:
    """Return the groups that have a token in the mask."""
    count_P = row_sums(mask_T.long(), batch.group_R[batch.row_T], batch.num_groups)
    return {group for group, count in enumerate(count_P.tolist()) if count}
