"""Pairs for two-number sums: the right number is chosen, one that is nearly right is rejected.

A source for a configuration: ``examples.preferences.rows:pairs?split=heldout&size=100``.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from assay import source
from examples.arithmetic.problems import sums


@source
def pairs(split: str = "train", size: int = 1000, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Yield ``size`` pairs of a split, ``train`` or ``heldout``; no question is in both."""
    chance = random.Random(seed)
    for row in sums(split, size, seed):
        right = int(row["answer"])
        wrong = right + chance.choice([-10, -2, -1, 1, 2, 10])
        yield {
            "prompt": row["prompt"],
            "chosen": f"The answer is \\boxed{{{right}}}.",
            "rejected": f"The answer is \\boxed{{{wrong}}}.",
        }
