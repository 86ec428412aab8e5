"""Recipes: whole trainings in one call. The demo is the R1 recipe in miniature."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from assay import config as configuration
from assay.train import api

PROBLEMS = "assay.data.tasks:chain_sums?num_terms=4"
TRACES = "assay.data.tasks:imperfect_traces?num_terms=4&corrupted=0.15&guessed=0.5"
NUM_HELDOUT = 200


@dataclass(frozen=True, slots=True)
class DemoResult:
    """Held-out accuracy (0..1) before and after the RL stage, greedy and at temperature 1."""

    before: float
    after: float
    before_sampled: float
    after_sampled: float
    seconds: float
    run: str
    report: str
    examples: Sequence[Mapping[str, str]]

    @property
    def lift(self) -> float:
        """Greedy accuracy gained by the RL stage alone."""
        return self.after - self.before

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        lifts = {"lift": self.lift, "lift_sampled": self.after_sampled - self.before_sampled}
        return asdict(self) | lifts

    def __str__(self) -> str:
        lines = ["", "Three held-out problems, after training:"]
        for example in self.examples:
            lines.append(f"  {example['prompt']}{example['completion']}   [{example['verdict']}]")
        lines += [
            "",
            f"Accuracy on {NUM_HELDOUT} held-out problems that neither stage saw:",
            "                   after cold start    after RL      lift",
            _row("greedy", self.before, self.after),
            _row("temperature 1", self.before_sampled, self.after_sampled),
            "",
            f"{self.seconds:.0f} seconds in all. The evidence is in {self.run}",
            f"Open the report: {self.report}",
        ]
        return "\n".join(lines)


def _row(name: str, before: float, after: float) -> str:
    return f"  {name:<17}{before:>16.1%}{after:>12.1%}{after - before:>+10.1%}"


def demo(directory: Path, seed: int = 0, quiet: bool = False) -> DemoResult:
    """Make a 0.6M-parameter model, cold-start it on imperfect traces, reinforce it, measure it.

    Nothing is fetched: the model, its traces and its problems are made here. Held-out problems are
    disjoint from those of both stages.
    """
    started = time.perf_counter()
    say = (lambda text: None) if quiet else print
    say("1/4  A fresh 0.6M-parameter Transformer that knows nothing")
    model = make_model(directory / "demo-model", seed)
    say("2/4  Cold start: supervised on imperfect reasoning traces")
    cold = api.train(cold_start(directory, model, seed), quiet=quiet)
    say("3/4  GRPO: sample, verify, reinforce")
    result = api.train(reinforce(directory, Path(cold.checkpoint), seed), quiet=quiet)
    say("4/4  Examples")
    shown = api.sample(result.run, problems=[f"{PROBLEMS}&split=heldout&size=3"], num_samples=1,
                       max_problems=3, temperature=0.0)
    return DemoResult(
        before=result.before.greedy,
        after=result.after.greedy,
        before_sampled=result.before.sampled,
        after_sampled=result.after.sampled,
        seconds=time.perf_counter() - started,
        run=result.run,
        report=result.report,
        examples=shown.examples,
    )
