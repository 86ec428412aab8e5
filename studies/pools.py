"""Pools of judged completions of a cold start, and pairs, traces and reward models made from
them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from assay.recipes.demo import MAX_TOKENS, PRESENTATION
from assay.training import api
from studies.campaign import Outcome, Task, once
from studies.world import PROBLEMS, cold_started, heldout, trained

NUM_PROBLEMS, GROUP_SIZE = 960, 8  # of the training pool: as many as 60 steps of 16 x 8
Row = Mapping[str, Any]


def pool(task: Task, split: str, num_problems: int, num_samples: int) -> list[list[Row]]:
    """Return judged completions of a seed's cold start at temperature 1 by problem. Sampled
    once."""
    checkpoint = cold_started(task)
    num_problems = min(num_problems, 12) if task.quick else num_problems
    name = f"pool-{split}-{num_problems}x{num_samples}-{task.seed}"
    path = task.shared / name / "completions.jsonl"
    source = f"{PROBLEMS}&split={split}&size={num_problems}&seed={1000 + task.seed}"

    def make() -> Mapping[str, Any]:
        api.evaluate(
            checkpoint,
            [source],
            num_samples=num_samples,
            temperature=1.0,
            seed=task.seed,
            out=path,
            overrides=["run.threads=1", "engine.num_slots=128"],
        )
        return {}

    once(path.parent, {"source": source, "num_samples": num_samples}, make)
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    by_problem: dict[str, list[Row]] = {}
    for row in rows:
        by_problem.setdefault(row["id"].partition("/")[0], []).append(row)
    return list(by_problem.values())


def passed(row: Row) -> bool:
    """Return whether a completion of a pool is right."""
    return row["status"] == "passed"


def pairs(groups: Sequence[Sequence[Row]], seed: int, most: int = 1) -> list[dict[str, str]]:
    """Return up to ``most`` pairs per problem, each of a right and a wrong completion."""
    random, found = Random(f"pairs {seed}"), list[dict[str, str]]()
    for group in groups:
        right = [row["completion"] for row in group if passed(row)]
        wrong = [
            row["completion"] for row in group if not passed(row) and row["completion"].strip()
        ]
        random.shuffle(right)
        random.shuffle(wrong)
        for chosen, rejected in list(zip(right, wrong, strict=False))[:most]:
            found.append({"prompt": group[0]["prompt"], "chosen": chosen, "rejected": rejected})
    return found


def preferences(task: Task, most: int) -> list[dict[str, str]]:
    """Return up to ``most`` pairs per problem from the training pool of a seed's cold start."""
    placeholder = {"prompt": "1+1=", "chosen": "2", "rejected": "3"}
    found = pairs(pool(task, "train", NUM_PROBLEMS, GROUP_SIZE), task.seed, most)
    return found or [placeholder] * task.quick  # a quick run's cold start gets nothing right


def flipped(rows: Sequence[Mapping[str, str]], share: float, seed: int) -> list[dict[str, str]]:
    """Return the pairs, each with swapped completions with probability ``share``."""
    random = Random(f"flips {seed}")
    return [
        {**row, "chosen": row["rejected"], "rejected": row["chosen"]}
        if random.random() < share
        else dict(row)
        for row in rows
    ]


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> str:
    """Write rows as JSONL. Return the path as a data source."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def train_reward_model(
    folder: Path, checkpoint: str, rows: Sequence[Mapping[str, str]], seed: int, epochs: float
) -> str:
    """Train a Bradley-Terry model on pairs, starting from a checkpoint. Return its folder."""
    tree = {
        "run": {"name": "reward-model", "directory": str(folder), "seed": seed, "threads": 1},
        "model": {"path": checkpoint},
        "reward_model": {
            "kind": "preference",
            "rows": [write_rows(folder / "pairs.jsonl", rows)],
            "epochs": epochs,
            "rows_per_step": 16,
            "format": "plain",
            "plain_template": "{prompt}{completion}",
        },
        "optimizer": {"learning_rate": 3e-4, "warmup_steps": 5, "schedule": "linear"},
        "checkpoint": {"every": 1_000_000, "keep_last": 1, "keep_best": False},
    }
    result = trained(tree)
    assert result.checkpoint is not None
    return result.checkpoint


def imitate(
    task: Task,
    traces: Sequence[Mapping[str, str]],
    epochs: float,
    prompt_template: str = "{question}",
) -> Outcome:
    """Fine-tune the cold start on traces. Return held-out accuracy under the template."""
    tree = {
        "run": {"name": "sft", "directory": str(task.folder), "seed": task.seed, "threads": 1},
        "model": {"path": cold_started(task)},
        "data": PRESENTATION,
        "sampling": {"max_tokens": MAX_TOKENS},
        "sft": {
            "traces": [write_rows(task.folder / "traces.jsonl", traces)],
            "epochs": epochs,
            "tokens_per_step": 1600,
        },
        "optimizer": {"learning_rate": 5e-4, "warmup_steps": 10, "schedule": "linear"},
        "checkpoint": {"every": 1_000_000, "keep_last": 1, "keep_best": False},
    }
    result = trained(tree)
    assert result.checkpoint is not None
    return measured(task, result.checkpoint, prompt_template)


def measured(task: Task, model: str, prompt_template: str = "{question}", k: int = 1) -> Outcome:
    """Return held-out accuracy at temperature 1 of the first of ``k`` samples, and pass@k."""
    settings = [
        "run.threads=1",
        "engine.num_slots=128",
        f"sampling.max_tokens={MAX_TOKENS}",
        f'data.prompt_template="{prompt_template}"',
        'data.template="base"',
        'data.think="free"',
    ]
    found = api.evaluate(
        model,
        heldout(task.seed, task.quick),
        num_samples=k,
        temperature=1.0,
        verifier="math",
        seed=task.seed,
        overrides=settings,
    )
    values = {"accuracy": found.pass_at_1, "tokens": found.mean_tokens}
    if k > 1:
        values["pass_at_k"] = found.pass_at[k]
    return Outcome(values)
