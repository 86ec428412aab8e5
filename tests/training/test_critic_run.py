"""A whole run with a critic: what it writes, what it may start from, and what is refused beforehand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from train_worlds import World, rows_of

from assay.config import build
from assay.errors import ConfigError
from assay.session.assemble import choose_algorithm
from assay.training import api


def critic_tree(world: World, **critic: Any) -> dict[str, Any]:
    return world.tree(
        rl={"steps": 2, "epochs": 2},
        algorithm={"name": "ppo"},
        critic={"learning_rate": 1e-2, "warmup_steps": 1, **critic},
        optimizer={"schedule": "linear", "final_fraction": 0.0},
    )


@pytest.mark.parametrize("backbone", ["copy", "shared"])
def test_a_run_writes_down_what_its_critic_thought(world: World, backbone: str) -> None:
    result = api.train(critic_tree(world, backbone=backbone), quiet=True)
    first, second = rows_of(result.run, "metrics")
    assert first["policy_version"] == 0 and second["policy_version"] == 2
    assert first["critic/grad_norm"] > 0 and second["critic/grad_norm"] > 0
    # the schedule ends with the policy's last step, not with as many as the critic has taken
    assert second["optimizer/learning_rate"] == pytest.approx(0.0, abs=1e-12)
    shards = sorted((Path(result.run) / "rollouts").glob("*.parquet"))
    before, after = (pq.ParquetFile(shard).read()["values"].to_pylist() for shard in shards)
    assert not any(value for row in before for value in row), "a critic starts from zero"
    assert any(value for row in after for value in row)
    assert result.checkpoint is not None
    saved = Path(result.checkpoint) / "critic"
    assert (saved / "value_head.safetensors").is_file()
    assert (saved / "config.json").is_file() == (backbone == "copy")


def test_a_critic_goes_on_from_another_runs(world: World) -> None:
    first = api.train(critic_tree(world), quiet=True)
    assert first.checkpoint is not None
    tree = critic_tree(world, path=str(Path(first.checkpoint) / "critic"))
    tree["run"]["name"] = "second"
    second = api.train(tree, quiet=True)
    assert abs(rows_of(second.run, "metrics")[0]["critic/value_mean"]) > 1e-3


@pytest.mark.parametrize(
    ("algorithm", "critic", "complaint"),
    [
        ({"name": "grpo"}, {"warmup_steps": 3}, r"critic\.warmup_steps: found 3, but grpo has no"),
        ({"name": "rloo"}, {"path": "x"}, r"critic\.path: found 'x', but rloo has no critic"),
        ({"name": "ppo"}, {"warmup_steps": 2}, r"critic\.warmup_steps: found 2 of rl\.steps = 2"),
    ],
)
def test_a_critic_that_makes_no_sense_is_refused(
    world: World, algorithm: dict[str, Any], critic: dict[str, Any], complaint: str
) -> None:
    tree = world.tree(rl={"steps": 2}, algorithm=algorithm, critic=critic)
    with pytest.raises(ConfigError, match=complaint):
        choose_algorithm(build(tree))


def test_what_is_said_of_a_critic_in_its_own_words_may_stay(world: World) -> None:
    """A resolved configuration states every default, also of a critic that nobody asks."""
    tree = world.tree(algorithm={"name": "grpo"}, critic={"backbone": "copy", "warmup_steps": 0})
    assert choose_algorithm(build(tree)).name == "grpo"
