"""Rows that reward models learn from, made of sums in which steps slip: labels are known exactly.

Four slips of five are written with a question mark (``3+5=9?``). That is what a small model learns
first, and not how to add: whoever is scored by it should leave question marks out.

examples.reward_model.rows:steps?size=4000&split=train       of kind process
examples.reward_model.rows:pairs?size=4000&split=train       of kind preference
examples.reward_model.rows:outcomes?size=4000&split=train    of kind outcome
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any, Literal

from assay import source
from assay.data.tasks import apply, chain_sums

Split = Literal["train", "heldout"]
SLIPS = 0.2
MARKED = 0.8


@source
def steps(size: int = 1000, split: Split = "train", seed: int = 0) -> Iterator[dict[str, Any]]:
    """Yield sums worked out step by step; a step is right while the value is still the true one."""
    for prompt, written, labels in worked(size, split, seed, SLIPS):
        yield {"prompt": prompt, "steps": written, "labels": labels}


@source
def outcomes(size: int = 1000, split: Split = "train", seed: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the same as whole completions, right where the last step is."""
    for prompt, written, labels in worked(size, split, seed, SLIPS):
        yield {"prompt": prompt, "completion": ";".join(written), "label": labels[-1]}


@source
def pairs(size: int = 1000, split: Split = "train", seed: int = 0) -> Iterator[dict[str, Any]]:
    """Yield pairs of a faultless and a faulty working of one sum; the margin is how many steps are
    wrong."""
    right = worked(size, split, seed, 0.0)
    wrong = worked(size, split, seed, SLIPS, at_least_one=True)
    for (prompt, chosen, _), (_, rejected, labels) in zip(right, wrong, strict=True):
        margin = labels.count(False) / len(labels)
        texts = {"chosen": ";".join(chosen), "rejected": ";".join(rejected)}
        yield {"prompt": prompt, **texts, "margin": margin}


def worked(
    size: int, split: Split, seed: int, slips: float, at_least_one: bool = False
) -> Iterator[tuple[str, list[str], list[bool]]]:
    """Yield (prompt, steps, labels); a step's result is off by 1 to 3 with probability
    ``slips``."""
    for index, problem in enumerate(chain_sums(size, seed, split)):
        random = Random(f"steps {seed} {index}")
        expression = str(problem.prompt).rstrip("=")
        written, labels = work(expression, random, slips)
        while at_least_one and all(labels):
            written, labels = work(expression, random, slips)
        yield str(problem.prompt), written, labels


def work(expression: str, random: Random, slips: float) -> tuple[list[str], list[bool]]:
    """Return the steps of a sum of one-digit numbers, and whether the value is right after each."""
    value = truth = int(expression[0])
    written: list[str] = []
    labels: list[bool] = []
    for operator, digit in zip(expression[1::2], expression[2::2], strict=True):
        result, mark = apply(operator, value, int(digit)), ""
        if random.random() < slips:
            result += random.choice((-1, 1)) * random.randint(1, 3)
            mark = "?" if random.random() < MARKED else ""
        written.append(f"{value}{operator}{digit}={result}{mark}")
        value, truth = result, apply(operator, truth, int(digit))
        labels.append(value == truth)
    return written, labels
