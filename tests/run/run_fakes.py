"""Rollouts, updates and parts for tests of the run directory; deterministic, without torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from assay.config import TrainConfig, parse
from assay.run.directory import Run
from assay.types import Completion, Group, Problem, Prompt, StepScore, ThinkFormat, Verdict

VERIFIERS = {"math": {"version": 1, "hash": "a" * 64}}


def make_config(directory: Path, **sections: Any) -> TrainConfig:
    tree: dict[str, Any] = {
        "run": {"directory": str(directory), "name": "test"},
        "model": {"path": "model"},
        "data": {"train": ["problems.jsonl"]},
        "rl": {"steps": 12},
        "checkpoint": {"every": 4},
    }
    for section, values in sections.items():
        tree[section] = {**tree.get(section, {}), **values}
    return parse(tree)


def make_problem(number: int, draw: int = 0) -> Problem:
    prompt = ({"role": "user", "content": f"{number} + 1 = ?"},)
    spec = {"answer": str(number + 1)}
    return Problem(f"p{number}", prompt, spec, None, ("sums", f"level {number % 2}"), "x:1", draw)


def make_completion(rng: np.random.Generator, id: str, version: int) -> Completion:
    length = int(rng.integers(1, 9))
    return Completion(
        id=id,
        text=f"<think>größe {length}</think> \\boxed{{{length}}} 🙂",
        tokens=rng.integers(0, 300, length).astype(np.int32),
        behavior_logprobs=-rng.random(length, dtype=np.float32),
        model_logprobs=-rng.random(length, dtype=np.float32),
        sampled=rng.random(length) < 0.9,
        finish_reason=("eos", "stop_string", "length")[int(rng.integers(3))],
        policy_version=version,
        num_think_tokens=length // 2,
        think=ThinkFormat("free"),
    )


def make_verdict(rng: np.random.Generator) -> Verdict:
    kind = rng.integers(4)
    if kind == 0:
        return Verdict.not_judged("timeout", "math@1", detail="5 s", seconds=float(rng.random()))
    score = float(kind == 1)
    return Verdict.of_score(
        score,
        "math@1",
        reward=score + float(rng.random()),
        components={"math": score, "think_format": float(rng.random())},
        step_scores=(StepScore(float(rng.random()), 1),) if kind == 2 else (),
        extracted="7" if kind == 1 else None,
        seconds=float(rng.random()),
    )


def make_rollouts(
    seed: int, num_groups: int = 3, group_size: int = 4
) -> tuple[list[Group], list[tuple[Verdict, ...]]]:
    """Groups and verdicts that depend on the seed alone."""
    rng = np.random.default_rng(seed)
    groups: list[Group] = []
    verdicts: list[tuple[Verdict, ...]] = []
    for number in range(num_groups):
        problem = make_problem(number, draw=seed)
        prompt = Prompt(f"Q: {number}", np.arange(number + 2, dtype=np.int32), ThinkFormat("free"))
        ids = [f"{problem.group_id}/{n}" for n in range(group_size)]
        groups.append(Group(problem, prompt, tuple(make_completion(rng, id, seed) for id in ids)))
        verdicts.append(tuple(make_verdict(rng) for _ in ids))
    return groups, verdicts


@dataclass
class FakeBatch:
    length_R: Any
    row_T: Any
    old_logprobs_T: Any
    ref_logprobs_T: Any = None
    values_T: Any = None


@dataclass
class FakeUpdate:
    metrics: Mapping[str, float] = field(default_factory=lambda: {"loss/total": 0.5})
    policy_version: int = 1
    batch: FakeBatch | None = None
    advantages_T: Any = None


def make_update(groups: list[Group], seed: int = 0, **metrics: float) -> FakeUpdate:
    """An update with the shapes of these groups, whose numbers depend on the seed."""
    rng = np.random.default_rng(seed)
    lengths = [len(completion.tokens) for group in groups for completion in group.completions]
    row_T = np.repeat(np.arange(len(lengths)), lengths)
    old, ref, advantages = (rng.random(len(row_T), dtype=np.float32) for _ in range(3))
    batch = FakeBatch(np.array(lengths), row_T, old, ref)
    return FakeUpdate({"loss/total": 0.5, **metrics}, seed + 1, batch, advantages)


class FakeLearner:
    """A part whose weights change with everything that it learned from, in order."""

    def __init__(self) -> None:
        self.weights = np.linspace(0.0, 1.0, 64)
        self.policy_version = 0

    def learn(self, groups: list[Group], verdicts: list[tuple[Verdict, ...]]) -> FakeUpdate:
        rewards = [one.reward or -1.0 for some in verdicts for one in some]
        tokens = np.concatenate([c.tokens for group in groups for c in group.completions])
        self.weights = np.cos(self.weights * (1.0 + np.mean(rewards)) + tokens.mean())
        self.policy_version += 1
        metrics = {"loss/total": float(self.weights.sum()), "optimizer/grad_norm": 1.0}
        update = make_update(groups, self.policy_version)
        return FakeUpdate(metrics, self.policy_version, update.batch, update.advantages_T)

    def save_state(self, folder: Path) -> None:
        np.save(folder / "weights.npy", self.weights)
        (folder / "learner.json").write_text(json.dumps({"policy_version": self.policy_version}))

    def load_state(self, folder: Path) -> None:
        self.weights = np.load(folder / "weights.npy")
        self.policy_version = json.loads((folder / "learner.json").read_text())["policy_version"]


def take_steps(run: Run, learner: FakeLearner, num_steps: int) -> None:
    """Record and learn from so many made-up steps."""
    for _ in range(num_steps):
        groups, verdicts = make_rollouts(run.step + 1)
        run.record(groups, verdicts)
        run.finish_step(learner.learn(groups, verdicts))
