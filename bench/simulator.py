"""The simulation of distributed runs and small measured runs: seconds of a step.

    python -m bench.simulator [--only NAME ...] [--steps 5] [--work FOLDER] [--clock cpu]

Every run trains a tiny model with one thread per process. The unit times of the simulation are
fitted to the run of one process (``pilot``); all other runs are predicted from these unit times and
from their own lengths of completions. The fit has no figure of a predicted run.

With ``--clock wall`` a measured step is the run's time/step, which needs an idle machine with a
core for each process. With ``--clock cpu`` (the default) other work on the machine hardly counts:
the processor seconds of each process are read after every step, and a step is their critical path:
the command and the slowest process that it waits for, or with steps ahead the slowest process.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from assay.init.tiny_model import make_model
from assay.plan.cluster_events import ClusterCosts, ClusterWork, simulate
from assay.plan.measured.pilot_facts import PilotFacts, fit_costs, read_pilot
from assay.report.loaded import load_run
from bench.processes import ROOT
from bench.side import table
from bench.workload import hardware

PROMPTS, SIBLINGS, MAX_TOKENS, CONTEXT = 8, 8, 256, 1024
WITHIN = 0.15
CASES: dict[str, dict[str, Any]] = {
    "pilot": {},
    "ranks_2": {"learner_ranks": 2},
    "actors_1": {"rollout_actors": 1},
    "actors_2": {"rollout_actors": 2},
    "ahead_1": {"rollout_actors": 1, "steps_ahead": 1},
    "actors_2_ahead_1": {"rollout_actors": 2, "steps_ahead": 1},
}
TRAIN = "from assay.cli import main; main()"
PROGRAMS = {"wall": TRAIN, "cpu": f"import time; time.perf_counter = time.process_time; {TRAIN}"}


@dataclass(frozen=True)
class Compared:
    """Predicted and measured seconds of a step."""

    name: str
    predicted: float
    measured: float
    load: float

    @property
    def error(self) -> float:
        """Predicted seconds divided by the measured seconds, minus 1."""
        return self.predicted / self.measured - 1


def tree_of(model: Path, folder: Path, name: str, steps: int) -> dict[str, Any]:
    """Return the configuration of a case."""
    return {
        "run": {"directory": str(folder / "runs"), "name": name, "threads": 1},
        "model": {"path": str(model)},
        "data": {"train": ["gym:chain_sum?size=64&seed=0"], "template": "base", "verifier": "math"},
        # Random weights choose all bytes nearly equally often, so a stop string gives a long tail.
        "sampling": {"max_tokens": MAX_TOKENS, "stop": ["e"]},
        "engine": {"num_slots": PROMPTS * SIBLINGS},
        # A KL to the reference gives every group a gradient, whatever the model can do.
        "rl": {"steps": steps, "num_prompts": PROMPTS, "group_size": SIBLINGS},
        "algorithm": {"name": "grpo", "kl_weight": 0.01},
        "verification": {"num_workers": 1},
        "scale": CASES[name],
    }


def measure(name: str, folder: Path, arguments: argparse.Namespace) -> Path:
    """Train a case, and write the processor seconds of its processes after each step."""
    import tomli_w

    model, config = folder / "model", folder / f"{name}.toml"
    if not model.exists():
        make_model(model, 0)
        shape = model / "config.json"
        tree = json.loads(shape.read_text(encoding="utf-8"))
        tree["max_position_embeddings"] = CONTEXT
        shape.write_text(json.dumps(tree), encoding="utf-8")
    config.write_text(tomli_w.dumps(tree_of(model, folder, name, arguments.steps)))
    run = folder / "runs" / name
    used = folder / f"{name}.json"
    if used.exists():
        return run
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", PROGRAMS[arguments.clock], "train", str(config), "--json"]
    with (folder / f"{name}.log").open("wb") as log:
        started = subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=folder)
        seconds: list[dict[str, float]] = []
        while started.poll() is None:
            lines = run / "metrics.jsonl"
            done = lines.read_bytes().count(b"\n") if lines.is_file() else 0
            if done > len(seconds):
                seconds.append(processor_seconds(started.pid))
            time.sleep(0.02)
    if started.returncode:
        raise SystemExit((folder / f"{name}.log").read_text(encoding="utf-8")[-2000:])
    used.write_text(json.dumps({"seconds": seconds, "load": os.getloadavg()[0]}))
    return run


def processor_seconds(pid: int) -> dict[str, float]:
    """Return the processor seconds of the command, its rollout actors and its learner ranks."""
    found = {"command": _used(pid)}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            title = (path / "cmdline").read_bytes().decode(errors="replace")
            if title.startswith(("ray::RolloutActor", "ray::LearnerRank")) and _is_below(path, pid):
                found[f"{title[5:15]} {path.name}"] = _used(int(path.name))
        except OSError:  # the process has ended
            continue
    return found


def _used(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _is_below(path: Path, pid: int) -> bool:
    """Whether a process belongs to a command. Ray's workers have the session of their cluster."""
    place = int(path.name)
    while place > 1:
        if place == pid:
            return True
        place = int(Path(f"/proc/{place}/stat").read_text().rpartition(")")[2].split()[1])
    return False


def measured_seconds(name: str, run: Path, folder: Path, clock: str) -> float:
    """Return the mean seconds of a step, without the first step."""
    rows = list(load_run(run).metrics)
    if clock == "wall":
        return statistics.mean(row["time/step"] for row in rows[1:])
    kept = json.loads((folder / f"{name}.json").read_text())["seconds"]
    steps: list[float] = []
    for before, after, row in zip(kept, kept[1:], rows[1:], strict=False):
        spent = {one: after[one] - before.get(one, 0.0) for one in after}
        command = spent.pop("command")
        others = max(spent.values(), default=0.0)
        if "learner_ranks" in CASES[name]:
            # The other rank computes while the command computes its own share.
            own = row["time/score"] + row["time/update"]
            steps.append(command + max(0.0, others - own))
        elif "steps_ahead" in CASES[name]:
            steps.append(max(command, others))
        else:
            steps.append(command + others)
    return statistics.mean(steps)


def predicted_seconds(name: str, facts: PilotFacts, costs: ClusterCosts) -> float:
    """Return the predicted mean seconds of a step, without the first step."""
    case = CASES[name]
    work = ClusterWork(
        PROMPTS,
        SIBLINGS,
        facts.prompt_tokens,
        num_samplers=case.get("rollout_actors", 1),
        num_ranks=case.get("learner_ranks", 1),
        slots=PROMPTS * SIBLINGS,
        steps_ahead=case.get("steps_ahead", 0),
    )
    found = simulate(work, costs, facts.steps)
    return (found.steps[-1].end - found.steps[0].end) / (len(found.steps) - 1)


def main() -> None:
    """Measure the requested cases and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--work", type=Path, help="where runs are kept; default: nowhere")
    parser.add_argument("--clock", choices=list(PROGRAMS), default="cpu")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (arguments.work or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        pilot = measure("pilot", folder, arguments)
        costs = fit_costs(load_run(pilot), read_pilot(pilot), PROMPTS * SIBLINGS)
        results: list[Compared] = []
        for name in arguments.only:
            run = measure(name, folder, arguments)
            predicted = predicted_seconds(name, read_pilot(run), costs)
            measured = measured_seconds(name, run, folder, arguments.clock)
            load = json.loads((folder / f"{name}.json").read_text())["load"]
            results.append(Compared(name, predicted, measured, load))
            print(results[-1], file=sys.stderr)
    if arguments.json:
        print(json.dumps([asdict(one) | {"error": one.error} for one in results]))
        return
    print(hardware())
    print("fitted to pilot:", costs)
    heads = ["", "predicted, s a step", "measured", "error", "load"]
    rows = [
        [one.name, f"{one.predicted:.2f}", f"{one.measured:.2f}", f"{one.error:+.0%}", one.load]
        for one in results
    ]
    print(table([heads, *([str(cell) for cell in row] for row in rows)]))


if __name__ == "__main__":
    main()
