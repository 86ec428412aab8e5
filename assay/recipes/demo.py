"""The demo: run the built-in recipe `demo` and summarize its results."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from assay.errors import RunError
from assay.host.terminal import lined
from assay.recipes.file import find_recipe, read_recipe
from assay.recipes.run import run_recipe
from assay.run.paired import Gain
from assay.session.results import read_result
from assay.training import api

PROBLEMS = "assay.data.tasks:chain_sums?num_terms=4"
NUM_HELDOUT = 200
MAX_TOKENS = 48
PRESENTATION = {"template": "base", "prompt_template": "{question}", "think": "free"}


@dataclass(frozen=True, slots=True)
class DemoResult:
    """Held-out accuracy in [0, 1] before and after the RL stage, greedy and at temperature 1.

    gained, gained_sampled: gain in accuracy from RL, with greedy sampling and at temperature 1
    respectively; paired by problem, with the gain's standard error.
    """

    before: float
    after: float
    before_sampled: float
    after_sampled: float
    gained: Gain | None
    gained_sampled: Gain | None
    seconds: float
    run: str
    report: str
    examples: Sequence[Mapping[str, str]]

    @property
    def lift(self) -> float:
        """Greedy held-out accuracy gained by the RL stage, without the gain of the cold start."""
        return self.after - self.before

    def as_dict(self) -> dict[str, Any]:
        """Return the result as a dict of JSON values."""
        lifts = {"lift": self.lift, "lift_sampled": self.after_sampled - self.before_sampled}
        return asdict(self) | lifts

    def __str__(self) -> str:
        lines = ["", "Three held-out problems, after training:"]
        for example in self.examples:
            lines.append(f"  {example['prompt']}{example['completion']}   [{example['status']}]")
        lines += [
            "",
            f"Accuracy on {NUM_HELDOUT} held-out problems that neither stage saw:",
            "                   after cold start    after RL      lift, problem by problem",
            _row("greedy", self.before, self.after, self.gained),
            _row("temperature 1", self.before_sampled, self.after_sampled, self.gained_sampled),
            "",
            f"{self.seconds:.0f} seconds in all. The evidence is in {self.run}",
            f"Open the report: {self.report}",
        ]
        return lined(lines)


def _row(name: str, before: float, after: float, gained: Gain | None) -> str:
    lift = f"{after - before:+.1%}" if gained is None else str(gained)
    return f"  {name:<17}{before:>16.1%}{after:>12.1%}    {lift}"


def demo(
    directory: Path, seed: int = 0, quiet: bool = False, overrides: Sequence[str] = ()
) -> DemoResult:
    """Train a new 0.7M-parameter model by SFT on imperfect traces and then by RL, and evaluate it.

    The demo generates its model, traces and problems, so it needs no downloads. Held-out problems
    are disjoint from the training problems of both stages. overrides: changes of the recipe, as
    ``STAGE.KEY=VALUE``.
    """
    started = time.perf_counter()
    say = (lambda text: None) if quiet else print
    changes = [*seeded(seed), *overrides]
    ran = run_recipe("demo", directory=directory, overrides=changes, quiet=quiet, say=say)
    if ran.ended != "finished":
        raise RunError(f"demo: {ran.ended}; continue with: assay recipe run --resume {ran.folder}")
    result = read_result(Path(ran.folder) / "reinforce")
    heldout = [f"{PROBLEMS}&split=heldout&size=3"]
    shown = api.sample(result.run, problems=heldout, num_samples=1, max_problems=3, temperature=0.0)
    return DemoResult(
        before=result.accuracy("before", 0.0),
        after=result.accuracy("after", 0.0),
        before_sampled=result.accuracy("before", 1.0),
        after_sampled=result.accuracy("after", 1.0),
        gained=result.gain(0.0),
        gained_sampled=result.gain(1.0),
        seconds=time.perf_counter() - started,
        run=result.run,
        report=str(result.report),
        examples=shown.samples,
    )


def cold_start(directory: Path, model: Path, seed: int) -> dict[str, Any]:
    """Return the configuration of the demo's SFT stage as a separate run."""
    run = {"directory": str(directory), "name": "demo-cold-start"}
    return _configured("cold_start", run, str(model), seed)


def reinforce(directory: Path, checkpoint: str, seed: int) -> dict[str, Any]:
    """Return the configuration of the demo's RL stage as a separate run."""
    return _configured("reinforce", {"directory": str(directory), "name": "demo"}, checkpoint, seed)


def _configured(stage: str, run: dict[str, Any], model: str, seed: int) -> dict[str, Any]:
    tree = dict(read_recipe(find_recipe("demo"), None, seeded(seed)).stages[stage].tree)
    return {**tree, "run": {**tree["run"], **run}, "model": {"path": model}}


def seeded(seed: int) -> list[str]:
    """Return overrides that set the seed of all random numbers in the recipe `demo`."""
    # Generated rows have a seed of their own, so weights, sampling and rows are all seeded.
    stages = read_recipe(find_recipe("demo")).stages
    rows = [("cold_start", "sft", "traces"), ("reinforce", "data", "train")]
    changes = [f"fresh.seed={seed}", f"shared.run.seed={seed}"]
    for stage, section, key in [*rows, ("reinforce", "data", "heldout")]:
        sources = [f"{source}&seed={seed}" for source in stages[stage].tree[section][key]]
        changes.append(f"{stage}.{section}.{key}={json.dumps(sources)}")
    return changes
