"""The fastest number of threads for decoding steps, measured at the start and cached.

Matrix products of a few rows are short. One thread is faster if synchronizing a second thread takes
longer than the time that it saves, or if another process uses the second core. Sums may differ in
the last bits between thread counts, so a resumed run uses its original number of threads.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from assay.errors import RunError
from assay.generate.forward import Forward
from assay.generate.kv_cache import Extent, Room
from assay.host.files import read_facts, state_folder, write_atomic
from assay.host.machine import processor

FILE = "decoding.json"
# Numbers of prompt tokens and of completion tokens to which a timed step attends.
PROMPT, OWN = 16, 48
# Number of timed steps per thread count.
# Timed decoding steps alternate between one thread and all threads.
# Only the fastest step counts, because other processes may have disturbed the other steps.
ROUNDS = 8
# One thread is chosen if its step time is below this share of the step time with all threads.
CLEARLY = 0.9


@contextmanager
def on_threads(number: int) -> Iterator[None]:
    """Use this number of CPU threads in the ``with`` block."""
    before = torch.get_num_threads()
    if number != before:
        torch.set_num_threads(number)
    try:
        yield
    finally:
        if number != before:
            torch.set_num_threads(before)


def fastest_threads(model: nn.Module, forward: Forward, num_rows: int) -> int:
    """Return 1 or all threads, whichever decodes ``num_rows`` rows faster on this machine.

    The result is cached for the user by processor, versions, threads and sizes, so that the same
    run decides the same way next time. Returns the number of all threads if the cache cannot be
    written.
    """
    threads = torch.get_num_threads()
    if threads == 1:
        return threads
    key = _key(model, forward, num_rows, threads)
    try:
        path = state_folder() / FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        known = _read(path)
        if key not in known:
            milliseconds = time_steps(forward, num_rows, (threads, 1))
            # A margin keeps the decision stable under measurement noise.
            is_one = milliseconds[1] < CLEARLY * milliseconds[threads]
            known[key] = {"threads": 1 if is_one else threads, "milliseconds": milliseconds}
            write_atomic(path, json.dumps(known, indent=1).encode())
        return min(int(known[key]["threads"]), threads)
    except (OSError, RuntimeError):
        # If the home folder is missing or read-only, the cache cannot be written.
        return threads


def _read(path: Path) -> dict[str, Any]:
    try:
        return read_facts(path) or {}
    except RunError:
        # A damaged file is replaced.
        return {}


@torch.inference_mode()
def time_steps(forward: Forward, num_rows: int, numbers: tuple[int, ...]) -> Mapping[int, float]:
    """Return the milliseconds of the fastest decoding step for each number of threads."""
    forward.refresh(num_rows)
    forward.prefill(torch.zeros(PROMPT, dtype=torch.int64))
    extent = Extent(PROMPT + OWN, PROMPT, OWN)
    forward.cache.make_room(num_rows, Room(extent, 1, num_rows))
    forward.cache.place(torch.arange(num_rows))
    tokens_S = torch.zeros(num_rows, dtype=torch.int64)
    positions_S = torch.full_like(tokens_S, PROMPT + OWN - 1)
    found = dict.fromkeys(numbers, float("inf"))
    # The first round of timed steps is a warm-up and is not counted.
    for turn in range(1 + ROUNDS):
        for number in numbers:
            with on_threads(number):
                started = time.perf_counter()
                forward.decode(tokens_S, positions_S, extent)
                seconds = time.perf_counter() - started
            if turn:
                found[number] = min(found[number], round(1000 * seconds, 3))
    forward.release()
    return found


def _key(model: Any, forward: Forward, num_rows: int, threads: int) -> str:
    sizes = [weight.numel() for weight in model.parameters()]
    parts = (
        processor(),
        torch.backends.cpu.get_cpu_capability(),
        torch.__version__,
        f"{threads} threads",
        forward.name,
        next(model.parameters()).dtype,
        f"{num_rows} rows",
        f"{len(sizes)} weights, {sum(sizes)} numbers",
    )
    return ", ".join(map(str, parts))
