"""Decoding steps as captured CUDA graphs: one launch per step for any number of layers.

A CUDA graph replays its kernels on the same memory addresses as in the capture. Each decoding step
therefore copies its inputs to fixed tensors, and a replay reads weights that were updated in place.
When the key-value cache or the model moves to other memory, all graphs are dropped and captured
again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from assay.generate.kv_cache import Extent
from assay.generate.lean import LeanForward

Capture = Callable[[Callable[[], Tensor]], tuple[Callable[[], None], Tensor]]


@dataclass(frozen=True, eq=False)
class _Step:
    """A captured step: its input tensors, its replay function and its output tensor."""

    tokens_S: Tensor
    positions_S: Tensor
    replay: Callable[[], None]
    logits_SV: Tensor


class CapturedForward(LeanForward):
    """The lean decoder with one captured graph per (rows, extent in blocks).

    A step's logits are valid until the next step, which overwrites them. capture: function that
    captures a step, and returns the replay function and the output tensor.
    """

    name = "captured"

    def __init__(
        self, model: nn.Module, shared: bool = False, capture: Capture | None = None
    ) -> None:
        super().__init__(model, shared=shared)
        self._capture = capture or capture_graph
        self._capture_again = capture or _recorded
        self._steps: dict[tuple[int, Extent], _Step] = {}
        # Shapes that were captured before.
        # Capturing a shape again, after its first graph was dropped, needs no second warm-up run.
        self._known: set[tuple[int, Extent]] = set()
        self._memory: tuple[int, ...] = ()

    def refresh(self, num_rows: int) -> None:
        """Drop all graphs, and read the live model's parameters again."""
        self._steps.clear()
        super().refresh(num_rows)

    def end_call(self) -> None:
        """Free the cache, and the graphs, which contain the cache's addresses."""
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
        # The logits are not copied, because the copy would take longer than many kernels of the
        # step.
        return step.logits_SV

    def _captured(self, tokens_S: Tensor, positions_S: Tensor, extent: Extent) -> _Step:
        plain, key = super().decode, (len(tokens_S), extent)
        capture = self._capture_again if key in self._known else self._capture
        replay, logits_SV = capture(lambda: plain(tokens_S, positions_S, extent))
        self._known.add(key)
        return _Step(tokens_S, positions_S, replay, logits_SV)


class CapturedSampling:
    """Sampling as a captured graph, for logits that each step writes to the same memory.

    draw: function of logits and uniforms that returns sampled values. The first call for a logits
    tensor is not captured, because the logits of a step without a graph are sampled only once.
    """

    def __init__(
        self, draw: Callable[[Tensor, Tensor], Tensor], capture: Capture | None = None
    ) -> None:
        self._draw = draw
        self._capture = capture or capture_graph
        self._last_address = 0
        # A captured graph is stored with its logits (read in place), uniforms, replay function and
        # sampled values.
        self._graph: tuple[Tensor, Tensor, Callable[[], None], Tensor] | None = None

    def __call__(self, logits_SV: Tensor, uniforms_S: Tensor) -> Tensor:
        """Return the sampled values in a tensor; the next call overwrites the tensor."""
        seen, self._last_address = self._last_address == logits_SV.data_ptr(), logits_SV.data_ptr()
        graph = self._graph
        if graph is None or graph[0].data_ptr() != logits_SV.data_ptr():
            if not seen:
                return self._draw(logits_SV, uniforms_S)
            steady_S = uniforms_S.clone()
            captured = self._capture(lambda: self._draw(logits_SV, steady_S))
            graph = self._graph = (logits_SV, steady_S, *captured)
        graph[1].copy_(uniforms_S)
        graph[2]()
        return graph[3]


class Captures:
    """Captures functions as CUDA graphs; each function must have run once before its capture. All
    graphs of one capturer share the memory for temporary tensors.

    Graphs that share memory must be replayed one after the other. Each graph has a result tensor of
    its own. capture: function that captures a graph, as in `CapturedForward`.
    """

    def __init__(self, capture: Capture | None = None) -> None:
        self._capture = capture
        self._pool: Any = None

    def __call__(self, step: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        if self._capture is not None:
            return self._capture(step)
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        return _recorded(step, self._pool)

    def forget(self) -> None:
        """Use a new memory pool for graphs that are captured after this call.

        When the last graph of the old memory pool is dropped, the pool is freed.
        """
        self._pool = None


def capture_graph(step: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
    """Capture a step on the current CUDA device."""
    # A graph capture rejects the first-use initialization of libraries such as cuBLAS.
    # The decoding step therefore runs once before the capture, on another stream.
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        step()
    torch.cuda.current_stream().wait_stream(aside)
    return _recorded(step)


def _recorded(step: Callable[[], Tensor], pool: Any = None) -> tuple[Callable[[], None], Tensor]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        result = step()
    return graph.replay, result
