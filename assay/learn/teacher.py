"""A model beside the policy that says how each next token should have been distributed."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from assay.learn.passes import Passes
from assay.model.decoder import hidden_states
from assay.model.divergence import Divergence
from assay.model.head import Head
from assay.model.packing import Batch, MicroBatch
from assay.model.targets import TeacherStates


class TeacherModel:
    """A frozen model, and the divergence from it.

    Its layers may be on another device than the policy; its head is asked beside the policy's, on
    ``device``.
    """

    def __init__(self, model: Any, divergence: Divergence, device: torch.device) -> None:
        self.model = model.requires_grad_(False)
        self.divergence = divergence
        self._device = next(model.parameters()).device
        head = Head.of(model)
        bias_V = None if head.bias_V is None else head.bias_V.to(device)
        self._head = Head(head.weight_VD.to(device), bias_V, head.scale, head.softcap)

    @torch.no_grad()
    def target(self, micro_batch: MicroBatch, passes: Passes) -> TeacherStates:
        """Return the teacher's distributions at the tokens of a micro-batch, by a forward pass."""
        inputs = micro_batch.to(self._device).inputs(passes.layout)
        hidden_TD = hidden_states(self.model, inputs, passes.lean)
        return TeacherStates(self._head, hidden_TD.to(passes.device), self.divergence)

    def likeliest(
        self, batch: Batch, passes: Passes, count: int, size: int
    ) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Return of each row of a batch what `TeacherStates.likeliest` does of its tokens."""
        found: dict[int, tuple[Tensor, Tensor, Tensor]] = {}
        with passes.open():
            for part in passes.split(batch):
                columns = self.target(part, passes).likeliest(count, size)
                lengths = part.batch.length_R.tolist()
                rows = zip(*(column.split(lengths) for column in columns), strict=True)
                found.update(zip(part.row_index_R.tolist(), rows, strict=True))
        return [found[row] for row in range(batch.num_rows)]

    @contextmanager
    def policy(self) -> Generator[nn.Module]:
        """Give the model where a reference policy is asked for."""
        yield self.model
