"""How fast this device multiplies matrices in each type, measured in some tens of milliseconds."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

TYPES = (torch.float32, torch.bfloat16)
"""What ``model.dtype`` may be."""
SHAPE = (256, 512, 256)
SECONDS = 0.03
ACCELERATOR = 4  # times the shape: small products do not fill one
NOISE = 0.8  # two measurements of one rate lie within this


def best_seconds(work: Callable[[], object], seconds: float, device: str = "cpu") -> float:
    """Return the shortest of as many calls as fit into ``seconds`` (at least three), after one
    more."""

    def wait() -> None:
        if device != "cpu":
            torch.cuda.synchronize(device)

    work()
    wait()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < end:
        started = time.perf_counter()
        work()
        wait()
        times.append(time.perf_counter() - started)
    return min(times)


def product_rate(
    dtype: torch.dtype,
    device: str = "cpu",
    shape: tuple[int, int, int] = SHAPE,
    seconds: float = SECONDS,
) -> float:
    """Return the operations a second of the best product of [rows, inner] by [inner, columns]."""
    times = 1 if device == "cpu" else ACCELERATOR
    rows, inner, columns = (times * size for size in shape)
    own = torch.Generator(device).manual_seed(0)  # a run's random numbers are its own
    left = torch.randn(rows, inner, device=device, generator=own).to(dtype)
    right = torch.randn(columns, inner, device=device, generator=own).to(dtype)
    out = left @ right.T
    best = best_seconds(lambda: torch.mm(left, right.T, out=out), seconds, device)
    return 2 * rows * inner * columns / best


def name_of(dtype: torch.dtype) -> str:
    """Return the type as ``model.dtype`` names it."""
    return str(dtype).removeprefix("torch.")


def slow_type(dtype: torch.dtype, device: torch.device) -> str | None:
    """Return a line where products in a narrow type are slower here than in float32; None
    otherwise."""
    if dtype == torch.float32:
        return None
    rate, full = (product_rate(one, str(device)) for one in (dtype, torch.float32))
    if rate >= NOISE * full:
        return None
    name = name_of(dtype)
    return (
        f"matrix products in {name} run at {rate / 1e9:.3g} GFLOP/s on this machine, in float32 at"
        f' {full / 1e9:.3g}: set model.dtype = "float32" unless memory is short'
    )
