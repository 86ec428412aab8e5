"""The demo's stages: short, and the second ends as soon as it no longer gains."""

from __future__ import annotations

from pathlib import Path

import pytest

from assay.config import build
from assay.recipes import demo
from assay.recipes.file import find_recipe, read_recipe

PARTS = ("before", "after")


def test_the_stages_are_configurations_that_can_end_early(tmp_path: Path) -> None:
    cold = build(demo.cold_start(tmp_path, tmp_path / "model", seed=3))
    config = build(demo.reinforce(tmp_path, "model", seed=3))
    assert cold.stage == "sft" and config.stage == "rl" and config.rl is not None
    assert cold.run.seed == config.run.seed == 3
    every, patience = config.evaluation.every, config.evaluation.patience
    assert every is not None and patience is not None
    assert config.rl.steps % every == 0, "the last evaluation is one of them"
    assert every * patience < config.rl.steps, "or it could never end early"


def test_the_demo_goes_through_both_stages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], one_thread: None
) -> None:
    """At tiny scale: what it shows is read from the runs."""
    tiny = ["cold_start.sft.epochs=0.001", "reinforce.engine.num_slots=4"]
    rl = {"rl.num_prompts": 1, "rl.group_size": 2, "sampling.max_tokens": 4, "rl.steps": 20}
    rl |= {"evaluation.max_problems": 2, "evaluation.every": 1}
    tiny += [f"reinforce.{key}={value}" for key, value in rl.items()]
    result = demo.demo(tmp_path, overrides=tiny)
    assert {getattr(result, part) for part in PARTS} == {0.0}, "nothing is learned in so few steps"
    assert len((Path(result.run) / "metrics.jsonl").read_text().splitlines()) == 2, "ended early"
    assert Path(result.report).is_file() and len(result.examples) == 3
    assert "Accuracy on 200 held-out problems" in str(result)
    told = capsys.readouterr().out
    assert told.startswith("1/3  A new Transformer") and "\n3/3  GRPO" in told


def test_a_seed_is_that_of_every_part() -> None:
    recipe = read_recipe(find_recipe("demo"), None, demo.seeded(7))
    assert recipe.stages["fresh"].tree["seed"] == 7
    assert all(stage.tree["run"] == {"seed": 7} for stage in list(recipe.stages.values())[1:])
    sources = [recipe.stages["cold_start"].tree["sft"]["traces"]]
    sources += [recipe.stages["reinforce"].tree["data"][key] for key in ("train", "heldout")]
    assert all(one.endswith("&seed=7") for listed in sources for one in listed)
