"""Decoding steps as captured CUDA graphs: one launch a step, whatever the number of layers.

A graph replays the very kernels on the very memory it was captured with. So a step's inputs are
copied into fixed tensors; weights are read where they are, and updates in place are seen; and
wherever the cache or the model takes other memory, all graphs are dropped and captured anew.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from assay.generate.kv_cache import Extent
from assay.generate.lean import LeanForward

Capture = Callable[[Callable[[], Tensor]], tuple[Callable[[], None], Tensor]]


@dataclass(frozen=True, eq=False)
class _Step:
    """A captured step: what it reads, what plays it again, and where its logits then are."""

    tokens_S: Tensor
    positions_S: Tensor
    replay: Callable[[], None]
    logits_SV: Tensor


class CapturedForward(LeanForward):
    """The lean way with its steps captured, one for each (rows, extent in blocks).

    capture: takes a step, and returns what replays it and the tensor that holds the result.
    """

    name = "captured"

    def __init__(
        self, model: nn.Module, shared: bool = False, capture: Capture | None = None
    ) -> None:
        super().__init__(model, shared=shared)
        self._capture = capture or capture_graph
        self._steps: dict[tuple[int, Extent], _Step] = {}
        self._memory: tuple[int, ...] = ()

    def refresh(self, num_rows: int) -> None:
        """Drop what was captured, and read the live model again."""
        self._steps.clear()
        super().refresh(num_rows)

    def end_call(self) -> None:
        """Give back cache and graphs, which work on its memory."""
        self.release()

    def release(self) -> None:
        self._steps.clear()
        super().release()

    def decode(self, tokens_S: Tensor, positions_S: Tensor, extent: Extent) -> Tensor:
        self.reach(extent)
        if self._memory != self.memory():
            self._steps.clear()
            self._memory = self.memory()
        extent = self.cache.in_blocks(extent)
        key = (len(tokens_S), extent)
        step = self._steps.get(key)
        if step is None:
            step = self._steps[key] = self._captured(tokens_S.clone(), positions_S.clone(), extent)
        step.tokens_S.copy_(tokens_S)
        step.positions_S.copy_(positions_S)
        step.replay()
        return step.logits_SV.clone()  # the next replay writes over it

    def _captured(self, tokens_S: Tensor, positions_S: Tensor, extent: Extent) -> _Step:
        plain = super().decode
        replay, logits_SV = self._capture(lambda: plain(tokens_S, positions_S, extent))
        return _Step(tokens_S, positions_S, replay, logits_SV)


def capture_graph(step: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
    """Capture a step on the current CUDA device, after one that sets up what libraries set up
    once."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        step()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = step()
    return graph.replay, result
