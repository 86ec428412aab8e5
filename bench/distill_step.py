"""Overhead of a teacher: an optimizer step with a teacher of the student's size, and without.

    python -m bench.distill_step [--shape demo|wide] [--rounds 7] [--json]

Steps with and without the teacher alternate, and the ratio is the median over rounds of neighboring
steps. Seconds are processor seconds of one thread, so that other processes hardly influence them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from assay.config import OptimizerConfig
from assay.learn.optimizer import Optimizer
from assay.learn.passes import Passes
from assay.learn.sft_update import SFTLearner
from assay.learn.teacher import TeacherModel
from assay.model.divergence import Divergence
from assay.model.packing import Batch, pack
from assay.types import Completion, Group, Problem, Prompt, Verdict
from bench.flops import ModelShape
from bench.local_step import random_model

SHAPES = {
    "demo": ModelShape(4, 128, 256, 4, 4, 32, 259),
    "wide": ModelShape(4, 256, 768, 4, 2, 64, 8192),
}
TOKENS = {"demo": (32, 20, 40), "wide": (2, 32, 96)}
"""Rows of a step, and the tokens of each one's prompt and completion."""
KINDS = (
    Divergence("forward_kl"),
    Divergence("forward_kl", temperature=2.0),
    Divergence("reverse_kl"),
    Divergence("jsd"),
    Divergence("forward_kl", skew=0.1),
)


def a_batch(shape: ModelShape, rows: int, prompt: int, completion: int) -> Batch:
    """Return rows of random tokens."""
    rng = np.random.default_rng(0)
    groups: list[Group] = []
    for n in range(rows):
        first, then = (rng.integers(0, shape.vocabulary, size) for size in (prompt, completion))
        given = Completion.from_tokens(f"{n}/0", then.astype(np.int32))
        groups.append(Group(Problem(str(n), ""), Prompt("", first.astype(np.int32)), (given,)))
    return pack(groups, [[Verdict.of_score(1.0, "bench@1")]] * rows)


def seconds_of(step: Callable[[], Any]) -> float:
    """Return the processor seconds of one call."""
    started = time.process_time()
    step()
    return time.process_time() - started


def measure(shape: ModelShape, tokens: Sequence[int], rounds: int) -> dict[str, dict[str, float]]:
    """Return the seconds of a step without and with a teacher, and their ratio, by kind of
    teacher."""
    batch = a_batch(shape, *tokens)
    model, teacher = random_model(shape, "float32"), random_model(shape, "float32")
    passes = Passes(
        model, Optimizer(model, OptimizerConfig(), 10_000), section="distill", layout="plain"
    )
    alone, taught = SFTLearner(passes), SFTLearner(passes, cross_entropy=0.0)
    found: dict[str, dict[str, float]] = {}
    for kind in KINDS:
        says = TeacherModel(teacher, kind, passes.device)
        steps = (lambda: alone.update(batch), lambda: taught.update(batch, says))  # noqa: B023
        for step in steps:
            step()
        pairs = [[seconds_of(step) for step in steps] for _ in range(rounds)]
        without, beside = (statistics.median(column) for column in zip(*pairs, strict=True))
        ratio = statistics.median(one[1] / one[0] for one in pairs)
        found[str(kind)] = {"without": without, "with": beside, "ratio": ratio}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="wide")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    found = measure(SHAPES[given.shape], TOKENS[given.shape], given.rounds)
    if given.json:
        print(json.dumps(found, indent=1))
        return
    print(f"| {given.shape} | without, s | with, s | ratio |\n|---|---:|---:|---:|")
    for name, row in found.items():
        print(f"| {name} | {row['without']:.3f} | {row['with']:.3f} | {row['ratio']:.2f} |")


if __name__ == "__main__":
    main()
