"""Optimizer state that is divided among the learner ranks, while every rank holds all weights.

Each rank steps a slice of the weights and stores the optimizer state of that slice (ZeRO stage 1;
Rajbhandari et al., 2020, arXiv 1910.02054). After a step the ranks exchange their slices.
`torch.distributed.optim.ZeroRedundancyOptimizer` divides by whole parameters only and steps the
parameter's type, without float32 master weights, so it does not fit `assay.learn.adamw`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from assay.learn.adamw import CPU_PIECE, AdamW, State
from assay.learn.ranks import Ranks


def slices_of(parameters: Mapping[str, Tensor], size: int) -> list[dict[str, slice]]:
    """Return, for each of ``size`` ranks, the range of each flattened parameter that it steps.

    The ranges cover every element once. They consist of whole pieces of AdamW, so the slices of
    few or small parameters, such as adapters, are uneven.
    """
    total = sum(parameter.numel() for parameter in parameters.values())
    found: list[dict[str, slice]] = [{} for _ in range(size)]
    before = 0
    for name, parameter in parameters.items():
        count = parameter.numel()
        # A slice consists of the pieces in which AdamW steps a whole parameter, because the last
        # elements of a piece may round differently. A step thus has the bits of undivided state.
        for first in range(0, count, CPU_PIECE):
            last = min(first + CPU_PIECE, count)
            middle = before + (first + last) // 2
            mine = found[min(size - 1, middle * size // max(1, total))]
            mine[name] = slice(mine[name].start if name in mine else first, last)
        before += count
    return found


class StateSlices:
    """The slices of all ranks, and their exchange. parameters: trained parameters, contiguous."""

    def __init__(self, parameters: Mapping[str, Tensor], ranks: Ranks) -> None:
        self.parameters = parameters
        self.ranks = ranks
        self.all = slices_of(parameters, ranks.size)

    @property
    def own(self) -> dict[str, slice]:
        """The slices of this rank."""
        return self.all[self.ranks.rank]

    @torch.no_grad()
    def exchange(self, names: Collection[str]) -> None:
        """Copy the weights of the named parameters from the rank that stepped them to all ranks."""
        for rank, slices in enumerate(self.all):
            stepped = [name for name in slices if name in names]
            parts = [self.parameters[name].detach().reshape(-1)[slices[name]] for name in stepped]
            self.ranks.spread(parts, rank)

    @torch.no_grad()
    def collected(self, rule: AdamW) -> State:
        """Return the state of whole parameters in rank 0, and this rank's state in other ranks.

        Every rank must call this method.
        """
        whole: State = {}
        if self.ranks.rank == 0:
            for name in self.parameters:
                if name in rule.num_steps:
                    shape, device = self.parameters[name].shape, self.parameters[name].device
                    dtypes = rule.dtypes(name).items()
                    whole[name] = {
                        key: torch.empty(shape, dtype=one, device=device) for key, one in dtypes
                    }
        for rank, slices in enumerate(self.all):
            names = [name for name in slices if name in rule.num_steps]
            for key in sorted({key for name in names for key in rule.dtypes(name)}):
                having = [name for name in names if key in rule.dtypes(name)]
                mine = [rule.state[name][key] for name in having if rank == self.ranks.rank]
                rooms = [whole[name][key].view(-1)[slices[name]] for name in having if whole]
                if rank == self.ranks.rank == 0:
                    for room, held in zip(rooms, mine, strict=True):
                        room.copy_(held)
                elif self.ranks.rank in (0, rank):
                    self.ranks.bring(mine or rooms, rank)
        return whole or rule.state
