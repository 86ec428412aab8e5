"""Recipes: whole trainings in one call. The demo is the R1 recipe in miniature."""

from __future__ import annotations

import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from assay import config as configuration
from assay.errors import RunError
from assay.model.load import silence_transformers
from assay.run.evaluations import Gain
from assay.run.files import check_folder
from assay.training import api
from assay.training.stage import Stage

PROBLEMS = "assay.data.tasks:chain_sums?num_terms=4"
NUM_HELDOUT = 200
MAX_TOKENS = 48
PRESENTATION = {"template": "base", "prompt_template": "{question}", "think": "free"}


@dataclass(frozen=True, slots=True)
class DemoResult:
    """Held-out accuracy (0..1) before and after the RL stage, greedy and at temperature 1.

    gained, gained_sampled: the difference, problem by problem, with its standard error.
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
        """Greedy accuracy gained by the RL stage alone."""
        return self.after - self.before

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
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
        return "\n".join(lines)


def _row(name: str, before: float, after: float, gained: Gain | None) -> str:
    lift = f"{after - before:+.1%}" if gained is None else str(gained)
    return f"  {name:<17}{before:>16.1%}{after:>12.1%}    {lift}"


def demo(directory: Path, seed: int = 0, quiet: bool = False) -> DemoResult:
    """Make a 0.7M-parameter model, cold-start it on imperfect traces, reinforce it, measure it.

    Nothing is fetched: the model, its traces and its problems are made here. Held-out problems are
    disjoint from those of both stages.
    """
    check_folder(directory, "--directory")
    started = time.perf_counter()
    say = (lambda text: None) if quiet else print
    say("1/3  A fresh 0.7M-parameter Transformer that knows nothing")
    model = make_model(directory / "demo-model", seed)
    results = api.run_stages(stages(directory, model, seed, quiet), say=say)
    result = results[-1]
    if len(results) < 2:
        raise RunError(
            f"{result.run}: {result.ended} before the demo's second stage; start it again"
        )
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


def stages(directory: Path, model: Path, seed: int, quiet: bool = False) -> list[Stage]:
    """Return the demo's two stages; the second starts from what the first made."""
    cold, reinforced = cold_start(directory, model, seed), reinforce(directory, str(model), seed)
    told = "2/3  Cold start: supervised on reasoning traces, most of them guesses, many steps wrong"
    then = "3/3  GRPO: sample groups, verify, reinforce"
    return [
        Stage(configuration.build(cold), title=told, quiet=quiet),
        Stage(configuration.build(reinforced), title=then, quiet=quiet, follows=True),
    ]


def make_model(folder: Path, seed: int, max_positions: int = 128) -> Path:
    """Save a freshly initialized 0.7M-parameter Llama and a byte tokenizer; returns the folder."""
    from assay.testing import byte_tokenizer

    config = LlamaConfig(
        vocab_size=259,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        max_position_embeddings=max_positions,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=257,
    )
    torch.manual_seed(seed)
    silence_transformers()
    LlamaForCausalLM(config).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def cold_start(directory: Path, model: Path, seed: int) -> dict[str, Any]:
    """Return the configuration of the demo's supervised stage."""
    return _configured("cold_start", "sft", ("traces",), directory, str(model), seed)


def reinforce(directory: Path, checkpoint: str, seed: int) -> dict[str, Any]:
    """Return the configuration of the demo's reinforcement stage."""
    return _configured("reinforce", "data", ("train", "heldout"), directory, checkpoint, seed)


def _configured(
    stage: str, section: str, sources: Sequence[str], directory: Path, model: str, seed: int
) -> dict[str, Any]:
    text = (resources.files("assay.training") / "demo.toml").read_text(encoding="utf-8")
    tree = tomllib.loads(text)[stage]
    tree["run"] |= {"directory": str(directory), "seed": seed}
    tree["model"] = {"path": model}
    for key in sources:
        tree[section][key] = [f"{source}&seed={seed}" for source in tree[section][key]]
    return tree
