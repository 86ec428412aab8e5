"""Estimates of `assay plan` and measurements of `assay train`: peak memory, and seconds of a step.

    python -m bench.plan --model DIR [--only NAME ...] [--work FOLDER] [--max-tokens 32]
        [--threads 2] [--json]

Every configuration is planned and then trained with `assay train`, each in its own process, one
after another. The peak is that of the training process; workers of verifiers are measured
separately. Seconds are the median of all steps except the first. With --clock cpu they are
processor seconds of the process, so that other processes hardly influence them. Results in FOLDER
are not measured again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.processes import run
from bench.side import table
from bench.workload import DATA, hardware

WITHIN = 0.15
PROGRAMS = {
    "wall": "from assay.cli import main; main()",
    "cpu": "import time; time.perf_counter = time.process_time; from assay.cli import main; main()",
}
SMOL, DEMO = "SmolLM2-135M", "demo, 0.7M"
BY_MODULES = "import assay.model.probe as probe; probe._prove_lean = lambda _: (False, 'bench'); "
"""Before a program: layers are gone through by their modules, as where the probe refuses."""
SIX = ("full", "full_modules", "checkpointing", "lora", "lora_modules", "lora_checkpointing")
TRACES = {SMOL: "traces", DEMO: "short"}
SHORT, SHORT_TIMES = 56, 4  # characters of a prompt and a completion for the demo, and how often

# name: (model, what it changes)
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "demo": (DEMO, {}),
    "full": (SMOL, {}),
    "micro_batch_1024": (SMOL, {"rl": {"max_tokens_per_micro_batch": 1024}}),
    "bf16_moments": (SMOL, {"optimizer": {"state_dtype": "bfloat16"}}),
    "reference": (SMOL, {"algorithm": {"name": "grpo"}}),
    "lora": (SMOL, {"model": {"lora": {"rank": 16}}, "optimizer": {"learning_rate": 1e-4}}),
    "lora_2x8": (
        SMOL,
        {
            "model": {"lora": {"rank": 16}},
            "optimizer": {"learning_rate": 1e-4},
            "rl": {"num_prompts": 2},
        },
    ),
    "full_modules": (SMOL, {}),
    "lora_modules": (SMOL, {"model": {"lora": {"rank": 16}}, "optimizer": {"learning_rate": 1e-4}}),
    "lora_checkpointing": (
        SMOL,
        {
            "model": {"lora": {"rank": 16}, "activation_checkpointing": True},
            "optimizer": {"learning_rate": 1e-4},
        },
    ),
    "checkpointing": (SMOL, {"model": {"activation_checkpointing": True}}),
    "sft": (SMOL, {"sft": {"tokens_per_step": 2048}}),
    "critic": (SMOL, {"algorithm": {"name": "ppo"}}),
    "taught": (SMOL, {"distill": {"tokens_per_step": 2048}}),
    "asked_once": (SMOL, {"distill": {"tokens_per_step": 2048, "keep": "taught"}}),
    "demo_taught": (DEMO, {"distill": {}}),
    "demo_asked_once": (DEMO, {"distill": {"keep": "taught"}}),
    "demo_on_policy": (DEMO, {"distill": {"num_prompts": 16}}),
    "demo_rewarded": (DEMO, {"algorithm": {"name": "on_policy_distillation"}}),
}
"""Where there is a teacher it is the student's own model."""


@dataclass(frozen=True)
class Result:
    """Estimates and measurements of one configuration.

    Workers are those of verifiers. plan_mib: peak memory of the estimating process.
    """

    name: str
    estimated_mib: float
    measured_mib: float
    estimated_seconds: float | None
    measured_seconds: float
    estimated_workers_mib: float
    measured_workers_mib: float
    parts: Mapping[str, float]
    plan_mib: float = 0.0

    @property
    def error(self) -> float:
        """Estimated peak divided by the measured peak, minus 1."""
        return self.estimated_mib / self.measured_mib - 1

    @property
    def seconds_error(self) -> float | None:
        """Estimated seconds divided by the measured seconds, minus 1."""
        if self.estimated_seconds is None:
            return None
        return self.estimated_seconds / self.measured_seconds - 1


def tree_of(name: str, model: str, folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the configuration of a case. Its reward is a hash of the text, so every group has
    gradient."""
    kind, changes = CASES[name]
    tree: dict[str, Any] = {
        "run": {
            "directory": str(folder),
            "name": name,
            "threads": arguments.threads,
            "device": "cpu",
        },
        "model": {"path": model, "dtype": "float32" if kind == DEMO else "bfloat16"},
        "data": {
            "verifier": "bench.reward:hash_of_text",
            "train": [str(folder / "problems.jsonl")],
        },
        "sampling": {"max_tokens": arguments.max_tokens},
        "rl": {"steps": arguments.steps, "num_prompts": 8, "group_size": 8},
        "algorithm": {"name": "dr_grpo"},
        "verification": {"num_workers": 1},
    }
    if kind == DEMO:
        source = "assay.data.tasks:chain_sums?num_terms=4&split=train&size=64"
        tree["data"] |= {"train": [source], "template": "base", "prompt_template": "{question}"}
        tree["rl"]["num_prompts"] = 16
    for section, values in changes.items():
        tree[section] = {**tree.get(section, {}), **values}
    if "distill" in changes or tree["algorithm"]["name"] == "on_policy_distillation":
        tree["teacher"] = tree["model"]
    stage = next((stage for stage in ("sft", "distill") if stage in changes), "rl")
    if "keep" in tree[stage]:
        tree[stage] = {**tree[stage], "keep": str(folder / f"{name}-kept")}
    if "num_prompts" in tree[stage]:
        tree[stage] = {**tree[stage], "steps": arguments.steps}
    elif stage != "rl":
        tree[stage] = {**tree[stage], "traces": [str(folder / f"{TRACES[kind]}.jsonl")]}
        del tree["data"]
    if stage != "rl":
        del tree["rl"]
    return tree


def write_rows(folder: Path, problems: Path, num_problems: int = 8) -> None:
    """Write the problems of a step, and the traces of three supervised steps."""
    with problems.open(encoding="utf-8") as file:
        rows = [json.loads(next(file)) for _ in range(64)]
    shown = [{"id": str(n), "prompt": row["question"]} for n, row in enumerate(rows[:num_problems])]
    traces = [{"prompt": row["question"], "completion": row["answer"]} for row in rows]
    cut = [{key: text[:SHORT] for key, text in row.items()} for row in traces] * SHORT_TIMES
    for name, found in (("problems", shown), ("traces", traces), ("short", cut)):
        text = "".join(json.dumps(row) + "\n" for row in found)
        (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")


def estimate(
    name: str, config: Path, folder: Path, arguments: argparse.Namespace
) -> dict[str, Any]:
    """Plan a case and return the estimated fields of its result."""
    page, log = folder / f"{name}-decision.md", folder / f"{name}-plan.log"
    options = ["--measure", "0", "--out", page, "--overwrite", "--json"]
    plan = [*_assay(arguments, name), "plan", config, *options]
    finished = run(plan, log, _environment(arguments), folder)
    planned = json.loads(log.read_text(encoding="utf-8").splitlines()[-1])["estimates"]
    return {
        "estimated_mib": planned["memory_mib"]["total"],
        "plan_mib": finished.peak_mib,
        "estimated_seconds": (planned["seconds"] or {}).get("total"),
        "estimated_workers_mib": planned["workers_mib"],
        "parts": planned["memory_mib"],
    }


def measure(name: str, config: Path, folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Train a case and return the measured fields of its result."""
    log = folder / f"{name}-train.log"
    train = [*_assay(arguments, name), "train", config, "--json"]
    finished = run(train, log, _environment(arguments), folder)
    ended = json.loads(log.read_text(encoding="utf-8").splitlines()[-1])
    metrics = (Path(ended["run"]) / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    steps = [json.loads(line)["time/step"] for line in metrics]
    return {
        "measured_mib": finished.peak_mib,
        "measured_seconds": statistics.median(steps[1:] or steps),
        "measured_workers_mib": finished.helpers_mib,
    }


def _assay(arguments: argparse.Namespace, name: str) -> list[str | Path]:
    before = BY_MODULES if name.endswith("_modules") else ""
    return [sys.executable, "-c", before + PROGRAMS[arguments.clock]]


def _environment(arguments: argparse.Namespace) -> dict[str, str]:
    return {"OMP_NUM_THREADS": str(arguments.threads)}


def shown(results: Sequence[Result]) -> str:
    """Format all results as a table."""
    heads = [
        "estimated, MiB",
        "measured",
        "error",
        "peak of the plan",
        "estimated, s a step",
        "measured",
        "error",
    ]
    rows = [["", *heads]]
    for one in results:
        mark = "" if abs(one.error) <= WITHIN else " (!)"
        seconds = ["-", f"{one.measured_seconds:.2f}", "-"]
        if one.estimated_seconds is not None and one.seconds_error is not None:
            seconds = [f"{one.estimated_seconds:.2f}", seconds[1], f"{one.seconds_error:+.0%}"]
        memory = [f"{one.estimated_mib:.0f}", f"{one.measured_mib:.0f}", f"{one.error:+.1%}{mark}"]
        rows.append([one.name, *memory, f"{one.plan_mib:.0f}", *seconds])
    return table(rows)


def main() -> None:
    """Measure the requested cases and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="folder of SmolLM2-135M-Instruct (see examples/)")
    parser.add_argument("--problems", type=Path, default=DATA / "gsm8k" / "train.jsonl")
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--work", type=Path, help="where results are kept; default: nowhere")
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--clock", choices=list(PROGRAMS), default="wall")
    parser.add_argument("--plan-again", action="store_true", help="estimate anew what is kept")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (arguments.work or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        write_rows(folder, arguments.problems)
        results = [_measured(name, folder, arguments) for name in arguments.only]
    if arguments.json:
        print(json.dumps([asdict(one) | {"error": one.error} for one in results]))
        return
    print(hardware())
    print(shown(results))


def _measured(name: str, folder: Path, arguments: argparse.Namespace) -> Result:
    import tomli_w

    kept = folder / f"{name}.json"
    found: dict[str, Any] = {"name": name}
    if kept.is_file():
        found = json.loads(kept.read_text(encoding="utf-8"))
    config = folder / f"{name}.toml"
    if "estimated_mib" not in found or "measured_mib" not in found or arguments.plan_again:
        tree = tree_of(name, _model(name, folder, arguments), folder, arguments)
        config.write_text(tomli_w.dumps(tree), encoding="utf-8")
    if "estimated_mib" not in found or arguments.plan_again:
        found |= estimate(name, config, folder, arguments)
        kept.write_text(json.dumps(found), encoding="utf-8")
    if "measured_mib" not in found:
        found |= measure(name, config, folder, arguments)
        kept.write_text(json.dumps(found), encoding="utf-8")
    result = Result(**found)
    summary = f"{result.estimated_mib:.0f} MiB estimated, {result.measured_mib:.0f} measured"
    print(f"{name}: {summary}", file=sys.stderr)
    return result


def _model(name: str, folder: Path, arguments: argparse.Namespace) -> str:
    if CASES[name][0] == DEMO:
        code = (
            "import sys; from pathlib import Path; from assay.init.tiny_model import make_model;"
            " make_model(Path(sys.argv[1]), 0)"
        )
        place = folder / "demo-model"
        run([sys.executable, "-c", code, place], folder / "demo-model.log")
        return str(place)
    if arguments.model is None:
        raise SystemExit(f"bench.plan: {name} needs --model DIR")
    return str(Path(arguments.model).resolve())


if __name__ == "__main__":
    main()
