"""A tiny model, its problems and rewards that it can earn: what tests of whole runs share.

Every worker that judges by one of these rewards imports this module, so that it imports little.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from assay.types import Completion, Group, Problem, Prompt, StepScore, Verdict

REWARD = "train_worlds:few_marks"
NEVER = "train_worlds:never_judged"


def few_marks(problem: Problem, completion: Completion) -> float:
    """A reward that an untrained model earns about half of the time."""
    return float(sum(completion.tokens.tolist()) % 2)


def other_marks(problem: Problem, completion: Completion) -> float:
    """The opposite of `few_marks`."""
    return 1.0 - few_marks(problem, completion)


def even_text(problem: Problem, completion: Completion) -> float:
    """A reward that any policy earns about half of the time, by text alone."""
    return float(len(completion.text) % 2 == 0)


def always_right(problem: Problem, completion: Completion) -> float:
    """A reward that tells nothing apart."""
    return 1.0


def wrong_in_many_ways(problem: Problem, completion: Completion) -> dict[str, float]:
    """Nothing passes, and yet a part of the reward tells completions apart."""
    return {"score": 0.0, "format": float(sum(completion.tokens.tolist()) % 2)}


def in_steps(problem: Problem, completion: Completion) -> Verdict:
    """A judge of steps: every token is one."""
    steps = tuple(StepScore(float(token % 2), n) for n, token in enumerate(completion.tokens))
    return Verdict.of_score(steps[-1].score, "in_steps@1", step_scores=steps)


def never_judged(problem: Problem, completion: Completion) -> None:
    """A checker that can never say anything."""


def judged_at_times(problem: Problem, completion: Completion) -> float | None:
    """A checker that says something about three texts in four, by text alone."""
    return None if sum(map(ord, completion.text)) % 4 == 0 else 1.0


def hangs(problem: Problem, completion: Completion) -> float:
    """A checker that never comes back."""
    time.sleep(60)
    return 1.0


def says_three(problem: Problem, completion: Completion) -> dict[str, Any]:
    """A function of one's own that says what it read."""
    return {"score": float(completion.text == "3"), "extracted": completion.text}


def stop_at_two(run: Any) -> str | None:
    """A guard rule."""
    return "two is enough" if run.step == 2 else None


def broken_rule(run: Any) -> str | None:
    """A guard rule with a mistake in it."""
    return f"{run.no_such_thing}"


@dataclass(frozen=True)
class World:
    """A folder with a model, problems and traces."""

    folder: Path

    def tree(self, **sections: Any) -> dict[str, Any]:
        """Return the configuration of a small RL run, changed by whole keys of its sections."""
        tree: dict[str, Any] = {
            "run": {"directory": str(self.folder / "runs"), "name": "run", "threads": 1},
            "model": {"path": str(self.folder / "model")},
            "data": {
                "train": [str(self.folder / "train.jsonl")],
                "heldout": [str(self.folder / "heldout.jsonl")],
                "verifier": REWARD,
            },
            "sampling": {"max_tokens": 8},
            "engine": {"num_slots": 8},
            "rl": {"steps": 3, "num_prompts": 2, "group_size": 4},
            "optimizer": {"learning_rate": 1e-3},
            "evaluation": {"every": 2},
            "checkpoint": {"every": 2},
            "verification": {"num_workers": 1},
        }
        for section, values in sections.items():
            tree[section] = {**tree.get(section, {}), **values}
        return tree

    def sft_tree(self, **sections: Any) -> dict[str, Any]:
        """Return the configuration of a small supervised run."""
        tree = self.tree(**sections)
        del tree["rl"]
        traces = {"traces": [str(self.folder / "traces.jsonl")], "tokens_per_step": 8}
        return {**tree, "sft": {**traces, **sections.get("sft", {})}}

    def config_file(self, tree: dict[str, Any], name: str = "run.toml") -> Path:
        """Write a configuration and return where it is."""
        path = self.folder / name
        path.write_text(tomli_w.dumps(tree), encoding="utf-8")
        return path

    def write_rows(self, name: str, rows: Sequence[dict[str, Any]]) -> Path:
        """Write a JSONL file and return where it is."""
        path = self.folder / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return path


def make_world(folder: Path) -> World:
    """Save the model and write problems and traces into a folder."""
    from assay.testing import save_tiny_model  # not for workers, which come here for the rewards

    world = World(folder)
    save_tiny_model(folder / "model", max_positions=64)
    sums = [{"id": f"p{n}", "prompt": f"{n} + 1 =", "answer": f"{n + 1}"} for n in range(10)]
    world.write_rows("train.jsonl", sums)
    held = [{"id": f"h{n}", "prompt": f"{n} + 50 =", "answer": f"{n + 50}"} for n in range(3)]
    world.write_rows("heldout.jsonl", held)
    traces = [{"prompt": f"{n} + 1 =", "completion": f" {n + 1}"} for n in range(10)]
    world.write_rows("traces.jsonl", traces)
    return world


def rows_of(run: Path | str, name: str) -> list[dict[str, Any]]:
    """Read one of a run's journals."""
    text = (Path(run) / f"{name}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def events_of(run: Path | str) -> list[str]:
    """Return the kinds of a run's events."""
    return [row["kind"] for row in rows_of(run, "events")]


class CountingJudge:
    """Judges by a function of text, and counts what it was asked."""

    def __init__(self, judge: Any) -> None:
        self.judge_one = judge
        self.seen: list[str] = []

    def judge(self, groups: Sequence[Group]) -> list[tuple[Verdict, ...]]:
        self.seen += [one.id for group in groups for one in group.completions]
        return [
            tuple(self.judge_one(group.problem, one) for one in group.completions)
            for group in groups
        ]

    @contextmanager
    def judging(self) -> Iterator[Any]:
        yield JudgingAtTheEnd(self.judge)


class JudgingAtTheEnd:
    """Judges groups when their verdicts are asked for."""

    def __init__(self, judge: Any) -> None:
        self.verdicts = judge

    def add(self, group: Group) -> None:
        """Nothing is begun."""


def verdict(outcome: bool | None, extracted: str | None = None) -> Verdict:
    """Return a verdict: right, wrong, or not judged."""
    if outcome is None:
        return Verdict.not_judged("timeout", "fake@1")
    return Verdict.of_score(float(outcome), "fake@1", extracted=extracted)


def group_of(verdicts: Sequence[Verdict], id: str = "p", tags: tuple[str, ...] = ()) -> Group:
    """Return a group with a completion for each verdict."""
    completions = tuple(
        Completion.from_text(f"{n}", id=f"{id}#0/{n}") for n in range(len(verdicts))
    )
    return Group(
        Problem(id, "?", {"answer": "1"}, tags=tags),
        Prompt("?", np.ones(1, np.int32)),
        completions,
    )
