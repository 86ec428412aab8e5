"""Recipes killed by SIGKILL at random moments end with the weights and rows of one that was not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_built_in import short_changes

from assay.recipes.file import built_in, read_recipe

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PATHS = os.pathsep.join(map(str, (HERE, ROOT)))


def longer(name: str) -> list[str]:
    """Return changes for few steps, with a checkpoint after each: there is something to go on with."""
    stages = read_recipe(built_in()[name]).stages
    trained = [stage.name for stage in stages.values() if stage.kind == "training"]
    supervised = [one for one in trained if "sft" in stages[one].tree]
    reinforced = [one for one in trained if "rl" in stages[one].tree]
    return [
        *short_changes(name),
        "shared.verification.num_workers=1",
        *(f"{one}.checkpoint={{every=1, keep_last=2}}" for one in trained),
        *(f"{one}.sft.epochs=0.005" for one in supervised if one == "base"),
        *(f"{one}.rl.steps=4" for one in reinforced),
    ]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("name", "seed"), [("r1_zero", 0), ("expert_iteration", 1), ("qwen3", 2)])
def test_killed_at_five_places_it_ends_the_same(name: str, seed: int, tmp_path: Path) -> None:
    command = [sys.executable, str(HERE / "recipe_killer.py"), str(tmp_path), str(seed), "5", name]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": PATHS}
    done = subprocess.run(
        [*command, *longer(name)], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["different"] == [] and len(found["killed_in"]) == 5
    assert any(found["killed_in"]), "some kills hit a stage"
    stages = read_recipe(built_in()[name]).stages.values()
    assert {one.split("/")[0] for one in found["weights"]} == {
        stage.name for stage in stages if stage.kind != "data"
    }
    rows = {key for key in found["compared"] if key.endswith("/rows.jsonl")}
    assert len(rows) == sum(stage.kind == "data" for stage in stages)
