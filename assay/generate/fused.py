"""The decoder for CUDA: fused kernels around the matrix products, in captured graphs.

In a decoding step, a layer takes four matrix products and six kernels (see `triton_decode`).
Prompts are padded to multiples of `PADDED` tokens. Prompts of a frequent length are captured in
graphs too. The bits of a prompt's keys and values depend only on the prompt and its padded length,
because no token attends to the padding after the prompt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from assay.generate import triton_decode as kernels
from assay.generate.captured import Capture, CapturedForward, Captures
from assay.generate.fused_cache import FusedCache
from assay.generate.kv_cache import Extent
from assay.generate.lean import Attend, Norm
from assay.generate.products import Products
from assay.generate.triton_decode import PADDED, SPLIT, Heads, Rows
from assay.model.family import Decoder, Layer, NotLean

# Maximum number of prompt tokens for a graph; longer prompts are read without a graph, because
# their graphs would occupy much memory.
# For long prompts, kernels run longer than their launches take, so a graph would save no time.
LONGEST_CAPTURED = 2048
# Maximum number of captured prompt lengths in one call.
# Prompts of other lengths are read without a graph.
MAX_PROMPT_GRAPHS = 8
# Number of prompts of one length that a call reads before it captures a graph for the length.
# A graph capture takes as long as reading several prompts, and the graph ends with the call.
# A graph capture would therefore not pay off for a rare length.
READ_BEFORE_CAPTURE = 2


@dataclass(frozen=True, eq=False)
class _PromptGraph:
    """A captured prompt: input tensors, replay function, and the tensors that it writes."""

    tokens_L: Tensor
    last_1: Tensor
    replay: Callable[[], None]
    prompt: Tensor
    logits_V: Tensor


class FusedForward(CapturedForward):
    """Decoding with the parameters of a Llama-like model, in Triton kernels and captured graphs.

    capture: as in `CapturedForward`.
    """

    name = "fused"
    cache: FusedCache

    def __init__(self, model: nn.Module, capture: Capture | None = None) -> None:
        super().__init__(model, capture=capture)
        self._heads = [_heads_of(self._decoder, layer) for layer in self._decoder.layers]
        if self._decoder.width % 2:
            raise NotLean(f"heads of {self._decoder.width} numbers")
        self.cache = FusedCache.of(self._decoder, SPLIT, PADDED)
        self._prompt_captures = Captures(capture)
        self._prompts: dict[int, _PromptGraph] = {}
        self._prompts_of = 0
        # Number of prompts that this call has read, by padded length.
        self._num_read: Counter[int] = Counter()

    @property
    def reads_in_blocks(self) -> bool:
        """Always False on a GPU, because reading one block would take as long as reading a whole
        prompt."""
        return False

    def refresh(self, num_rows: int) -> None:
        """Drop all graphs, read the live model again, and stack its linear maps."""
        self._drop_prompts()
        self._num_read.clear()
        super().refresh(num_rows)
        self._heads = [_heads_of(self._decoder, layer) for layer in self._decoder.layers]

    def _new_products(self, num_rows: int) -> Products:
        return Products.stacked(self._decoder)

    def release(self) -> None:
        self._drop_prompts()
        super().release()

    def reach(self, extent: Extent) -> None:
        """Extend the rotary tables to the cache's capacity."""
        # A rotary table that grows later would move, which invalidates all graphs.
        held = self.cache.prompt_capacity + self.cache.capacity
        super().reach(Extent(max(extent.total, held), 0, 0))

    def prefill(self, tokens_L: Tensor, known: int = 0) -> Tensor:
        length = len(tokens_L)
        padded = self.cache.padded(length)
        self.reach(Extent(padded, 0, 0))
        self.cache.begin_prompt()
        if self._prompts_of != self._cos_KD.data_ptr():
            self._drop_prompts()
            self._prompts_of = self._cos_KD.data_ptr()
        self._num_read[padded] += 1
        if not self._is_captured(padded):
            last_1 = torch.full_like(tokens_L[:1], length - 1)
            prompt = self.cache.new_prompt(length)
            logits_V = self._read(F.pad(tokens_L, (0, padded - length)), last_1, prompt)
        else:
            graph = self._graph_of(padded, tokens_L)
            graph.tokens_L[:length].copy_(tokens_L)
            graph.last_1.fill_(length - 1)
            graph.replay()
            # The results are copied, because the next replay overwrites the graph's tensors.
            prompt, logits_V = graph.prompt.clone(), graph.logits_V.clone()
        self.cache.keep_prompt(prompt, length)
        return logits_V

    def decode(self, tokens_S: Tensor, positions_S: Tensor, extent: Extent) -> Tensor:
        # The upload comes before the captured step, because the captured step contains no copy from
        # host memory.
        self.cache.upload()
        return super().decode(tokens_S, positions_S, extent)

    def _is_captured(self, padded: int) -> bool:
        """Return whether prompts of a padded length are read by a graph, captured earlier or by
        this prompt."""
        if padded in self._prompts:
            return True
        room = len(self._prompts) < MAX_PROMPT_GRAPHS and padded <= LONGEST_CAPTURED
        return room and self._num_read[padded] > READ_BEFORE_CAPTURE

    def _graph_of(self, padded: int, like_L: Tensor) -> _PromptGraph:
        """Return the graph for prompts of a padded length. The first call for a padded length
        captures the graph."""
        graph = self._prompts.get(padded)
        if graph is None:
            tokens_L, last_1 = like_L.new_zeros(padded), like_L.new_zeros(1)
            prompt = self.cache.new_prompt(padded)
            replay, logits_V = self._prompt_captures(lambda: self._read(tokens_L, last_1, prompt))
            graph = _PromptGraph(tokens_L, last_1, replay, prompt, logits_V)
            self._prompts[padded] = graph
        return graph

    def _drop_prompts(self) -> None:
        self._prompts.clear()
        self._prompt_captures.forget()

    def _read(self, tokens_L: Tensor, last_1: Tensor, prompt: Tensor) -> Tensor:
        """Compute a padded prompt's keys and values, and the logits [V] of token ``last_1``."""
        positions_L = torch.arange(len(tokens_L), device=tokens_L.device)
        rotary, scale = (self._cos_KD, self._sin_KD), self._decoder.scale

        def attend(index: int, layer: Layer, fused: Tensor) -> Tensor:
            heads, (keys, values) = self._heads[index], prompt[index]
            kernels.rotate(heads, fused, rotary, (keys, values), positions_L)
            query = fused.view(len(fused), -1, heads.width)[:, : heads.num_queries].transpose(0, 1)
            attended = F.scaled_dot_product_attention(
                query[None], keys[None], values[None], is_causal=True, scale=scale, enable_gqa=True
            )
            return attended[0].transpose(0, 1).reshape(len(fused), -1)

        hidden, added = self._through_layers(tokens_L, attend)
        return self._logits(hidden.index_select(0, last_1), added.index_select(0, last_1))[0]

    def _step_attention(self, positions_S: Tensor) -> Attend:
        """Return a step's attention function: one token per slot attends to the slot's tokens."""
        cache, rotary, scale = self.cache, (self._cos_KD, self._sin_KD), self._decoder.scale
        rows = Rows(positions_S, cache.table_2S[0], cache.table_2S[1], *cache.num_parts())

        def attend(index: int, layer: Layer, fused: Tensor) -> Tensor:
            heads, stores = self._heads[index], cache.stores[index]
            kernels.rotate(heads, fused, rotary, stores, positions_S, rows.lengths_S)
            return kernels.attend(heads, index, fused, stores, rows, scale)

        return attend

    def _add_norm(self, hidden: Tensor, added: Tensor | None, norm: Norm) -> Tensor:
        """Add ``added`` to ``hidden`` in place and return the norm of the sum."""
        return kernels.add_norm(hidden, added, norm)

    def _gated(self, gate_up: Tensor) -> Tensor:
        """Return silu(gate) * up.

        Each row of ``gate_up`` holds the gate projection, followed by the up projection.
        """
        return kernels.gated(gate_up)


def _heads_of(decoder: Decoder, layer: Layer) -> Heads:
    width = decoder.width
    num_keys = len(layer.key[0]) // width
    norms = None
    if layer.query_norm and layer.key_norm:
        norms = (layer.query_norm, layer.key_norm)
    return Heads(num_keys, len(layer.query[0]) // len(layer.key[0]), width, norms)
