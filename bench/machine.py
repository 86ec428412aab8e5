"""Limits of the machine: the best rate of a matrix product, and the memory bandwidth.

python -m bench.machine
python -m bench.machine --threads 1 --dtypes float32
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

SHAPES = ((1024, 1024, 1024), (2048, 2048, 2048), (4096, 576, 1536), (1024, 4096, 4096))
SECONDS_A_SHAPE = 0.7
STREAM_MIB = 512


@dataclass(frozen=True)
class Limits:
    """Limits of a machine.

    product_flops: operations per second by dtype, each the best over `SHAPES`. bandwidth: bytes per
    second. threads: 0 for a device that is not a CPU.
    """

    threads: int
    product_flops: dict[str, float]
    bandwidth: float

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain values for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        rates = ", ".join(
            f"{name} {rate / 1e9:.0f} GFLOP/s" for name, rate in self.product_flops.items()
        )
        return (
            f"limits measured{f' with {self.threads} threads' if self.threads else ''}: "
            f"matrix products {rates}; memory {self.bandwidth / 1e9:.1f} GB/s"
        )


def measure(dtypes: tuple[str, ...], threads: int, device: str = "cpu") -> Limits:
    """Measure the limits, which takes about three seconds per dtype."""
    import torch

    from assay.model.rates import product_rate

    if device == "cpu":
        torch.set_num_threads(threads)
    rates = {
        name: max(
            product_rate(getattr(torch, name), device, shape, SECONDS_A_SHAPE) for shape in SHAPES
        )
        for name in dtypes
    }
    return Limits(threads, rates, _bandwidth(device))


def _bandwidth(device: str) -> float:
    """Return the larger rate of reading (a sum) and of copying (a read and a write)."""
    import torch

    from assay.model.rates import best_seconds

    source = torch.ones(STREAM_MIB * 2**20 // 4, device=device)
    target = torch.empty_like(source)
    size = source.numel() * source.element_size()
    reading = best_seconds(source.sum, 1.0, device)
    copying = best_seconds(lambda: target.copy_(source), 1.0, device)
    return max(size / reading, 2 * size / copying)


def main(arguments: list[str] | None = None) -> None:
    """Measure and print the limits. With a file name, write them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("output", nargs="?", type=Path)
    options = parser.parse_args(sys.argv[1:] if arguments is None else arguments)
    limits = measure(tuple(options.dtypes), options.threads, options.device)
    if options.output:
        options.output.write_text(json.dumps(limits.as_dict()), encoding="utf-8")
    else:
        print(json.dumps(limits.as_dict()) if options.json else limits)


if __name__ == "__main__":
    main()
