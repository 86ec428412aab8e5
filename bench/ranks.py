"""Learner ranks and a single process: trained tokens per second of an update, and memory.

    python -m bench.ranks --model FOLDER --ranks 2
    python -m bench.ranks --model FOLDER --ranks 2 --shard
    python -m bench.ranks --model FOLDER --ranks 2 --memory

Short runs alternate between one process with as many threads as ranks, and ranks with one thread
each. The command prints the median rate of the updates in trained tokens per second, the ratio of
both rates, and the peak memory. Run the bench on an idle machine.

With ``--memory`` the ranks start without Ray, with one thread each, and take supervised steps. Rank
0, whose share is the largest, prints the memory of its weights and optimizer state, and the seconds
of a step. ``--shard`` does the same with divided weights, and ``--ranks 1`` with one process.
``--lora 16`` trains adapters of this rank.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.distributed import FileStore  # pyright: ignore[reportPrivateImportUsage]
from torch.multiprocessing.spawn import spawn

from assay import train
from assay.config import build
from assay.learn.ranks import ALONE, Ranks
from assay.learn.sharding import own_part
from assay.model.load import load_model
from assay.model.packing import pack
from assay.training.row_schedule import GOOD
from assay.training.sft import sft_learner
from assay.types import Completion, Group, Problem, Prompt


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
    parser.add_argument("--shard", action="store_true")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--lora", type=int, help="rank of adapters, with --memory or --shard")
    arguments = parser.parse_args()
    if arguments.shard or arguments.memory:
        with tempfile.TemporaryDirectory() as scratch:
            context = (arguments, f"{scratch}/store")
            spawn(measure_memory, context, nprocs=arguments.ranks)
        return
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


def measure_memory(rank: int, arguments: argparse.Namespace, file: str) -> None:
    """Take steps in one rank, and print the memory of its tensors."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    size = arguments.ranks
    model: dict[str, Any] = {"path": arguments.model, "dtype": arguments.dtype}
    if arguments.lora is not None:
        model["lora"] = {"rank": arguments.lora}
    tree = {
        "model": model,
        "sft": {"traces": ["none.jsonl"]},
        "scale": {"learner_ranks": max(2, size), "shard": arguments.shard and size > 1},
    }
    config = build(tree)
    loaded = load_model(config.model, "cpu", 0)
    store = FileStore(file, size)
    ranks = Ranks.join(store, rank, size, 3600.0, "cpu") if size > 1 else ALONE
    learner = sft_learner(config, loaded, ranks, steps=100, lean=False, cross_entropy=1.0)
    del loaded
    if rank:
        ranks.follow(learner)
        return
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 1000, (2 * size, 2, arguments.max_tokens)).astype(np.int32)
    groups = [
        Group(Problem("", ""), Prompt("", prompt), (Completion.from_tokens("", completion),))
        for prompt, completion in rows
    ]
    batch = pack(groups, [[GOOD]] * len(groups))
    seconds: list[float] = []
    for _ in range(arguments.steps):
        started = time.perf_counter()
        learner.update(batch)
        seconds.append(time.perf_counter() - started)
    optimizer = learner.passes.optimizer
    held = {
        "weights": [*map(own_part, learner.policy.parameters())],
        "state": [one for held in optimizer.rule.save()[0].values() for one in held.values()],
    }
    row = {f"{name}_mib": round(mib(tensors), 1) for name, tensors in held.items()}
    taken = {"ranks": size, "rank": rank, **row, "seconds": round(statistics.median(seconds), 2)}
    print(json.dumps(taken | {"tokens": batch.num_tokens}), flush=True)
    if size > 1:
        ranks.dismiss()


def mib(tensors: list[torch.Tensor]) -> float:
    """Return the size of tensors in MiB."""
    return sum(one.numel() * one.element_size() for one in tensors) / 2**20


if __name__ == "__main__":
    main()
