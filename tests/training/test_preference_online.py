"""Whole preference runs whose pairs are sampled while training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from train_worlds import World, rows_of

from assay.errors import ConfigError
from assay.learn.algorithms import PREFERENCES
from assay.run.metrics import is_timing
from assay.training.api import train


def on_policy_tree(world: World, **sections: Any) -> dict[str, Any]:
    tree = world.tree(**sections)
    del tree["rl"]
    given = {"steps": 3, "num_prompts": 2, "group_size": 4, **sections.get("preference", {})}
    return {**tree, "preference": given}


@pytest.mark.parametrize(
    ("method", "choose"), [("dpo", "best_worst"), ("dpo", "random"), ("kto", "best_worst")]
)
def test_on_policy(world: World, method: str, choose: str) -> None:
    settings = {"method": method, "choose": choose, "pairs_per_group": 2}
    result = train(on_policy_tree(world, preference=settings), quiet=True)
    rows = rows_of(result.run, "metrics")
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert "reward/mean" in rows[0] and "loss/total" in rows[0]
    if PREFERENCES[method].needs_reference:
        assert rows[0]["preference/margin"] == pytest.approx(0.0, abs=1e-4)
    assert len(result.before) == len(result.after) == 1
    assert len(list((Path(result.run) / "rollouts").iterdir())) == 3


def test_pairs_may_be_sampled_from_the_likely_tokens(world: World) -> None:
    """Their loss is over the whole distribution of the policy, wherever the completions come from."""
    tree = on_policy_tree(world, sampling={"top_p": 0.9, "top_k": 20, "min_p": 0.01})
    rows = rows_of(train(tree, quiet=True).run, "metrics")
    assert rows[0]["preference/margin"] == pytest.approx(0.0, abs=1e-4)


def test_a_step_that_tells_nothing_apart_is_no_optimizer_step(world: World) -> None:
    tree = on_policy_tree(world)
    tree["data"]["verifier"] = "train_worlds:always_right"
    rows = rows_of(train(tree, quiet=True).run, "metrics")
    assert [row["preference/pairs"] for row in rows] == [0.0] * 3
    assert rows[-1]["policy_version"] == 0 and rows[-1]["optimizer/steps"] == 0


def test_the_reference_follows_every_so_many_steps(world: World) -> None:
    settings = {"reference_every": 2, "steps": 4}
    tree = on_policy_tree(world, preference=settings, optimizer={"learning_rate": 3e-3})
    rows = rows_of(train(tree, quiet=True).run, "metrics")
    far = [abs(row["preference/change_rejected"]) > 1e-3 for row in rows]
    assert far == [False, True, False, True]


@pytest.mark.parametrize("every", [None, 2])
def test_adapters_alone_are_kept_as_the_reference(world: World, every: int | None) -> None:
    settings = {"steps": 4} if every is None else {"steps": 4, "reference_every": every}
    tree = on_policy_tree(world, preference=settings, optimizer={"learning_rate": 3e-2})
    tree["model"]["lora"] = {"rank": 4}
    result = train(tree, quiet=True)
    rows = rows_of(result.run, "metrics")
    far = [abs(row["preference/change_rejected"]) > 1e-3 for row in rows]
    assert far == ([False, True, False, True] if every else [False, True, True, True])
    kept = Path(result.run) / "checkpoints" / "step-000004" / "reference"
    assert kept.exists() == (every is not None)
    if every:
        names = load_file(kept / "reference.safetensors").keys()
        assert names and all("lora" in name for name in names)


def test_a_judge_may_compare(world: World) -> None:
    from judge_server import Asked, JudgeServer

    def prefers_longer(asked: Asked) -> str:
        first, second = asked.data["A"][0], asked.data["B"][0]
        better = "A" if len(first) > len(second) else "B" if len(second) > len(first) else "tie"
        return json.dumps({"reasoning": "by length", "verdict_CODE": better})

    with JudgeServer(prefers_longer) as server:
        tree = on_policy_tree(
            world,
            preference={"judge": "pairwise", "group_size": 3, "steps": 2},
            verification={
                "num_workers": 1,
                "options": {"judge": {"url": server.url, "model": "longer"}},
            },
        )
        result = train(tree, quiet=True)
    rows = rows_of(result.run, "metrics")
    assert rows[0]["preference/length_chosen"] >= rows[0]["preference/length_rejected"]
    assert (Path(result.run) / "judge_replies.jsonl").stat().st_size > 0


def test_greedy_siblings_would_be_equal(world: World) -> None:
    tree = on_policy_tree(world, sampling={"max_tokens": 8, "temperature": 0.0})
    with pytest.raises(ConfigError, match=r"sampling\.temperature: found 0"):
        train(tree, quiet=True)


def test_the_reference_of_a_resumed_run_is_the_policy_at_the_start(world: World) -> None:
    """It is not in the checkpoint: the model of the configuration is the start."""
    rate = {"learning_rate": 3e-3}
    whole = train(on_policy_tree(world, preference={"steps": 4}, optimizer=rate), quiet=True)
    tree = on_policy_tree(world, preference={"steps": 2}, optimizer=rate, run={"name": "half"})
    half = train(tree, quiet=True)
    train(resume=half.run, overrides=["preference.steps=4"], quiet=True)
    rows = [
        [{k: v for k, v in row.items() if not is_timing(k)} for row in rows_of(run, "metrics")]
        for run in (whole.run, half.run)
    ]
    assert rows[0] == rows[1] and abs(rows[0][3]["preference/change_rejected"]) > 1e-3
