"""Assay and TRL's GRPO trainer: generation, update, whole step and memory, in one run.

    python -m bench.vs_trl --model DIR [--trl-python PATH] [--micro-batches 8 16] [--repeats 3]
        [--json]
    python -m bench.vs_trl --workload demo --trl-python PATH

PATH is the Python of an environment with TRL; by default, this environment must contain TRL.
bench/README.md lists the common conditions of both sides. With a real reward, Assay skips groups
without gradient, and TRL does not. In this bench every group has a gradient, so that Assay saves
nothing.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench import workload as workloads
from bench.flops import ModelShape
from bench.generation import code_state, conditions, machine_command
from bench.processes import ROOT, Finished, run, run_for_json
from bench.side import Side, check_same_prompts, comparison_table, ratios
from bench.workload import Workload

TRL_STEP = ROOT / "bench" / "peers" / "trl_step.py"
LEAST_GRADIENT_SHARE = 0.9  # a completion whose reward is its group's mean has none
MICRO_BATCHES = {"demo": (32, 64), "gsm8k": (8, 16)}


def assay_config(work: Workload, problems: Path, state_dtype: str = "float32") -> dict[str, Any]:
    """Return the configuration with which `assay train` performs the workload."""
    optimizer: dict[str, Any] = {
        "learning_rate": work.learning_rate,
        "betas": list(work.betas),
        "epsilon": work.epsilon,
        "max_grad_norm": work.max_grad_norm,
    }
    if state_dtype != "float32":
        optimizer["state_dtype"] = state_dtype
    data: dict[str, Any] = {"train": [str(problems)], "verifier": "bench.reward:hash_of_text"}
    if isinstance(work.prompts[0], str):
        data |= {"template": "base", "prompt_template": "{question}"}
    return {
        "run": {"name": "run", "seed": work.seed, "threads": work.threads, "device": work.device},
        "model": {"path": work.model, "dtype": work.dtype},
        "data": data,
        "sampling": {"temperature": work.temperature, "max_tokens": work.max_tokens},
        "engine": {"num_slots": work.num_rows},
        "rl": {
            "steps": work.steps,
            "num_prompts": work.num_prompts,
            "group_size": work.group_size,
        },
        "algorithm": {"name": "dr_grpo"},
        "optimizer": optimizer,
    }


def run_assay(
    work: Workload, folder: Path, state_dtype: str = "float32", overrides: Sequence[str] = ()
) -> tuple[dict[str, Any], Finished]:
    """Train with `assay train`, and read the steps from the run directory."""
    import tomli_w

    problems = folder / "problems.jsonl"
    rows = [{"id": str(n), "prompt": prompt} for n, prompt in enumerate(work.prompts)]
    problems.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    config = folder / "assay.toml"
    tree = assay_config(work, problems, state_dtype)
    tree["run"]["directory"] = str(folder)
    config.write_text(tomli_w.dumps(tree), encoding="utf-8")
    command: list[str | Path] = [sys.executable, "-m", "assay.cli", "train", config]
    for override in overrides:
        command += ["--set", override]
    finished = run(command, folder / "assay.log", folder=folder)
    return read_run(folder / "run"), finished


def read_run(run_folder: Path) -> dict[str, Any]:
    """Return the steps, types and versions from a run directory."""
    import pyarrow.parquet as parquet

    steps: list[dict[str, Any]] = []
    device_mib = 0.0
    for line in (run_folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        device_mib = max(device_mib, row.get("memory/cuda_peak_mib", 0.0))
        if row["loss/token_share"] < LEAST_GRADIENT_SHARE:
            found = f"found a step of which {row['loss/token_share']:.0%} of tokens carry gradient"
            raise RuntimeError(f"{found}; accepted: nearly all, or Assay would have less to do")
        shard = run_folder / "rollouts" / f"step-{row['step']:06d}.parquet"
        columns = ["group", "prompt_tokens", "tokens"]
        rollouts = parquet.read_table(shard, columns=columns).to_pylist()
        groups: dict[int, list[dict[str, Any]]] = {}
        for rollout in rollouts:
            groups.setdefault(rollout["group"], []).append(rollout)
        steps.append(
            {
                "step_seconds": row["time/step"],
                "generation_seconds": row["time/generate"],
                "prompts": [len(rows[0]["prompt_tokens"]) for rows in groups.values()],
                "completions": [[len(one["tokens"]) for one in rows] for rows in groups.values()],
            }
        )
    environment = json.loads((run_folder / "environment.json").read_text(encoding="utf-8"))
    names = ("assay", "torch", "transformers")
    return {
        "steps": steps,
        "device_peak_mib": device_mib,
        "dtypes": saved_dtypes(run_folder),
        "versions": {name: environment["versions"][name] for name in names},
    }


def saved_dtypes(run_folder: Path) -> dict[str, str]:
    """Return the types of weights and optimizer state, read from the last checkpoint.

    16-bit integers are the lower halves of float32 master weights, whose upper halves are the
    parameters.
    """
    checkpoint = max((run_folder / "checkpoints").glob("step-*"))
    kinds: dict[str, set[str]] = {"parameters": set(), "optimizer": set()}
    for file in checkpoint.glob("**/*.safetensors"):
        with file.open("rb") as stream:
            header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
        header.pop("__metadata__", None)
        owner = "optimizer" if file.name.startswith("optimizer") else "parameters"
        kinds[owner] |= {entry["dtype"] for entry in header.values() if entry["shape"]}
    names = {"F32": "float32", "BF16": "bfloat16"}
    in_halves = "I16" in kinds["optimizer"]
    kinds["optimizer"].discard("I16")
    found = {
        owner: ", ".join(sorted(names.get(kind, kind) for kind in held))
        for owner, held in kinds.items()
    }
    if found["parameters"] == "float32":
        return found | {"master": "the parameters"}
    return found | {"master": "float32, in two halves" if in_halves else "float32"}


def run_trl(
    work: Workload, micro_batch: int, python: Path, folder: Path
) -> tuple[dict[str, Any], Finished]:
    """Perform the steps with TRL in its own environment."""
    file = work.write(folder / "workload.json", micro_batch=micro_batch)
    quiet = {"TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": ""}
    return run_for_json([python, TRL_STEP, file], folder, "trl", quiet)


def main() -> None:
    """Run both sides in turn, then print or write all figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    workloads.add_arguments(parser)
    parser.add_argument("--trl-python", type=Path, help="default: this Python, if TRL is in it")
    parser.add_argument("--micro-batches", type=int, nargs="+", default=None)
    parser.add_argument("--repeats", type=int, default=3, help="rounds of all sides, in turn")
    parser.add_argument("--steps", type=int, default=1, help="measured steps a run, after a first")
    parser.add_argument("--state-dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--set", dest="overrides", action="append", default=[])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.trl_python is None:
        if importlib.util.find_spec("trl") is None:
            parser.error("TRL is not in this environment; pass --trl-python (see bench/README.md)")
        options.trl_python = Path(sys.executable)
    with tempfile.TemporaryDirectory() as scratch:
        report = compare(options, Path(scratch))
    report["text"] = as_text(report)
    print(json.dumps(report, indent=1) if options.json else report["text"])


def compare(options: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """Run every side ``options.repeats`` times in turn, and return all figures."""
    load_before = os.getloadavg()[0]
    work = workloads.chosen_apart(options, scratch)
    work = replace(work, steps=1 + options.steps, device=options.device)
    limits, _ = run_for_json(machine_command(work), scratch, "machine")
    ours = Side("Assay")
    sizes = options.micro_batches or MICRO_BATCHES[options.workload]
    others = {size: Side(f"TRL, micro-batch {size}") for size in sizes}
    for _ in range(options.repeats):
        with tempfile.TemporaryDirectory(dir=scratch) as folder:
            ours.add(*run_assay(work, Path(folder), options.state_dtype, options.overrides))
            print(ours.last_line(), file=sys.stderr, flush=True)
        for size, side in others.items():
            with tempfile.TemporaryDirectory(dir=scratch) as folder:
                side.add(*run_trl(work, size, options.trl_python, Path(folder)))
                print(side.last_line(), file=sys.stderr, flush=True)
    check_same_prompts([ours, *others.values()])
    faster = max(others.values(), key=lambda side: side.tokens_per_second("step").median)
    shape, rate = ModelShape.read(work.model), limits["product_flops"][work.dtype]
    sides = [ours, *others.values()]
    shares = {
        side.name: {"update_of_products": side.update_share(shape, rate)}
        | side.generation_shares(shape, rate, limits["bandwidth"], work.dtype)
        for side in sides
    }
    return {
        "workload": str(work),
        "date": datetime.now(UTC).isoformat(timespec="minutes"),
        "hardware": workloads.hardware(options.device),
        "code": code_state(),
        "load_before": load_before,
        "load_after": os.getloadavg()[0],
        "machine": limits,
        "overrides": [f"optimizer.state_dtype={options.state_dtype}", *options.overrides],
        "sides": [side.as_dict() for side in sides],
        "faster": faster.name,
        "ratios": ratios(ours, faster),
        "shares_of_limits": shares,
        "table": comparison_table(ours, list(others.values()), faster),
    }


def as_text(report: dict[str, Any]) -> str:
    """Return the report as text."""
    lines = [report["workload"], "", report["table"], ""]
    for side in report["sides"]:
        held, versions = side["dtypes"], side["versions"]
        lines.append(
            f"{side['name']}: parameters {held['parameters']}, master weights {held['master']}, "
            f"optimizer state {held['optimizer']}; "
            + ", ".join(f"{name} {version}" for name, version in versions.items())
        )
    lines.append("")
    for name, shares in report["shares_of_limits"].items():
        lines.append(
            f"{name}: useful work as a share of the limit: update "
            f"{shares['update_of_products']:.1%} of the product rate; generation "
            f"{shares['generation_of_products']:.1%} of the product rate, "
            f"{shares['generation_of_bandwidth']:.1%} of the memory bandwidth"
        )
    lines += conditions(report)
    return "\n".join(lines)


if __name__ == "__main__":
    main()
