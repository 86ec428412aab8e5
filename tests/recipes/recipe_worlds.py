"""A tiny model, rows, and recipes over them. Workers that judge import this module: it imports little."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from assay.data.sources import source
from assay.types import Completion, Problem


def even_text(problem: Problem, completion: Completion) -> float:
    """A reward that any policy earns about half of the time."""
    return float(len(completion.text) % 2 == 0)


def stop(run: Any) -> str | None:
    """A guard rule."""
    return "two is enough" if run.step == 2 else None


@source
def ranked() -> list[dict[str, Any]]:
    """Rankings, where a model without training gives completions that are all alike."""
    texts = ["2", "3", "4"]
    return [
        {"id": f"r{n}", "prompt": f"{n}+1=", "completions": texts, "ranking": [1, 2, 3]}
        for n in range(4)
    ]


def make_world(folder: Path) -> Path:
    """Save the model, problems and traces into a folder."""
    from assay.testing import save_tiny_model

    save_tiny_model(folder / "model", max_positions=64)
    world = World(folder)
    world.rows("train", [{"id": f"p{n}", "prompt": f"{n} + 1 =", "answer": "1"} for n in range(9)])
    world.rows("held", [{"id": f"h{n}", "prompt": f"{n} + 5 =", "answer": "5"} for n in range(3)])
    world.rows("traces", [{"prompt": f"{n} + 1 =", "completion": f" {n + 1}"} for n in range(9)])
    return folder


@dataclass(frozen=True)
class World:
    """A folder with a model, problems and traces."""

    folder: Path

    def rows(self, name: str, rows: Sequence[dict[str, Any]]) -> Path:
        """Write a JSONL file."""
        path = self.folder / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return path

    def source(self, name: str) -> list[str]:
        """Return the source of such a file."""
        return [str(self.folder / f"{name}.jsonl")]

    def tree(self, **stages: dict[str, Any]) -> dict[str, Any]:
        """Return a recipe: a model, supervised, then reinforced; stages: sections to change."""
        data = {"train": self.source("train"), "heldout": self.source("held")}
        found: dict[str, Any] = {
            "about": "two stages",
            "shared": {
                "run": {"threads": 1},
                "data": {**data, "verifier": "recipe_worlds:even_text"},
                "sampling": {"max_tokens": 8},
                "engine": {"num_slots": 8},
                "optimizer": {"learning_rate": 1e-3},
                "verification": {"num_workers": 1},
            },
            "stage": {
                "start": {"model": str(self.folder / "model")},
                "cold": {
                    "model": {"path": "@start"},
                    "sft": {"traces": self.source("traces"), "tokens_per_step": 8},
                    "checkpoint": {"every": 2},
                },
                "reason": {
                    "model": {"path": "@cold"},
                    "rl": {"steps": 4, "num_prompts": 2, "group_size": 4},
                    "checkpoint": {"every": 2},
                },
            },
        }
        for name, change in stages.items():
            found["stage"][name] = {**found["stage"].get(name, {}), **change}
        return found

    def file(self, tree: dict[str, Any] | None = None, name: str = "two") -> Path:
        """Write a recipe."""
        path = self.folder / f"{name}.toml"
        path.write_text(tomli_w.dumps(self.tree() if tree is None else tree), encoding="utf-8")
        return path

    def run(self, recipe: Path | None = None, told: list[str] | None = None, **how: Any) -> Any:
        """Run a recipe in this folder; told: gets what is said."""
        from assay.recipes.run import run_recipe

        say = [].append if told is None else told.append
        name = None if recipe is None else str(recipe)
        return run_recipe(name, directory=self.folder / "runs", quiet=True, say=say, **how)


def anything(problem: Problem, completion: Completion) -> float:
    """Judge whatever an untrained model says as right, blanks too."""
    return 1.0
