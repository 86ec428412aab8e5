"""Teachers that return next-token distributions: a local model, or a remote model that returns
top-k log-probabilities."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from assay.learn.passes import Passes
from assay.model.decoder import hidden_states
from assay.model.divergence import Divergence
from assay.model.head import Head
from assay.model.packing import Batch, MicroBatch
from assay.model.targets import TeacherStates, TopKLogprobs

TopK = tuple[Tensor, Tensor, Tensor]
"""Top-k tokens of the teacher, their log-probabilities, and that of all other tokens together."""


class TeacherModel:
    """A frozen teacher model in this process, and its divergence from the policy.

    The layers of the teacher may be on a different device than the policy. The output head of the
    teacher runs on ``device``, the device of the policy's head.

    context_length: maximum number of tokens per sequence; None means no limit.
    """

    def __init__(
        self,
        model: Any,
        divergence: Divergence,
        device: torch.device,
        context_length: int | None = None,
    ) -> None:
        self.model = model.requires_grad_(False)
        self.divergence, self.context_length = divergence, context_length
        self._device = next(model.parameters()).device
        head = Head.of(model)
        # Hidden states [T, D] are smaller than logits [T, V], so they are copied between devices.
        bias_V = None if head.bias_V is None else head.bias_V.to(device)
        self._head = Head(head.weight_VD.to(device), bias_V, head.scale, head.softcap)

    @torch.no_grad()
    def target(self, micro_batch: MicroBatch, passes: Passes) -> TeacherStates:
        """Compute the teacher's distributions at the tokens of a micro-batch by a forward pass."""
        inputs = micro_batch.to(self._device).inputs(passes.layout)
        hidden_TD = hidden_states(self.model, inputs, passes.lean)
        return TeacherStates(self._head, hidden_TD.to(passes.device), self.divergence)

    def top_k(self, batch: Batch, passes: Passes, count: int, size: int) -> list[TopK]:
        """Return the top-k tokens (`TeacherStates.top_k`) for each row of a batch."""
        found: dict[int, TopK] = {}
        with passes.open():
            for part in passes.split(batch):
                columns = self.target(part, passes).top_k(count, size)
                lengths = part.batch.length_R.tolist()
                rows = zip(*(column.split(lengths) for column in columns), strict=True)
                found.update(zip(part.row_index_R.tolist(), rows, strict=True))
        return [found[row] for row in range(batch.num_rows)]

    @property
    def size(self) -> int:
        """Vocabulary size of the head."""
        return len(self._head.weight_VD)

    def logprobs(self, batch: Batch, passes: Passes) -> Tensor:
        """Return the log-probability of each token under the teacher, [T] float32."""
        return passes.logprobs(batch, self.model)


class CachedTeacher:
    """Top-k distributions of a teacher for one batch, in the order of the batch's tokens."""

    def __init__(self, found: TopK, divergence: Divergence) -> None:
        self._found = found
        self._divergence = divergence

    def target(self, micro_batch: MicroBatch, passes: Passes) -> TopKLogprobs:
        """Return the cached teacher distributions at the tokens of a micro-batch."""
        index_T = micro_batch.token_index_T
        tokens_TK, logprobs_TK, rest_T = (one[index_T].to(passes.device) for one in self._found)
        return TopKLogprobs(tokens_TK, logprobs_TK, rest_T, self._divergence)


class TeacherElsewhere(ABC):
    """A teacher in another process, which returns top-k log-probabilities for each token.

    count: k. In the divergence, all tokens outside of the top k count as one event. size: number of
    tokens in the policy's vocabulary.
    """

    model = None
    context_length: int | None = None

    def __init__(self, count: int, size: int, divergence: Divergence) -> None:
        self.count, self.size, self.divergence = count, size, divergence

    @abstractmethod
    def top_k(self, batch: Batch, passes: Passes, count: int, size: int) -> list[TopK]:
        """Return the top-k tokens in the format of `TeacherModel.top_k`."""

    @abstractmethod
    def logprobs(self, batch: Batch, passes: Passes) -> Tensor:
        """Return token log-probabilities in the format of `TeacherModel.logprobs`."""

    def cached(self, batch: Batch, passes: Passes) -> CachedTeacher:
        """Query the teacher for all tokens of a batch, and return the results."""
        rows = self.top_k(batch, passes, self.count, self.size)
        tokens_TK, logprobs_TK, rest_T = map(torch.cat, zip(*rows, strict=True))
        return CachedTeacher((tokens_TK, logprobs_TK, rest_T), self.divergence)

    def target(self, micro_batch: MicroBatch, passes: Passes) -> TopKLogprobs:
        """Return the teacher's top-k distributions at the tokens of a micro-batch."""
        rows = self.top_k(micro_batch.batch, passes, self.count, self.size)
        columns = (torch.cat(column).to(passes.device) for column in zip(*rows, strict=True))
        tokens_TK, logprobs_TK, rest_T = columns
        return TopKLogprobs(tokens_TK, logprobs_TK, rest_T, self.divergence)


class AbsentTeacher(TeacherElsewhere):
    """Replacement in the other learner ranks for a teacher that only rank 0 queries."""

    def __init__(self) -> None:
        super().__init__(1, 1, Divergence())

    def top_k(self, batch: Batch, passes: Passes, count: int, size: int) -> list[TopK]:
        """Raise an error, because only rank 0 may send the teacher's results."""
        raise AssertionError("only rank 0 queries this teacher")

    def logprobs(self, batch: Batch, passes: Passes) -> Tensor:
        """Raise an error, because only rank 0 may send the teacher's results."""
        raise AssertionError("only rank 0 queries this teacher")


OpenTeacher = TeacherModel | TeacherElsewhere
