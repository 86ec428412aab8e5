"""Common parts of the studies: the demo's 0.7M-parameter model, its sums, and a shorter cold start.

The cold start is trained once per seed and kept. Every arm of every study starts from it.
"""

from __future__ import annotations

import statistics
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from assay.config.toml_text import merged
from assay.host.files import read_rows
from assay.init.tiny_model import make_model
from assay.recipes.demo import MAX_TOKENS, PRESENTATION, cold_start
from assay.run.rollout_log import RolloutLog
from assay.session.results import TrainResult
from assay.training import api
from studies.campaign import Outcome, Task, once

TERMS = "num_terms=4"
PROBLEMS = f"assay.data.tasks:chain_sums?{TERMS}"
NUM_TRACES = 30_000
TRACES = f"assay.data.tasks:imperfect_traces?{TERMS}&corrupted=0.1&guessed=0.4&bare=1"
NUM_HELDOUT = 500
WATCHED = ("reward_against_heldout", "heldout_collapse", "reward_against_correctness", "length")
LAST = 20  # steps at the end that a run's final figures are means of
SETUP = (
    "Each seed has a new 0.7M-parameter byte-level Llama, the model of `assay demo`. The model"
    " solves sums of four numbers, such as `3+5-2+7=`, step by step. A supervised cold start"
    " trains the model on 30 000 written solutions: 40 % of the solutions are bare guesses, and in"
    " the other solutions 10 % of the steps are wrong. After the cold start, every arm trains on"
    " the same problems in the same order. A training step has 16 problems x 8 completions of at"
    " most 48 tokens, sampled at temperature 1, and one optimizer step of AdamW at a learning rate"
    " of 1e-4, unless the settings below state other values. Held-out accuracy is measured on 500"
    " problems that neither the cold start nor RL saw, with one completion each at temperature 1."
)


def heldout(seed: int, quick: bool) -> list[str]:
    """Return the source of held-out problems."""
    return [f"{PROBLEMS}&split=heldout&size={8 if quick else NUM_HELDOUT}&seed={seed}"]


def cold_started(
    task: Task, traces: Sequence[str] = (), changes: Mapping[str, Any] = MappingProxyType({})
) -> str:
    """Return the checkpoint of a seed's cold start. It is trained if it does not exist.

    traces: sources of traces; None: those that the studies share. changes: configuration changes
    for a cold start with these traces.
    """
    own = f"{zlib.crc32(' '.join(traces).encode()):08x}-" if traces else ""
    folder = task.shared / f"cold-start-{own}{task.seed}"
    tree = cold_start(folder, folder / "model", task.seed)
    size = 60 if task.quick else NUM_TRACES
    tree["sft"]["traces"] = [*traces] or [f"{TRACES}&size={size}&seed={task.seed}"]
    tree["sft"]["tokens_per_step"] = 1000
    tree["run"]["threads"] = 1
    tree["data"] = {**PRESENTATION, "heldout": heldout(task.seed, task.quick)}
    tree["evaluation"] = {"temperatures": [0.0, 1.0]}
    tree = merged(tree, changes)

    def make() -> Mapping[str, Any]:
        make_model(folder / "model", task.seed)
        result = trained(tree)
        return {"checkpoint": result.checkpoint, "accuracy": result.accuracy("after", 1.0)}

    return once(folder, {"sft": tree["sft"], "optimizer": tree["optimizer"]}, make)["checkpoint"]


def trained(tree: Mapping[str, Any]) -> TrainResult:
    """Train to the end. Raises RuntimeError if the run stops early."""
    result = api.train(tree, quiet=True)
    if result.ended != "finished":
        raise RuntimeError(f"{result.run}: {result.ended} after {result.steps} steps")
    return result


def rl_config(task: Task, checkpoint: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration of an RL run of ``task.settings["steps"]`` steps of 16 x 8
    completions."""
    base: dict[str, Any] = {
        "run": {"name": "rl", "directory": str(task.folder), "seed": task.seed, "threads": 1},
        "model": {"path": checkpoint},
        "data": {
            **PRESENTATION,
            "train": [f"{PROBLEMS}&split=train&size=20000&seed={task.seed}"],
            "heldout": heldout(task.seed, task.quick),
            "verifier": "math*1.0 + think_format*0.1",
            "near_duplicates": "ignore",
        },
        "sampling": {"max_tokens": MAX_TOKENS},
        "engine": {"num_slots": 128},
        "rl": {
            "steps": 2 if task.quick else task.settings["steps"],
            "num_prompts": 4 if task.quick else 16,
            "group_size": 8,
            "max_tokens_per_micro_batch": 8192,
        },
        "algorithm": {"name": "grpo", "kl_weight": 0.0},
        "optimizer": {"learning_rate": 1e-4, "warmup_steps": 5},
        "evaluation": {"temperatures": [1.0]},
        "checkpoint": {"every": 1_000_000, "keep_last": 1, "keep_best": False},
        # a study looks at what goes wrong, too
        "guard": {"options": {name: {"action": "note"} for name in WATCHED}},
    }
    return merged(base, changes)


def reinforce(task: Task) -> Outcome:
    """Train by RL from the cold start, with ``task.settings["config"]``. Return the run's
    figures."""
    config = rl_config(task, cold_started(task), task.settings["config"])
    return read_run(Path(trained(config).run))


def read_run(folder: Path) -> Outcome:
    """Return the figures of an RL run: curves by step, and values at the end.

    accuracy, accuracy_before: held-out accuracy at temperature 1. Other values are means over the
    training completions of the last 20 steps; seconds are medians over all steps except the first.
    """
    rows = list(read_rows(folder / "metrics.jsonl"))
    names = {
        "passed": "verdict/passed",
        "entropy": "entropy/mean",
        "length": "length/mean",
        "kl": "kl/mean",
        "all_fail": "group/all_fail",
        "mixed": "group/mixed",
        "clip_fraction": "loss/clip_fraction",
        "grad_norm": "optimizer/grad_norm",
    }
    curves = {
        name: [(row["step"], row[key]) for row in rows if row.get(key) is not None]
        for name, key in names.items()
    }
    curves |= _lengths(folder)
    evaluations = list(read_rows(folder / "evaluations.jsonl"))
    values = {f"{name}_end": statistics.mean(last) for name, last in _lasts(curves)}
    early = [y for x, y in curves["passed"] if 11 <= x <= 30]
    if early:
        values["passed_early"] = statistics.mean(early)
    values["accuracy_before"] = evaluations[0]["eval/pass_at_1"]
    values["accuracy"] = evaluations[-1]["eval/pass_at_1"]
    values["tokens"] = evaluations[-1]["eval/mean_tokens"]
    for name, key in (("step", "time/step"), ("update", "time/update")):
        seconds = [row[key] for row in rows[1:] if key in row]
        if seconds:
            values[f"{name}_seconds"] = statistics.median(seconds)
    values["peak_mib"] = max(row.get("memory/peak_mib", 0.0) for row in rows)
    return Outcome(values, {name: points for name, points in curves.items() if points})


def _lasts(curves: Mapping[str, Sequence[tuple[float, float]]]) -> list[tuple[str, list[float]]]:
    return [(name, [y for _, y in points[-LAST:]]) for name, points in curves.items() if points]


def _lengths(folder: Path) -> dict[str, list[tuple[float, float]]]:
    """Return the mean length in tokens of right and of wrong completions, by step."""
    log = RolloutLog(folder / "rollouts")
    found: dict[str, list[tuple[float, float]]] = {"right_length": [], "wrong_length": []}
    for step in log.steps():
        recorded = log.read(step)
        assert recorded is not None, f"{folder}: step {step} cannot be read"
        lengths: dict[bool, list[int]] = {True: [], False: []}
        for group, verdicts in zip(recorded.groups, recorded.verdicts, strict=True):
            for completion, verdict in zip(group.completions, verdicts, strict=True):
                if verdict.judged:
                    lengths[verdict.correct].append(len(completion.tokens))
        for name, right in (("right_length", True), ("wrong_length", False)):
            if lengths[right]:
                found[name].append((step, statistics.mean(lengths[right])))
    log.close()
    return found
