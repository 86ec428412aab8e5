"""reasoning-gym's two-number sums, split by a hash of the question: no question is in both sets.

A source for a configuration: ``examples.arithmetic.problems:sums?split=heldout&size=100``.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator
from typing import Any

import reasoning_gym

from assay import source

HELDOUT_ONE_IN = 10


@source
def sums(split: str = "train", size: int = 1000, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Yield ``size`` different problems of a split, ``train`` or ``heldout``."""
    rows = reasoning_gym.create_dataset(
        "chain_sum", min_terms=2, max_terms=2, min_digits=1, max_digits=2, size=10**9, seed=seed
    )
    seen: set[str] = set()
    for index in itertools.count():
        row = rows[index]
        question = row["question"]
        heldout = zlib.crc32(question.encode()) % HELDOUT_ONE_IN == 0
        if heldout != (split == "heldout") or question in seen:
            continue
        seen.add(question)
        yield {"id": f"sum-{split}-{index}", "prompt": question, "answer": row["answer"]}
        if len(seen) == size:
            return
