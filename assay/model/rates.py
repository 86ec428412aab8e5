"""Measure the speed of matrix products for each tensor type on this device, within tens of
milliseconds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial

import torch

from assay.host.accelerator import synchronize
from assay.host.files import read_json, state_folder, write_json
from assay.host.machine import processor

TYPES = (torch.float32, torch.bfloat16)
"""The accepted values of ``model.dtype``."""
SHAPE = (256, 512, 256)
SECONDS, BURSTS, PAUSE = 0.03, 5, 0.01
# Number of bytes copied to measure memory speed, which is larger than any CPU cache.
COPIED_BYTES = 2**26
# On an accelerator, this factor multiplies the size of the products and the copied bytes.
# With a factor of 4, the measured products reached only a fifth of an H100's rate.
# The second-level cache of an H100 has 50 MiB, so the measured copy must be much larger.
ACCELERATOR = 16
_TORCH = f"torch {torch.__version__}"
# Because of noise, a rate counts as slower only below this share of the other rate.
NOISE = 0.8
# Rates that this process measured but did not cache in the state folder.
# A measurement takes 0.25 s, and one command may need the rates several times.
_unsaved: dict[str, dict[str, float]] = {}


def best_seconds(
    work: Callable[[], object],
    seconds: float,
    device: str = "cpu",
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Return the shortest time of several calls of a function, after one call to warm up.

    The timed calls repeat for ``seconds`` seconds, and at least three times. clock: function that
    returns the current time in seconds.
    """

    work()
    synchronize(device)
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < end:
        started = clock()
        work()
        synchronize(device)
        times.append(clock() - started)
    return min(times)


def processor_seconds() -> float:
    """Return the CPU time of the process, divided by the number of torch's threads.

    Unlike wall time, CPU time excludes the work of other processes on a busy machine.
    """
    return time.process_time() / torch.get_num_threads()


def product_rate(
    dtype: torch.dtype,
    device: str = "cpu",
    shape: tuple[int, int, int] = SHAPE,
    seconds: float = SECONDS,
) -> float:
    """Return the operations per second of the fastest matrix product of [rows, inner] by [inner,
    columns].

    Matrix products are timed in bursts with pauses, and on a CPU by CPU time. Other processes may
    disturb one burst of products, but rarely disturb all bursts.
    """
    times = 1 if device == "cpu" else ACCELERATOR
    rows, inner, columns = (times * size for size in shape)
    # A separate random generator is used, so that the run's random state does not change.
    own = torch.Generator(device).manual_seed(0)
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


@cache
def memory_rate(device: str = "cpu") -> float:
    """Return how many bytes per second a large copy reads and writes.

    The bandwidth is measured once in each process.
    """
    size = COPIED_BYTES if device == "cpu" else ACCELERATOR * COPIED_BYTES
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    clock = processor_seconds if device == "cpu" else time.perf_counter
    seconds = best_seconds(partial(target.copy_, source), SECONDS, device, clock)
    return 2 * size / seconds


def name_of(dtype: torch.dtype) -> str:
    """Return the name that the setting ``model.dtype`` uses for a tensor type."""
    return str(dtype).removeprefix("torch.")


def rates_here(device: str = "cpu", measure: bool = False) -> tuple[dict[str, float], bool]:
    """Returns the operations per second of matrix products for each of `TYPES`, and whether these
    rates are reliable.

    The rates of a CPU are cached in the user's state folder. Rates measured on a busy machine are
    not reliable: only this process caches them, unless they are higher than the cached rates.
    measure: whether to measure again even if rates are cached, and return the higher rate of each
    type.
    """
    if device != "cpu":
        return {name_of(dtype): product_rate(dtype, device) for dtype in TYPES}, True
    threads = f"{torch.get_num_threads()} threads"
    key = "; ".join((processor(), torch.backends.cpu.get_cpu_capability(), threads, _TORCH))
    path, entries = None, {}
    # A user without a home folder has no state folder, so the rates are not cached.
    with suppress(RuntimeError):
        path = state_folder() / "product-rates.json"
        entries = read_json(path) or {}
    cached = _rates_in(entries.get(key))
    if cached is not None and not measure:
        return cached, True
    if not measure and key in _unsaved:
        return _unsaved[key], False
    found = {name_of(dtype): product_rate(dtype, device) for dtype in TYPES}
    if cached is not None:
        # Other processes can only slow a measurement down, so the higher rate is more accurate.
        # The load average lags by a minute, so a cached rate may be from a busy machine.
        found = {name: max(rate, cached[name]) for name, rate in found.items()}
    elif is_busy():
        earlier = _unsaved.get(key, found)
        _unsaved[key] = {name: max(rate, earlier[name]) for name, rate in found.items()}
        return _unsaved[key], False
    if path is not None and found != cached:
        # If the state folder is read-only, the next run measures the rates again.
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, {**entries, key: found})
    return found, True


def _rates_in(entry: object) -> dict[str, float] | None:
    """Return the cached rates if they cover all types; otherwise return None."""
    names = {name_of(dtype) for dtype in TYPES}
    if not isinstance(entry, dict) or entry.keys() != names:
        return None
    found = {name: rate for name, rate in entry.items() if isinstance(rate, float) and rate > 0}
    return found if found.keys() == names else None


def is_busy() -> bool:
    """Return whether more processes want to run than there are cores; False if the load is
    unknown."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    try:
        return os.getloadavg()[0] > cores
    except (AttributeError, OSError):
        # Windows has no load average, and a container may hide the load average.
        return False


def slow_type(dtype: torch.dtype, device: torch.device) -> str | None:
    """Return a warning if matrix products of a 16-bit type are slower than those of float32 on this
    device; otherwise None.

    Before a warning, cached rates are measured again.
    """
    if dtype == torch.float32:
        return None
    name = name_of(dtype)
    for again in (False, True):
        rates, sure = rates_here(str(device), again)
        rate, full = rates[name], rates["float32"]
        if rate >= NOISE * full:
            return None
    advice = 'set model.dtype = "float32" unless memory is short'
    if not sure:
        advice = "but it is busy, so the rates are uncertain: `assay doctor` measures again"
    return (
        f"matrix products in {name} run at {rate / 1e9:.3g} GFLOP/s on this machine, in float32 at"
        f" {full / 1e9:.3g}: {advice}"
    )
