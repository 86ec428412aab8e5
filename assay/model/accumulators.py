"""Gradients as large as the vocabulary, added where they add up, in place of making one more of
that size.

An embedding that is also the output head gets a gradient from either end of the model. Autograd
makes both, and their sum, before an optimizer sees any of it: with a vocabulary of 50 000 this is
more memory than all activations. A backward pass that is given accumulators adds to them instead.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

Accumulators = Callable[[Tensor], Tensor | None]
"""From a parameter to the float32 tensor in which its gradient adds up; None where it has none."""

PIECE = 2**18


def add_in_pieces(total: Tensor, term: Tensor) -> None:
    """Add ``term`` to ``total`` a few rows at a time: torch makes a copy, in the wider of two
    types, of whatever is added to a tensor of another."""
    rows = max(1, PIECE // max(1, total[0].numel()))
    for part, whole in zip(term.split(rows), total.split(rows), strict=True):
        whole.add_(part)
