"""The demo's stages: short, and the second ends as soon as it no longer gains."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from assay.config import build
from assay.training import recipes

PARTS = ("before", "after")


def test_the_stages_are_configurations_that_can_end_early(tmp_path: Path) -> None:
    cold = build(recipes.cold_start(tmp_path, tmp_path / "model", seed=3))
    config = build(recipes.reinforce(tmp_path, "model", seed=3))
    assert cold.stage == "sft" and config.stage == "rl" and config.rl is not None
    assert cold.run.seed == config.run.seed == 3
    every, patience = config.evaluation.every, config.evaluation.patience
    assert every is not None and patience is not None
    assert config.rl.steps % every == 0, "the last evaluation is one of them"
    assert every * patience < config.rl.steps, "or it could never end early"


def test_the_demo_goes_through_both_stages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread: None
) -> None:
    """At tiny scale: what it shows is read from the runs."""
    tiny = {
        "sft": ["sft.epochs=0.001"],
        "rl": ["rl.steps=20", "rl.num_prompts=1", "rl.group_size=2", "engine.num_slots=4"],
    }
    tiny["rl"] += ["evaluation.max_problems=2", "evaluation.every=1", "sampling.max_tokens=4"]

    whole = recipes.stages

    def short(*given: Any) -> Any:
        for stage in whole(*given):
            tree = stage.config.model_dump(exclude_none=True)
            yield replace(stage, config=build(tree, tiny[stage.config.stage]))

    monkeypatch.setattr(recipes, "stages", lambda *given: [*short(*given)])
    result = recipes.demo(tmp_path, quiet=True)
    assert {getattr(result, part) for part in PARTS} == {0.0}, "nothing is learned in so few steps"
    assert len((Path(result.run) / "metrics.jsonl").read_text().splitlines()) == 2, "ended early"
    assert Path(result.report).is_file() and len(result.examples) == 3
    assert "Accuracy on 200 held-out problems" in str(result)
