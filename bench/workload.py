"""The common workload of two programs: a plain value, written as JSON for peers.

A peer runs in its own environment without Assay. It reads the keys of the file, which are the names
of `Workload`'s fields.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from bench import DATA
from bench.processes import run

Dtype = Literal["float32", "bfloat16"]
Chat: TypeAlias = tuple[Mapping[str, str], ...]

GSM8K = "hf:openai/gsm8k/main?split=train"
SYSTEM_PROMPT = "Solve the problem step by step. End with the final number in \\boxed{}."
NAMES = ("demo", "gsm8k")
DTYPES = get_args(Dtype)
INSTRUCTION_SETS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
HOLD_LIBRARIES = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS")
"""Variables of the environment that hold PyTorch, oneDNN and MKL to older instruction sets."""


@dataclass(frozen=True)
class Workload:
    """Definition of one training step.

    steps: number of steps, the first of which is a warm-up. model: a folder in Hugging Face layout.
    prompts: chats for the tokenizer's template, or plain texts.
    """

    name: str
    model: str
    dtype: Dtype
    prompts: tuple[str | Chat, ...]
    group_size: int
    max_tokens: int
    temperature: float = 1.0
    learning_rate: float = 1e-6
    betas: tuple[float, float] = (0.9, 0.95)
    epsilon: float = 1e-8
    max_grad_norm: float = 1.0
    seed: int = 0
    threads: int = 2
    steps: int = 2
    device: str = "cpu"

    @property
    def num_prompts(self) -> int:
        """Number of prompts per step. All prompts are used in every step."""
        return len(self.prompts)

    @property
    def num_rows(self) -> int:
        """Number of completions per step."""
        return self.num_prompts * self.group_size

    def write(self, path: Path, **more: Any) -> Path:
        """Write the workload as JSON, with additional keys for a peer. Return the path."""
        path.write_text(json.dumps(asdict(self) | more), encoding="utf-8")
        return path

    @classmethod
    def read(cls, path: Path) -> Workload:
        """Read a file of `write`. Additional keys for a peer are ignored."""
        tree = json.loads(path.read_text(encoding="utf-8"))
        tree = {name: tree[name] for name in cls.__dataclass_fields__}
        prompts = tuple(p if isinstance(p, str) else tuple(p) for p in tree["prompts"])
        return cls(**tree | {"prompts": prompts, "betas": tuple(tree["betas"])})

    def __str__(self) -> str:
        return (
            f"{self.name}: {Path(self.model).name} in {self.dtype}, {self.num_prompts} prompts x "
            f"{self.group_size} completions, up to {self.max_tokens} new tokens, temperature "
            f"{self.temperature:g}, {self.threads} threads, on {self.device}"
        )


def demo_workload(folder: Path, num_prompts: int = 16) -> Workload:
    """Return the step of `assay demo`: its model with fresh weights, and its problems, in
    float32."""
    from assay.data.problems import load_problems
    from assay.init.tiny_model import make_model
    from assay.recipes.demo import MAX_TOKENS, PROBLEMS

    problems = load_problems([f"{PROBLEMS}&split=train&size={num_prompts}"])
    return Workload(
        name="demo",
        model=str(make_model(folder / "demo-model", seed=0)),
        dtype="float32",
        prompts=tuple(problem.question for problem in problems),
        group_size=8,
        max_tokens=MAX_TOKENS,
        learning_rate=2e-4,
    )


def gsm8k_workload(
    model: str, problems: str = GSM8K, num_prompts: int = 8, max_tokens: int = 128
) -> Workload:
    """Return a step on the first GSM8K problems in bfloat16. problems: a source, as in
    `data.train`."""
    from assay.data.problems import load_problems

    rows = load_problems([problems], limit=num_prompts)
    return Workload(
        name="gsm8k",
        model=model,
        dtype="bfloat16",
        prompts=tuple(_chat(row.question) for row in rows),
        group_size=8,
        max_tokens=max_tokens,
    )


def _chat(question: str) -> Chat:
    system = {"role": "system", "content": SYSTEM_PROMPT}
    return (system, {"role": "user", "content": question})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose a workload."""
    parser.add_argument("--workload", choices=NAMES, default="gsm8k")
    parser.add_argument("--model", help="folder of SmolLM2-135M-Instruct (see examples/)")
    local = DATA / "gsm8k" / "train.jsonl"
    rows = str(local) if local.is_file() else GSM8K
    parser.add_argument("--problems", default=rows, help="where GSM8K's rows are")
    parser.add_argument("--max-tokens", type=int, default=None, help="new tokens at most")
    parser.add_argument("--num-prompts", type=int, default=None)
    parser.add_argument("--dtype", choices=DTYPES, help="default: float32 of demo, else bfloat16")
    parser.add_argument("--threads", type=int, default=2)


def chosen(arguments: argparse.Namespace, folder: Path) -> Workload:
    """Return the workload that the options select. Missing files are created in ``folder``.

    The function loads large libraries: see `chosen_apart`.
    """
    sizes = {"num_prompts": arguments.num_prompts} if arguments.num_prompts else {}
    if arguments.workload == "demo":
        workload = demo_workload(folder, **sizes)
    elif arguments.model is None:
        raise SystemExit("bench: the gsm8k workload needs --model DIR")
    else:
        model = str(Path(arguments.model).resolve())
        workload = gsm8k_workload(model, arguments.problems, **sizes)
    if arguments.max_tokens:
        workload = replace(workload, max_tokens=arguments.max_tokens)
    if arguments.dtype:
        workload = replace(workload, dtype=arguments.dtype)
    return replace(workload, threads=arguments.threads)


def chosen_apart(arguments: argparse.Namespace, folder: Path) -> Workload:
    """Call `chosen` in a separate process, so that this process stays small (see
    `bench.processes`)."""
    names = ("workload", "model", "problems", "max_tokens", "num_prompts", "dtype", "threads")
    flags: list[str] = []
    for name in names:
        value = getattr(arguments, name)
        if value is not None:
            flags += [f"--{name.replace('_', '-')}", str(value)]
    file = folder / "workload.json"
    run([sys.executable, "-m", "bench.workload", *flags, file], folder / "workload.log")
    return Workload.read(file)


def hardware(device: str = "cpu") -> str:
    """Describe the processor, its cores, its instruction sets, limits on libraries, and the GPU."""
    if device != "cpu":
        import torch

        return f"{torch.cuda.get_device_name()}; {hardware()}"
    name = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith("model name"):
            name = line.partition(":")[2].strip()
            break
    flags: Sequence[str] = next((line.split() for line in lines if line.startswith("flags")), [])
    kinds = [kind for kind in INSTRUCTION_SETS if kind in flags]
    held = [f"{name}={os.environ[name]}" for name in HOLD_LIBRARIES if name in os.environ]
    sets = ", ".join(kinds) or "no AVX2"
    limits = f"; held to {' '.join(held)}" if held else ""
    return f"{name}, {os.cpu_count()} cores ({sets}{limits})"


def main() -> None:
    """Write the selected workload to a file. Missing files are created next to it."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    parser.add_argument("output", type=Path)
    arguments = parser.parse_args()
    chosen(arguments, arguments.output.parent).write(arguments.output)


if __name__ == "__main__":
    main()
