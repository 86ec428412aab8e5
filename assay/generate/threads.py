"""How many threads a decoding step is fastest on: timed at the start, and kept for the next start.

Products of a few rows are short. Where handing one to a second thread takes longer than the
half that is saved, or where another process wants the second core, one thread is faster. Sums may
differ in the last bits, so a run keeps the number that it began with.
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
PROMPT, OWN = 16, 48  # tokens that a timed step attends to
ROUNDS = 8  # steps timed of each, by turns; the fastest counts: others were disturbed
CLEARLY = 0.9  # of the time of all threads, that one thread must take to be chosen


@contextmanager
def on_threads(number: int) -> Iterator[None]:
    """Use so many CPU threads inside."""
    before = torch.get_num_threads()
    if number != before:
        torch.set_num_threads(number)
    try:
        yield
    finally:
        if number != before:
            torch.set_num_threads(before)


def fastest_threads(model: nn.Module, forward: Forward, num_rows: int) -> int:
    """Return 1 or all threads, whichever decodes ``num_rows`` rows faster here; all where that is
    not kept.

    What was found is kept for this user, by processor, versions, threads and sizes: the same run
    decides alike the next time.
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
            is_one = milliseconds[1] < CLEARLY * milliseconds[threads]
            known[key] = {"threads": 1 if is_one else threads, "milliseconds": milliseconds}
            write_atomic(path, json.dumps(known, indent=1).encode())
        return min(int(known[key]["threads"]), threads)
    except (OSError, RuntimeError):  # no home, or one that cannot be written
        return threads


def _read(path: Path) -> dict[str, Any]:
    try:
        return read_facts(path) or {}
    except RunError:  # damaged: written anew
        return {}


@torch.inference_mode()
def time_steps(forward: Forward, num_rows: int, numbers: tuple[int, ...]) -> Mapping[int, float]:
    """Return the milliseconds of the fastest of a few decoding steps, by number of threads."""
    forward.refresh(num_rows)
    forward.prefill(torch.zeros(PROMPT, dtype=torch.int64))
    extent = Extent(PROMPT + OWN, PROMPT, OWN)
    forward.cache.make_room(num_rows, Room(extent, 1, num_rows))
    forward.cache.place(torch.arange(num_rows))
    tokens_S = torch.zeros(num_rows, dtype=torch.int64)
    positions_S = torch.full_like(tokens_S, PROMPT + OWN - 1)
    found = dict.fromkeys(numbers, float("inf"))
    for turn in range(1 + ROUNDS):  # the first is not counted
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
