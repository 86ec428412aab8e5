"""Reading prompts in blocks of a fixed size; leading blocks that consecutive prompts share are
computed once.

The keys and values of a block depend only on the tokens up to its end, in products of fixed shapes.
Leading blocks with the tokens of the previous prompt therefore have the same bits and are reused.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from assay.model.transfer import on_device
from assay.types import Tokens

# Tokens of one block.
# The block size suits few-shot examples of a few hundred tokens, which prompts often share.
# Smaller blocks of a prompt would be slower, because the model reads all weights once per block.
READ_BLOCK = 192
# Minimum number of tokens of a prompt's last block, because short blocks are slow per token.
LEAST_READ = 64


def read_bounds(length: int, known: int = 0) -> list[tuple[int, int]]:
    """Return (first token, end) of each block after the ``known`` tokens of a prompt."""
    num_whole = max(length - LEAST_READ, 0) // READ_BLOCK
    edges = [*range(known, READ_BLOCK * num_whole + 1, READ_BLOCK), length]
    return list(pairwise(edges))


def num_known(tokens: Tokens, last: Tokens) -> int:
    """Return the number of equal leading tokens of two prompts, in whole blocks."""
    shorter = min(len(tokens), len(last))
    different = np.flatnonzero(tokens[:shorter] != last[:shorter])
    same = int(different[0]) if len(different) else shorter
    return min(same, max(shorter - LEAST_READ, 0)) // READ_BLOCK * READ_BLOCK


class PromptReader:
    """Reads the prompts of one call of `Engine.generate`, under the same weights.

    prefill: `Forward.prefill`. in_blocks: whether prompts are read in blocks; without blocks, only
    a whole prompt is reused. num_computed: prompt tokens that the model computed, without reused
    tokens.
    """

    def __init__(
        self, prefill: Callable[[Tensor, int], Tensor], in_blocks: bool, device: torch.device
    ) -> None:
        self.num_computed = 0
        self._prefill, self._in_blocks, self._device = prefill, in_blocks, device
        # The last prompt and its logits; the cache holds the last prompt's keys and values.
        self._last: tuple[Tokens, Tensor] | None = None

    def read(self, tokens: Tokens) -> Tensor:
        """Store a prompt's keys and values in the cache and return its last logits [V]."""
        known = 0
        if self._last is not None:
            last, logits_V = self._last
            if np.array_equal(last, tokens):
                return logits_V
            known = num_known(tokens, last) if self._in_blocks else 0
        tokens_L = on_device(tokens.astype(np.int64), self._device)
        logits_V = self._prefill(tokens_L, known)
        self._last = tokens, logits_V
        self.num_computed += len(tokens) - known
        return logits_V
