"""Sampling ahead of learning: ages, partial rollouts, and what a resumed run does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fake_cluster import FakeCluster, in_threads  # noqa: F401
from train_worlds import World, rows_of

from assay.training.api import train

pytestmark = [pytest.mark.usefixtures("in_threads"), pytest.mark.filterwarnings("ignore")]


def run_of(world: World, name: str, steps_ahead: int, **sections: Any) -> Path:
    scale = {"rollout_actors": 2, "steps_ahead": steps_ahead, **sections.pop("scale", {})}
    guard = {"max_mismatch": 9.0}
    tree = world.tree(scale=scale, guard=guard, **sections)
    tree["run"]["name"] = name
    return Path(train(tree, quiet=True).run)


@pytest.mark.parametrize("steps_ahead", [1, 2, 4])
def test_tokens_are_at_most_the_steps_ahead_old(world: World, steps_ahead: int) -> None:
    run = run_of(world, "ahead", steps_ahead, rl={"steps": 6}, sampling={"max_tokens": 24})
    rows = rows_of(run, "metrics")
    ages = [row.get("policy/age_max", 0.0) for row in rows]
    assert ages == [min(n, steps_ahead) for n in range(6)]
    assert [row["queue/groups"] for row in rows] == [2 * min(steps_ahead, 5 - n) for n in range(6)]
