"""The engine and the learner on a CUDA device, at 0.5B and 1.5B shapes of random weights in
bfloat16.

python -m bench.gpu [--json FILE]     fits a call of ten minutes; needs no network and no weights
python -m bench.gpu --tiny            the same on the CPU, with tiny shapes, to see that it runs

For each shape: tokens a second of the engine and of Transformers' `generate`, the share of the
memory bandwidth and of the product rate in generation, the update's model FLOP/s over the product
rate, and the peak of device memory. Then the update of Qwen3-0.6B on one completion of 16k tokens,
with and without activation checkpointing: prime-rl publishes 11,896 tokens a second and 12.5 GiB
for it on an H100. The device's limits are measured first. The parts that fail are reported and the
others go on, so that one call tells all it can.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.flops import ModelShape, Work, decode_bytes, forward_flops, update_flops
from bench.machine import Limits
from bench.side import table

# Qwen2.5's sizes, from its published configurations.
SHAPES = {
    "0.5B": ModelShape(24, 896, 4864, 14, 2, 64, 151936),
    "1.5B": ModelShape(28, 1536, 8960, 12, 2, 128, 151936),
}
TINY = {"tiny": ModelShape(2, 64, 128, 4, 2, 16, 512)}
# Qwen3-0.6B, and the same at tiny scale.
LONG_SHAPE = ModelShape(28, 1024, 3072, 16, 8, 128, 151936)
LONG_TINY = ModelShape(2, 64, 128, 4, 2, 16, 512)
LONG_PROMPT, LONG_COMPLETION = 128, 2**14 - 128
SECONDS_IN_ALL = 540


@dataclass(frozen=True)
class Load:
    """Sizes of the work for each shape. Lengths are forced, so that all programs do the same
    work."""

    num_prompts: int = 8
    prompt_length: int = 128
    group_size: int = 8
    completion_length: int = 256
    repeats: int = 3

    @property
    def work(self) -> Work:
        """The work of one generation and of one update."""
        lengths = [[self.completion_length] * self.group_size] * self.num_prompts
        return Work.of([self.prompt_length] * self.num_prompts, lengths)


TINY_LOAD = Load(num_prompts=2, prompt_length=8, group_size=2, completion_length=8, repeats=1)


@dataclass(frozen=True)
class Device:
    """The device, and its measured limits."""

    name: str
    kind: str
    limits: Limits

    def wait(self) -> None:
        """Wait until the device has finished all submitted work."""
        import torch

        if self.kind != "cpu":
            torch.cuda.synchronize()

    def seconds(self, work: Callable[[], object], repeats: int) -> float:
        """Return the median seconds of several calls, after one warm-up call."""
        times: list[float] = []
        for _ in range(1 + repeats):
            self.wait()
            started = time.perf_counter()
            work()
            self.wait()
            times.append(time.perf_counter() - started)
        return statistics.median(times[1:])


def measure_shape(name: str, shape: ModelShape, load: Load, device: Device) -> dict[str, Any]:
    """Measure one shape. If a part fails, its error takes the place of its figures."""
    from bench.local_step import LocalStep, random_model, random_prompts

    model = random_model(shape, "bfloat16", device.kind, family="qwen2")
    prompts = random_prompts(load.num_prompts, load.prompt_length, shape.vocabulary)
    found: dict[str, Any] = {
        "shape": name,
        "num_weights": sum(parameter.numel() for parameter in model.parameters()),
    }
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "transformers": lambda: _transformers(model, prompts, load, device),
    }
    try:
        step = LocalStep(model, prompts, load.group_size, load.completion_length)
        found |= {"engine_path": step.engine.path, "layout": step.layout.reason}
        parts["engine"] = lambda: _engine(step, shape, load, device)
        parts["update"] = lambda: _update(step, shape, load, device)
    except Exception as error:  # whatever the parts raise on a device that they have never met
        found["engine"] = found["update"] = {"error": _describe(error)}
    for part, work in parts.items():
        try:
            found[part] = work()
        except Exception as error:  # as above
            found[part] = {"error": _describe(error)}
    if "seconds" in found["engine"] and "seconds" in found["transformers"]:
        found["ratio"] = found["transformers"]["seconds"] / found["engine"]["seconds"]
    return found


def _describe(error: Exception) -> str:
    traceback.print_exception(error)
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def _engine(step: Any, shape: ModelShape, load: Load, device: Device) -> dict[str, Any]:
    peak = _peak(device)
    seconds = device.seconds(step.generate, load.repeats)
    work, limits = load.work, device.limits
    stats = step.engine.stats  # of the last call
    moved = decode_bytes(shape, work, "bfloat16")
    return {
        "seconds": seconds,
        "tokens_per_second": work.predicted / seconds,
        "decode_of_bandwidth": moved / stats.decode_seconds / limits.bandwidth,
        "of_products": forward_flops(shape, work) / seconds / limits.product_flops["bfloat16"],
        "prefill_seconds": stats.prefill_seconds,
        "decode_seconds": stats.decode_seconds,
        "peak_mib": peak.mib(),
    }


def _update(step: Any, shape: ModelShape, load: Load, device: Device) -> dict[str, Any]:
    groups = step.generate()
    peak = _peak(device)
    seconds = device.seconds(lambda: step.update(groups), load.repeats)
    flops = update_flops(shape, load.work) / seconds
    return {
        "seconds": seconds,
        "tokens_per_second": load.work.predicted / seconds,
        "model_flops": flops,
        "of_products": flops / device.limits.product_flops["bfloat16"],
        "peak_mib": peak.mib(),
    }


def measure_long(tiny: bool, device: Device) -> dict[str, Any]:
    """Measure the update on one long completion. If a part fails, its error is reported."""
    shape, length = (LONG_TINY, 64) if tiny else (LONG_SHAPE, LONG_COMPLETION)
    found: dict[str, Any] = {"tokens": LONG_PROMPT + length}
    for name, recompute in (("kept", False), ("recomputed", True)):
        try:
            found[name] = _long_update(shape, length, recompute, device)
        except Exception as error:  # whatever a device that was never met raises
            found[name] = {"error": _describe(error)}
        gc.collect()
    return found


def _long_update(shape: ModelShape, length: int, recompute: bool, device: Device) -> dict[str, Any]:
    from bench.local_step import LocalStep, random_groups, random_model, random_prompts

    model = random_model(shape, "bfloat16", device.kind, family="qwen3", max_positions=2**15)
    prompts = random_prompts(1, LONG_PROMPT, shape.vocabulary)
    step = LocalStep(model, prompts, 1, 8, activation_checkpointing=recompute)
    groups = random_groups(step.problems, prompts, [[length]], shape.vocabulary)
    peak = _peak(device)
    seconds = device.seconds(lambda: step.update(groups), 2)
    flops = update_flops(shape, Work.of([LONG_PROMPT], [[length]])) / seconds
    return {
        "seconds": seconds,
        "tokens_per_second": (LONG_PROMPT + length) / seconds,
        "of_products": flops / device.limits.product_flops["bfloat16"],
        "peak_mib": peak.mib(),
    }


def _transformers(
    model: Any, prompts: Sequence[Sequence[int]], load: Load, device: Device
) -> dict[str, Any]:
    import torch

    ids = torch.tensor(prompts, device=device.kind)
    mask = torch.ones_like(ids)

    @torch.inference_mode()
    def generate() -> None:
        output = model.generate(
            ids,
            attention_mask=mask,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            max_new_tokens=load.completion_length,
            num_return_sequences=load.group_size,
            pad_token_id=0,
        )
        assert output.shape[1] == ids.shape[1] + load.completion_length

    peak = _peak(device)
    seconds = device.seconds(generate, load.repeats)
    tokens = load.work.predicted
    return {
        "seconds": seconds,
        "tokens_per_second": tokens / seconds,
        "peak_mib": peak.mib(),
    }


def _peak(device: Device) -> Any:
    from bench.local_step import PeakMemory

    peak = PeakMemory(device.kind)
    peak.reset()
    return peak


def report(found: dict[str, Any]) -> str:
    """Return the figures as text."""
    head = ["", "engine tok/s", "transformers tok/s", "ratio", "decode of bandwidth", "of products"]
    head += ["update s", "update tok/s", "of products", "peak MiB"]
    rows = [head]
    for one in found["shapes"]:
        engine, update, other = (one[part] for part in ("engine", "update", "transformers"))
        cells = [_number(engine, "tokens_per_second", "{:.0f}")]
        cells.append(_number(other, "tokens_per_second", "{:.0f}"))
        cells.append(_number(one, "ratio", "{:.2f}x"))
        cells += [_number(engine, key, "{:.1%}") for key in ("decode_of_bandwidth", "of_products")]
        cells += [_number(update, "seconds", "{:.2f}")]
        cells += [_number(update, "tokens_per_second", "{:.0f}")]
        cells += [_number(update, "of_products", "{:.1%}"), _number(update, "peak_mib", "{:.0f}")]
        rows.append([one["shape"], *cells])
    lines = [found["device"], found["limits"], "", table(rows), "", *_long_lines(found)]
    for one in found["shapes"]:
        for part in ("engine", "update", "transformers"):
            if "error" in one[part]:
                lines.append(f"{one['shape']} {part}: {one[part]['error']}")
    if found["left_out"]:
        lines.append(f"left out for want of time: {', '.join(found['left_out'])}")
    return "\n".join(lines)


def _long_lines(found: dict[str, Any]) -> list[str]:
    """Return a line for each variant of the update on one long completion."""
    long, lines = found.get("long", {}), list[str]()
    for name, words in (("kept", "activations kept"), ("recomputed", "checkpointing")):
        one = long.get(name, {})
        if "seconds" in one:
            lines.append(
                f"Qwen3-0.6B, {long['tokens']} tokens, {words}: {one['tokens_per_second']:.0f} "
                f"tokens/s, {one['of_products']:.1%} of products, {one['peak_mib'] / 1024:.1f} GiB"
            )
        elif "error" in one:
            lines.append(f"long update, {words}: {one['error']}")
    return lines


def _number(figures: dict[str, Any], key: str, form: str) -> str:
    return form.format(figures[key]) if key in figures else "-"


def find_device(tiny: bool) -> Device:
    """Return the device with its limits measured."""
    import torch

    from bench.machine import measure

    if tiny:
        return Device("CPU", "cpu", measure(("bfloat16",), torch.get_num_threads()))
    if not torch.cuda.is_available():
        raise SystemExit("bench.gpu: found no CUDA device; accepted: one, or --tiny for the CPU")
    return Device(torch.cuda.get_device_name(), "cuda", measure(("bfloat16",), 0, "cuda"))


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure every shape for which time remains. Print the figures, and optionally write JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seconds", type=float, default=SECONDS_IN_ALL, help="in all")
    options = parser.parse_args(arguments)
    import torch
    import transformers

    started = time.perf_counter()
    device = find_device(options.tiny)
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    found: dict[str, Any] = {
        "device": f"{device.name}; {versions}",
        "limits": str(device.limits),
        "shapes": [],
        "left_out": [],
    }
    load = TINY_LOAD if options.tiny else Load()
    longest = 0.0
    for name, shape in (TINY if options.tiny else SHAPES).items():
        begun = time.perf_counter()
        if begun - started + 2 * longest > options.seconds:
            found["left_out"].append(name)
            continue
        found["shapes"].append(measure_shape(name, shape, load, device))
        longest = max(longest, time.perf_counter() - begun)
        gc.collect()
        if device.kind != "cpu":
            torch.cuda.empty_cache()
        print(json.dumps(found["shapes"][-1]), file=sys.stderr, flush=True)
        if options.json:  # after each shape, so that a call that is cut off has told of the first
            options.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    if time.perf_counter() - started + longest < options.seconds:
        found["long"] = measure_long(options.tiny, device)
    else:
        found["left_out"].append("long")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    print(report(found))


if __name__ == "__main__":
    main()
