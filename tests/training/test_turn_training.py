"""Completions of several turns, with given tokens between and tokens of several policy versions: one real step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from train_worlds import CountingJudge, verdict

from assay.config import OptimizerConfig, SamplingConfig, parse
from assay.data.curriculum import Curriculum
from assay.learn.advantages import compute_advantages
from assay.learn.algorithms import algorithm
from assay.learn.optimizer import Optimizer
from assay.learn.passes import Passes
from assay.learn.update import PolicyLearner
from assay.report.report import write_report
from assay.run.directory import Run
from assay.run.guard import Guard
from assay.testing import InjectedText, ScriptedGenerator, tiny_model
from assay.training.batch_plan import BatchPlan
from assay.training.rl import Loop, train_step
from assay.types import Completion, Group, Problem

PIECES = ("ask", InjectedText(" tool: 42 "), "so 42")


class Turns(ScriptedGenerator):
    """Tokens of the first turn are of an older policy."""

    def generate(self, *rest: Any) -> list[Group]:
        groups: list[Group] = []
        for group in super().generate(*rest):
            siblings = tuple(map(self._begun_before, group.completions))
            groups.append(replace(group, completions=siblings))
            rest[-1](groups[-1])
        return groups

    def _begun_before(self, one: Completion) -> Completion:
        if not one.turn_ends:
            return one
        versions = np.full(len(one.tokens), 2, np.int32)
        versions[: one.turn_ends[0]] = 0
        return replace(one, token_versions=versions, policy_version=0)


def a_learner(model: Any, name: str) -> PolicyLearner:
    passes = Passes(model, Optimizer(model, OptimizerConfig(), 9), section="rl")
    return PolicyLearner(passes, algorithm(name), total_steps=9)


@contextmanager
def a_loop(folder: Path) -> Iterator[Loop]:
    tree = {
        "run": {"directory": str(folder), "name": "run"},
        "model": {"path": "m"},
        "data": {"train": ["x"]},
        "rl": {"steps": 1},
        "guard": {"max_mismatch": 1e9},
    }
    model = tiny_model()
    learner = a_learner(model, "grpo")
    learner.optimizer.num_steps = 2
    generator = Turns(lambda _, sibling: PIECES if sibling else "no")
    generator.policy_version = 2
    judge = CountingJudge(lambda _, one: verdict(one.num_turns > 1))
    problems = [Problem(f"p{n}", f"{n}?") for n in range(2)]
    config = parse(tree)
    with Run.create(config, quiet=True) as run:
        run.attach()
        yield Loop(
            curriculum=Curriculum(problems, 0),
            generator=generator,
            verifiers=judge,
            run=run,
            learner=learner,
            guard=Guard(config.guard),
            plan=BatchPlan(num_prompts=2, group_size=2, sampling=SamplingConfig()),
        )


def test_a_step_of_several_turns(tmp_path: Path) -> None:
    with a_loop(tmp_path) as loop:
        train_step(loop)
        recorded = loop.run.recorded(1)
        metrics, folder = loop.run.metrics, loop.run.folder
    assert recorded is not None
    short, long = recorded[0][0].completions
    first, given = len(PIECES[0]), len(PIECES[1])
    assert long.num_turns == 2 and short.num_turns == 1
    assert long.turn_ends == (first, len(long.tokens))
    assert not long.sampled[first : first + given].any()
    assert long.sampled.sum() == len(long.tokens) - given
    assert long.token_versions is not None and short.token_versions is None
    assert set(long.token_versions.tolist()) == {0, 2} and long.model_logprobs is None
    sampled = 2 * (len(short.tokens) + len(long.tokens) - given)
    assert metrics["tokens/trained"] == sampled
    assert metrics["policy/age_max"] == 2
    assert metrics["policy/age_mean"] == pytest.approx(2 * 2 * first / sampled)
    page = write_report(folder).read_text(encoding="utf-8")
    assert f"{given} of them injected · 2 turns · policy versions 0 to 2" in page


def test_injected_tokens_have_no_gradient() -> None:
    """Other given tokens behind what was said change nothing; before it they do, as its context."""
    found: list[dict[str, torch.Tensor]] = []
    for tail in ("aaaa", "bbbb"):
        model = tiny_model()
        learner = a_learner(model, "rloo")
        script = ScriptedGenerator(
            lambda _, n, tail=tail: ["yes", InjectedText(tail)] if n else "no"
        )
        groups = script.generate([Problem("p", "?")], SamplingConfig(), 2)
        batch = learner.score(groups, [[verdict(False), verdict(True)]])
        learner.update(batch, compute_advantages(batch, learner.algorithm))
        found.append({name: p.detach().clone() for name, p in model.named_parameters()})
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])
