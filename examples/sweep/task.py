"""A small task of one's own, the largest of three digits: rows, traces, and a reward term."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import assay

HELD_OUT = {"heldout": 0, "report": 5}
"""Last digit of the triples of each split; the others are for training."""


@assay.source
def problems(split: str = "train", size: int = 400, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Problems such as ``374:``. Each triple of digits is in one split."""
    own = {HELD_OUT[split]} if split in HELD_OUT else {*range(10)} - {*HELD_OUT.values()}
    triples = [f"{n:03d}" for n in range(1000) if n % 10 in own]
    Random(seed).shuffle(triples)
    for triple in triples[:size]:
        yield {"id": triple, "prompt": f"{triple}:", "answer": max(triple)}


@assay.source
def traces(size: int = 3000, right: float = 0.2, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Solutions for a cold start, most of which only guess; a tenth is no answer at all."""
    random = Random(seed)
    rows = list(problems("train", 800, seed))
    for _ in range(size):
        row = random.choice(rows)
        digits = row["prompt"][:3]
        guess = row["answer"] if random.random() < right else random.choice(digits)
        yield {"prompt": row["prompt"], "completion": "?" if random.random() < 0.1 else guess}


def one_digit(problem: assay.Problem, completion: assay.Completion) -> float:
    """Reward the form: exactly one digit."""
    return float(len(completion.text) == 1 and completion.text.isdigit())
