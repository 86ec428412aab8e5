"""Measure one point of `bench.scaling` in a process of its own, so that its memory is its own.

python -m bench.scaling_point POINT.json RESULT.json
"""

from __future__ import annotations

import gc
import json
import statistics
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.flops import BYTES, ModelShape

if TYPE_CHECKING:
    from bench.local_step import LocalStep

WIDE_BYTES = 4  # gradients are added up in float32


@dataclass(frozen=True)
class Point:
    """What is measured: a model of random weights, prompts of random tokens, lengths forced.

    num_steps: how many are measured, after a first that is not. activation_checkpointing: layers
    keep their inputs only, and compute the rest again in the backward pass.
    """

    shape: ModelShape
    dtype: str = "bfloat16"
    num_prompts: int = 4
    prompt_length: int = 64
    completion_length: int = 64
    group_size: int = 8
    threads: int = 2
    num_steps: int = 3
    activation_checkpointing: bool = False

    @property
    def num_tokens(self) -> int:
        """Tokens that a step samples."""
        return self.num_prompts * self.group_size * self.completion_length

    @classmethod
    def read(cls, path: Path) -> Point:
        """Read what `write` wrote."""
        tree = json.loads(path.read_text(encoding="utf-8"))
        return cls(**tree | {"shape": ModelShape(**tree["shape"])})

    def write(self, path: Path) -> Path:
        """Write the point as JSON; returns the path."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")
        return path

    def varied(self, **changes: Any) -> Point:
        """Return the point with other values: its own fields, or those of its shape."""
        inner = {name: changes.pop(name) for name in list(changes) if hasattr(self.shape, name)}
        return replace(self, shape=replace(self.shape, **inner), **changes)


LOADS_CODE = Point(ModelShape(2, 32, 64, 4, 2, 8, 256), num_prompts=1, completion_length=4)


def measure(point: Point) -> dict[str, Any]:
    """Return seconds and MiB of generation and update, medians of a few steps after a first.

    peak: all that was resident at the worst moment. beyond: less what the process held before there
    was this model (code that only the first step loads included), less weights and the optimizer's
    state (and, in the update, float32 gradients).
    """
    import torch

    from bench.local_step import PeakMemory, resident_mib

    torch.set_num_threads(point.threads)
    _step_taken(LOADS_CODE)
    gc.collect()
    before = resident_mib()
    step = _step_taken(point)
    num_weights = sum(parameter.numel() for parameter in step.model.parameters())
    state = num_weights * state_bytes(point.dtype) / 2**20
    gradients = num_weights * WIDE_BYTES / 2**20
    peak = PeakMemory()
    rows: dict[str, list[float]] = {}
    for _ in range(point.num_steps):
        peak.reset()
        started = time.perf_counter()
        groups = step.generate()
        rows.setdefault("generation_seconds", []).append(time.perf_counter() - started)
        rows.setdefault("generation_peak_mib", []).append(peak.mib())
        peak.reset()
        started = time.perf_counter()
        step.update(groups)
        rows.setdefault("update_seconds", []).append(time.perf_counter() - started)
        rows.setdefault("update_peak_mib", []).append(peak.mib())
    found = {name: statistics.median(values) for name, values in rows.items()}
    found["generation_beyond_mib"] = found["generation_peak_mib"] - before - state
    found["update_beyond_mib"] = found["update_peak_mib"] - before - state - gradients
    return found | {
        "num_weights": num_weights,
        "num_tokens": point.num_tokens,
        "weights_mib": num_weights * BYTES[point.dtype] / 2**20,
        "state_mib": state,
        "layout": step.layout.layout,
    }


def _step_taken(point: Point) -> LocalStep:
    """Return the parts of a point, after one step."""
    from bench.local_step import LocalStep, random_model, random_prompts

    longest = point.prompt_length + point.completion_length
    model = random_model(point.shape, point.dtype, max_positions=max(longest, 4096))
    prompts = random_prompts(point.num_prompts, point.prompt_length, point.shape.vocabulary)
    step = LocalStep(
        model,
        prompts,
        point.group_size,
        point.completion_length,
        activation_checkpointing=point.activation_checkpointing,
    )
    step.update(step.generate())
    return step


def state_bytes(dtype: str) -> int:
    """Return bytes that a weight holds for good: itself, what its type cuts off, two moments."""
    cut_off = 4 - BYTES[dtype]
    return BYTES[dtype] + cut_off + 2 * WIDE_BYTES


def main() -> None:
    """Read the point, measure, write one JSON object."""
    found = measure(Point.read(Path(sys.argv[1])))
    Path(sys.argv[2]).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
