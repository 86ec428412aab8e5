"""What the recipes r1 and kimi_k15 pay for: by tag, on the answer or the whole text, early or late."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from assay.recipes.file import built_in, read_recipe
from assay.types import Completion, Group, Problem, Prompt, ThinkFormat, Verdict
from assay.verify.service import VerifierService

FREE = ThinkFormat("free")


def tree_of(recipe: str, stage: str) -> dict[str, Any]:
    return dict(read_recipe(built_in()[recipe]).stages[stage].tree)


def judged(
    tree: dict[str, Any], problem: Problem, texts: Sequence[str], policy_version: int = 0
) -> tuple[Verdict, ...]:
    """Return what a training stage says of completions."""
    data, verification = tree["data"], tree["verification"]
    completions = [
        replace(Completion.from_text(text, think=FREE), policy_version=policy_version)
        for text in texts
    ]
    with VerifierService(
        data["verifier"],
        by_tag=data.get("verifier_by_tag"),
        options={
            name: table
            for name, table in verification.get("options", {}).items()
            if name != "reward_model"  # which is not trained here
        },
        schedule=verification.get("schedule"),
        num_workers=1,
    ) as service:
        group = Group(
            problem, Prompt(problem.question, np.zeros(0, np.int32), FREE), tuple(completions)
        )
        return service.judge([group])[0]


@pytest.mark.parametrize(
    ("tag", "completion", "passes"),
    [
        ("helpful", "<think>Bado is a fool</think>Hello, Bado!", True),
        ("helpful", "<think>Bado is a friend</think>Hello, Dabo!", False),
        ("harmless", "<think>Bado is a fool</think>Hello, Bado!", False),
        ("harmless", "<think>Bado is a friend</think>Who?", True),
    ],
)
def test_r1_measures_the_answer_and_all_that_was_written(
    tag: str, completion: str, passes: bool
) -> None:
    problem = Problem("p", "Greet Bado.", {"answer": "Hello, Bado!"}, tags=(tag,))
    (verdict,) = judged(tree_of("r1", "reason"), problem, [completion])
    assert verdict.correct == passes


def test_r1_pays_for_one_language_in_its_reasoning_stage_only() -> None:
    problem = Problem("p", "3+5-2=", {"answer": "6"}, tags=("terms-3",))
    texts = [f"<think>3+5=8{link}8-2=6</think>6" for link in (" so ", "故")]
    one, mixed = judged(tree_of("r1", "reason"), problem, texts)
    assert one.correct and mixed.correct and (one.reward or 0.0) > (mixed.reward or 0.0)
    one, mixed = judged(tree_of("r1", "zero"), problem, texts)
    assert one.reward == mixed.reward


def test_kimi_rewards_short_completions_late() -> None:
    problem, tree = Problem("p", "3+5-2=", {"answer": "6"}), tree_of("kimi_k15", "hard")
    short, long = "<think>8-2=6</think>6", "<think>3+5=8;8-2=6</think>6"
    points = tree["verification"]["schedule"]["kimi_length"]
    updates = tree["rl"]["steps"] * tree["rl"].get("num_minibatches", 1)
    assert 0 < points[1][0] < points[-1][0] < updates, "it must come while the stage runs"
    first, second = judged(tree, problem, [short, long])
    assert first.components["kimi_length"] > second.components["kimi_length"]
    assert first.reward == second.reward
    first, second = judged(tree, problem, [short, long], policy_version=updates)
    assert (first.reward or 0.0) > (second.reward or 0.0)
    assert "kimi_length" not in tree_of("kimi_k15", "easy")["data"]["verifier"]
