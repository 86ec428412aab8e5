"""How fast this device multiplies matrices in each type, measured in some tens of milliseconds."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import torch

from assay.host.files import read_json, state_folder, write_json
from assay.host.machine import processor

TYPES = (torch.float32, torch.bfloat16)
"""What ``model.dtype`` may be."""
SHAPE = (256, 512, 256)
SECONDS, BURSTS, PAUSE = 0.03, 5, 0.01
COPIED_BYTES = 2**26  # more than caches hold
ACCELERATOR = 4  # times the shape: small products do not fill one
_TORCH = f"torch {torch.__version__}"
NOISE = 0.8  # two measurements of one rate lie within this


def best_seconds(
    work: Callable[[], object],
    seconds: float,
    device: str = "cpu",
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Return the shortest of as many calls as fit into ``seconds`` (at least three), after one
    more. clock: what a call is timed by."""

    def wait() -> None:
        if device != "cpu":
            torch.cuda.synchronize(device)

    work()
    wait()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < end:
        started = clock()
        work()
        wait()
        times.append(clock() - started)
    return min(times)


def processor_seconds() -> float:
    """Return the processor time that this process has had, of each of torch's threads.

    What other processes take of a busy machine does not count.
    """
    return time.process_time() / torch.get_num_threads()


def product_rate(
    dtype: torch.dtype,
    device: str = "cpu",
    shape: tuple[int, int, int] = SHAPE,
    seconds: float = SECONDS,
) -> float:
    """Return the operations a second of the best product of [rows, inner] by [inner, columns].

    Products are timed in several bursts with pauses between them, on a CPU by processor time: a
    burst may meet other processes, and rarely all do.
    """
    times = 1 if device == "cpu" else ACCELERATOR
    rows, inner, columns = (times * size for size in shape)
    own = torch.Generator(device).manual_seed(0)  # a run's random numbers are its own
    left = torch.randn(rows, inner, device=device, generator=own).to(dtype)
    right = torch.randn(columns, inner, device=device, generator=own).to(dtype)
    out = left @ right.T
    clock = processor_seconds if device == "cpu" else time.perf_counter
    times_taken: list[float] = []
    for burst in range(BURSTS):
        if burst:
            time.sleep(PAUSE)
        work = partial(torch.mm, left, right.T, out=out)
        times_taken.append(best_seconds(work, seconds / BURSTS, device, clock))
    return 2 * rows * inner * columns / min(times_taken)


def memory_rate(device: str = "cpu") -> float:
    """Return the bytes a second that a large copy reads and writes."""
    source = torch.zeros(COPIED_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    clock = processor_seconds if device == "cpu" else time.perf_counter
    seconds = best_seconds(partial(target.copy_, source), SECONDS, device, clock)
    return 2 * COPIED_BYTES / seconds


def name_of(dtype: torch.dtype) -> str:
    """Return the type as ``model.dtype`` names it."""
    return str(dtype).removeprefix("torch.")


def rates_here(device: str = "cpu") -> tuple[dict[str, float], bool]:
    """Return the rate of products in each of `TYPES` by name, and whether they are to be trusted.

    A CPU is measured once, and the result is kept in the user's state folder; what was measured
    while other processes had the cores is neither kept nor trusted.
    """
    if device != "cpu":
        return {name_of(dtype): product_rate(dtype, device) for dtype in TYPES}, True
    threads = f"{torch.get_num_threads()} threads"
    key = "; ".join((processor(), torch.backends.cpu.get_cpu_capability(), threads, _TORCH))
    path, kept = None, {}
    with suppress(RuntimeError):  # a user without a home
        path = state_folder() / "product-rates.json"
        kept = read_json(path) or {}
    if (found := _rates_in(kept.get(key))) is not None:
        return found, True
    found = {name_of(dtype): product_rate(dtype, device) for dtype in TYPES}
    if is_busy():
        return found, False
    if path is not None:
        with suppress(OSError):  # it is measured again
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, {**kept, key: found})
    return found, True


def _rates_in(kept: object) -> dict[str, float] | None:
    """Return what a file says of all types; None where it does not."""
    names = {name_of(dtype) for dtype in TYPES}
    if not isinstance(kept, dict) or kept.keys() != names:
        return None
    found = {name: rate for name, rate in kept.items() if isinstance(rate, float) and rate > 0}
    return found if found.keys() == names else None


def is_busy() -> bool:
    """Whether more processes want to run than there are cores; False where no system says it."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    try:
        return os.getloadavg()[0] > cores
    except (AttributeError, OSError):  # Windows; a container that hides the load
        return False


def slow_type(dtype: torch.dtype, device: torch.device) -> str | None:
    """Return a line where products in a narrow type are slower here than in float32; None
    otherwise."""
    if dtype == torch.float32:
        return None
    name = name_of(dtype)
    rates, sure = rates_here(str(device))
    rate, full = rates[name], rates["float32"]
    if rate >= NOISE * full:
        return None
    advice = 'set model.dtype = "float32" unless memory is short'
    if not sure:
        advice = "but it is busy, so this is not sure: `assay doctor` measures it again"
    return (
        f"matrix products in {name} run at {rate / 1e9:.3g} GFLOP/s on this machine, in float32 at"
        f" {full / 1e9:.3g}: {advice}"
    )
