"""Learner ranks and a single process: trained tokens per second of an update, and memory.

    python -m bench.ranks --model FOLDER --ranks 2

Short runs alternate between one process with as many threads as ranks, and ranks with one thread
each. The command prints the median rate of the updates in trained tokens per second, the ratio of
both rates, and the peak memory. Run the bench on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from assay import train


def main() -> None:
    """Print one line of JSON for the single process and for the ranks, and the ratio of their
    rates."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--dtype", default="bfloat16")
    arguments = parser.parse_args()
    rates: dict[int, list[float]] = {1: [], arguments.ranks: []}
    memory: dict[int, float] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for round_number in range(arguments.rounds):
            for ranks in rates:
                rows = steps_of(arguments, ranks, Path(scratch) / f"{round_number}-{ranks}")
                # The first step warms caches.
                rates[ranks] += [row["speed/update"] for row in rows[1:]]
                memory[ranks] = max(row["memory/peak_mib"] for row in rows)
    medians = {ranks: statistics.median(found) for ranks, found in rates.items()}
    for ranks, median in medians.items():
        threads = arguments.ranks // ranks
        row = {"ranks": ranks, "threads": threads, "update_tokens_a_second": round(median, 1)}
        print(json.dumps(row | {"command_peak_mib": round(memory[ranks])}))
    print(f"ratio {medians[arguments.ranks] / medians[1]:.2f}")


def steps_of(arguments: argparse.Namespace, ranks: int, folder: Path) -> list[dict[str, Any]]:
    """Train for a few steps and return the rows of metrics."""
    tree: dict[str, Any] = {
        "run": {"directory": str(folder), "threads": arguments.ranks // ranks},
        "model": {"path": arguments.model, "dtype": arguments.dtype},
        "data": {"train": ["gym:chain_sum?size=64&seed=0"], "template": "base", "verifier": "math"},
        "sampling": {"max_tokens": arguments.max_tokens},
        # A KL to the reference gives every group a gradient, whatever the model can do.
        "rl": {"steps": arguments.steps, "num_prompts": 4, "group_size": 8},
        "algorithm": {"name": "grpo", "kl_weight": 0.01},
        "scale": {"learner_ranks": ranks} if ranks > 1 else {},
    }
    run = Path(train(tree, quiet=True).run)
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


if __name__ == "__main__":
    main()
