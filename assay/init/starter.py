"""Create a tiny model that guesses among the rows' own answers.

With this tiny model, a first training run needs no model hub and takes about a minute.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from assay.errors import DataError, message
from assay.init.tiny_model import make_model
from assay.model.load import export
from assay.training import api

SHARE_RIGHT = 0.25
"""Share of training traces with the right answer. Other traces have the answer of a random row."""
NUM_TRACES = 3000
NUM_STEPS = 90
MOST_POSITIONS = 2048
FEWEST_POSITIONS = 512


def make_starter(folder: Path, pairs: Sequence[tuple[str, str]], seed: int = 0) -> None:
    """Save a 0.7M-parameter model that answers each prompt of ``pairs`` by guessing.

    pairs: (prompt, right answer). The training traces are saved next to the model, in
    ``traces.jsonl``. Raises DataError if a prompt with its answer exceeds the model's context.
    """
    # A model with random weights would never write a right answer, which RL needs.
    # A model that is always right would leave nothing to learn.
    positions = _positions(pairs)
    with tempfile.TemporaryDirectory() as scratch:
        fresh = make_model(Path(scratch) / "fresh", seed, positions)
        traces = Path(scratch) / "traces.jsonl"
        _write_traces(traces, pairs, seed)
        answers = sum(len(answer.encode()) + 1 for _, answer in pairs) / len(pairs)
        result = api.train(
            {
                "run": {"directory": scratch, "name": "starter", "seed": seed},
                "model": {"path": str(fresh)},
                "sft": {
                    "traces": [str(traces)],
                    "tokens_per_step": int(NUM_TRACES * answers / NUM_STEPS) + 1,
                },
                "optimizer": {"learning_rate": 2e-3, "warmup_steps": 10, "schedule": "linear"},
                "checkpoint": {"keep_last": 1},
            },
            quiet=True,
        )
        export(str(result.checkpoint), folder)
        (folder / traces.name).write_bytes(traces.read_bytes())


def make_fresh(folder: Path, pairs: Sequence[tuple[str, str]], seed: int = 0) -> None:
    """Save a tiny model with random weights, whose context fits every prompt and completion."""
    make_model(folder, seed, _positions(pairs))


def _positions(pairs: Sequence[tuple[str, str]]) -> int:
    longest = max(len(prompt.encode()) + 2 * len(answer.encode()) for prompt, answer in pairs)
    return _enough(longest)


def _enough(longest: int) -> int:
    """Return the context length that fits texts of ``longest`` bytes, in tokens."""
    positions = FEWEST_POSITIONS
    while positions < longest + 32:
        positions *= 2
    if positions > MOST_POSITIONS:
        found = f"a prompt and answer of {longest:,} bytes"
        accepted = f"at most {MOST_POSITIONS - 32:,} for the tiny model that is made here"
        raise DataError(message("--data", found, accepted, "name a real model with --model"))
    return positions


def _write_traces(file: Path, pairs: Sequence[tuple[str, str]], seed: int) -> None:
    random = Random(seed)
    lines: list[str] = []
    for number in range(NUM_TRACES):
        prompt, answer = pairs[number % len(pairs)]
        if random.random() >= SHARE_RIGHT:
            answer = random.choice(pairs)[1]
        row: dict[str, Any] = {"prompt": prompt, "completion": answer}
        lines.append(json.dumps(row, ensure_ascii=False))
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
