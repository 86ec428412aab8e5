"""Nobody meets a slow type in silence: whatever opens a model says so, and chooses nothing itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from train_worlds import World

from assay.model import rates
from assay.training.api import dry_run, evaluate, sample, train

NARROW = {"model": {"dtype": "bfloat16"}}


def reward_tree(world: World) -> dict[str, Any]:
    rows = [{"prompt": "1 + 1 =", "chosen": " 2", "rejected": " three"}] * 4
    stage = {"kind": "preference", "rows": [str(world.write_rows("rows.jsonl", rows))]}
    tree = world.tree(**NARROW)
    return {key: tree[key] for key in ("run", "model")} | {"reward_model": stage}


def commands(world: World) -> dict[str, Callable[[], object]]:
    model, rows = str(world.folder / "model"), [str(world.folder / "train.jsonl")]
    few: dict[str, Any] = {"max_problems": 1, "max_tokens": 4, "quiet": True}
    few["overrides"] = ["model.dtype=bfloat16"]
    return {
        "rl": lambda: train(world.tree(**NARROW, rl={"steps": 1}), quiet=True),
        "reward model": lambda: train(reward_tree(world), quiet=True),
        "dry run": lambda: dry_run(world.tree(**NARROW), quiet=True),
        "eval": lambda: evaluate(model, rows, **few),
        "sample": lambda: sample(model, problems=rows, num_samples=1, **few),
    }


@pytest.mark.parametrize("command", ["rl", "reward model", "dry run", "eval", "sample"])
def test_every_command_warns_once(
    command: str,
    world: World,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow = {"bfloat16": 0.9e9, "float32": 152e9}
    monkeypatch.setattr(rates, "rates_here", lambda device, measure=False: (slow, True))
    commands(world)[command]()
    told = [line for line in capsys.readouterr().err.splitlines() if "GFLOP/s" in line]
    (line,) = told
    assert line.startswith("warning: matrix products in bfloat16 run at 0.9 GFLOP/s")


def test_the_type_stays_what_was_asked_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = {"bfloat16": 0.9e9, "float32": 152e9}
    monkeypatch.setattr(rates, "rates_here", lambda device, measure=False: (slow, True))
    run = Path(train(world.tree(**NARROW, rl={"steps": 1}), quiet=True).run)
    config = json.loads((run / "checkpoints" / "step-000001" / "config.json").read_text())
    assert "bfloat16" in (config.get("dtype") or config.get("torch_dtype"))
