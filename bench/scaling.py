"""Growth of seconds and memory with lengths, group size, vocabulary and model size.

    python -m bench.scaling                    writes docs/scaling.svg and docs/scaling.md (minutes)
    python -m bench.scaling --tiny --out DIR   two small points per sweep, to test the bench

Each point is measured in its own process: a Llama with random weights, one warm-up step, then
several measured steps.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.flops import ModelShape
from bench.processes import ROOT, run_for_json
from bench.scaling_point import Point
from bench.workload import hardware

SMALL = ModelShape(
    layers=4, width=256, intermediate=768, heads=4, kv_heads=2, head_width=64, vocabulary=8192
)
BASE = Point(SMALL)
TINY = Point(
    ModelShape(2, 32, 64, 4, 2, 8, 256),
    num_prompts=2,
    prompt_length=8,
    completion_length=8,
    group_size=2,
)
MODEL_SIZES = (
    {"layers": 2, "width": 128, "intermediate": 384, "heads": 2, "kv_heads": 1},
    {},
    {"layers": 8, "width": 384, "intermediate": 1152, "heads": 6, "kv_heads": 2},
    {"layers": 12, "width": 512, "intermediate": 1536, "heads": 8, "kv_heads": 4},
    {"layers": 16, "width": 768, "intermediate": 2304, "heads": 12, "kv_heads": 4},
)


@dataclass(frozen=True)
class Sweep:
    """A quantity that grows, while all other quantities are constant."""

    name: str
    title: str
    changes: tuple[Mapping[str, Any], ...]
    values: tuple[int, ...] = ()

    @classmethod
    def over(cls, name: str, title: str, values: Sequence[int], **others: int) -> Sweep:
        """Return the sweep over one field of a point or of its shape; others: fields of every
        point."""
        return cls(name, title, tuple({name: value, **others} for value in values), tuple(values))


SWEEPS = (
    Sweep.over("completion_length", "tokens a completion", (32, 64, 128, 256, 512)),
    Sweep.over(
        "completion_length",
        "tokens a long completion",
        (512, 1024, 4096, 16384),
        **{"num_prompts": 1, "group_size": 2, "num_steps": 1},
    ),
    Sweep.over(
        "completion_length",
        "tokens a long completion, layers computed again",
        (512, 1024, 4096, 16384),
        **{"num_prompts": 1, "group_size": 2, "num_steps": 1, "activation_checkpointing": True},
    ),
    Sweep.over("group_size", "completions a group", (2, 4, 8, 16, 32)),
    Sweep.over("prompt_length", "tokens a prompt", (32, 128, 512, 1024)),
    Sweep.over("vocabulary", "vocabulary", (2048, 8192, 32768, 131072)),
    Sweep("model", "weights", MODEL_SIZES),
)
TINY_SWEEPS = (
    Sweep.over("completion_length", "tokens a completion", (8, 16)),
    Sweep("model", "weights", ({}, {"width": 48})),
)


@dataclass(frozen=True)
class Series:
    """A sweep as it was measured: x, and what each point gave."""

    sweep: Sweep
    x: tuple[int, ...]
    points: tuple[Mapping[str, Any], ...]

    def column(self, name: str) -> list[float]:
        """Return one figure of every point."""
        return [float(point[name]) for point in self.points]


def measure(sweep: Sweep, base: Point, folder: Path) -> Series:
    """Measure every point of a sweep, each in its own process."""
    points: list[Mapping[str, Any]] = []
    for change in sweep.changes:
        file = base.varied(**change).write(folder / "point.json")
        command = [sys.executable, "-m", "bench.scaling_point", file]
        found, finished = run_for_json(command, folder, "scaling")
        points.append(found)
        print(f"{sweep.name} {dict(change)}: {finished.seconds:.1f} s", file=sys.stderr, flush=True)
    x = sweep.values or tuple(int(point["num_weights"]) for point in points)
    return Series(sweep, x, tuple(points))


def markdown(series: Sequence[Series], base: Point, conditions: str) -> str:
    """Return docs/scaling.md."""
    from assay.model.head import LOGITS_AT_ONCE  # loads torch, which must not be before the points

    shape = base.shape
    parts = [
        "# How cost grows",
        "",
        "After this page you know how the time and memory of a training step grow with lengths, "
        "group size, vocabulary and model size.",
        "",
        "![Seconds and memory of a training step against each quantity](scaling.svg)",
        "",
        "Each table changes one quantity.",
        f"All other quantities stay at {base.num_prompts} prompts of {base.prompt_length} tokens, "
        f"and {base.group_size} completions of exactly {base.completion_length} tokens per prompt.",
        f"The model is a Llama with random weights in {base.dtype}: {shape.layers} layers, "
        f"width {shape.width}, vocabulary {shape.vocabulary}.",
        "",
        f"Measured {conditions}.",
        "The command `python -m bench.scaling` repeats the measurement.",
        "",
        "How to read the figure and the tables:",
        "",
        "- Both axes of the figure are logarithmic.",
        "  A line that rises tenfold while its quantity grows tenfold is proportional.",
        "  A flatter line includes a fixed cost that is still larger than the growing cost.",
        "  A steeper line grows faster than the quantity.",
        "- *generation* is the time of `Engine.generate` for all completions at once.",
        "  *update* is the time of forward, backward and the optimizer's step, as the metric "
        "`time/update` of a run.",
        "  Times are medians of three steps after a warm-up step.",
        "  Long completions are two completions of one prompt, measured in one step after the "
        "warm-up step.",
        "  *us a token* is the time in microseconds per sampled token of the step.",
        "- *layers computed again* means `model.activation_checkpointing = true`.",
        "  Each layer then stores only its input, and the backward pass computes the layer again.",
        "- *peak* is the maximum resident memory of the process during generation or update.",
        "  Python, PyTorch and Transformers take about 400 MiB before a model is loaded.",
        "- *beyond* is the peak without the memory of the process before the model, the weights, "
        "the optimizer's state (12 bytes per weight) and, in the update, the float32 gradients "
        "(4 bytes per weight).",
        "  The remaining memory contains activations, keys and values, logits, gradients before "
        "their conversion to float32, and memory that the allocator caches for the next step.",
        "- All logits of a step would be tokens x vocabulary numbers.",
        f"  At most {LOGITS_AT_ONCE / 1e6:.0f} million logits exist at a time "
        f"({LOGITS_AT_ONCE * 2 / 2**20:.0f} MiB in bfloat16), so beyond that size their memory "
        "grows neither with tokens nor with the vocabulary.",
        "  Copies as large as the embedding still grow with the vocabulary (compare "
        "*weights MiB*).",
        "",
    ]
    for one in series:
        parts += [f"## {one.sweep.title[0].upper()}{one.sweep.title[1:]}", "", *_rows(one), ""]
    return "\n".join(parts)


def _rows(series: Series) -> list[str]:
    names = ("weights MiB", "generation s", "update s", "generation us a token")
    names += ("update us a token", "generation peak MiB", "update peak MiB")
    names += ("generation beyond MiB", "update beyond MiB")
    lines = [f"| {series.sweep.title} | " + " | ".join(names) + " |"]
    lines.append("|" + "---:|" * (1 + len(names)))
    for value, point in zip(series.x, series.points, strict=True):
        weights = f"{point['weights_mib']:.0f}"
        spent = [point[f"{part}_seconds"] for part in ("generation", "update")]
        seconds = [f"{one:.3f}" for one in spent]
        seconds += [f"{one / point['num_tokens'] * 1e6:.0f}" for one in spent]
        sizes = [
            f"{point[f'{part}_{kind}_mib']:.0f}"
            for kind in ("peak", "beyond")
            for part in ("generation", "update")
        ]
        lines.append(f"| {value:,} | " + " | ".join([weights, *seconds, *sizes]) + " |")
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure all sweeps; write the figure and the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=ROOT / "docs")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--json", action="store_true", help="also print all figures")
    options = parser.parse_args(arguments)
    from bench.scaling_figure import draw  # at once, before minutes are spent

    base = replace(TINY if options.tiny else BASE, threads=options.threads)
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        sweeps = TINY_SWEEPS if options.tiny else SWEEPS
        series = [measure(sweep, base, Path(folder)) for sweep in sweeps]
    today = datetime.now(UTC).date().isoformat()
    conditions = f"on {today} on {hardware()}, {options.threads} threads, load before {load:.1f}"
    (options.out / "scaling.md").write_text(markdown(series, base, conditions), encoding="utf-8")
    draw(series, options.out / "scaling.svg")
    if options.json:
        tree = [{"sweep": one.sweep.name, "x": one.x, "points": one.points} for one in series]
        print(json.dumps(tree, indent=1))


if __name__ == "__main__":
    main()
