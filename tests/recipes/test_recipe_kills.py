"""Recipes killed by SIGKILL at random places end with the weights and rows of one that was not."""

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


LONGER = {
    "pretrain": ["pretrain.epochs=0.006"],
    "sft": ["sft.epochs=0.005"],
    "rl": ["rl.steps=4"],
    "preference": ["preference.epochs=0.5"],
    "reward_model": ["reward_model.epochs=0.1"],
    "distill": ["distill.steps=4", "distill.epochs=0.1"],
}
"""What makes some steps of each kind of stage: there is something to continue with."""


def longer(name: str) -> list[str]:
    """Return changes for few steps, with a checkpoint after each."""
    stages = read_recipe(built_in()[name]).stages.values()
    trained = [stage for stage in stages if stage.kind == "training"]
    return [
        *short_changes(name),
        "shared.verification.num_workers=1",
        *(f"{one.name}.checkpoint={{every=1, keep_last=2}}" for one in trained),
        *(
            f"{one.name}.{change}"
            for one in trained
            for kind in one.tree
            for change in LONGER.get(kind, ())
            if kind != "sft" or one.name in ("base", "cold_start", "fused")
        ),
    ]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("seed", "name"), list(enumerate(built_in())))
def test_killed_at_five_places_it_ends_the_same(seed: int, name: str, tmp_path: Path) -> None:
    command = [sys.executable, str(HERE / "recipe_killer.py"), str(tmp_path), str(seed), "5", name]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": PATHS}
    done = subprocess.run(
        [*command, *longer(name)], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["different"] == [] and len(found["killed_in"]) >= 3
    hit = {stage for unfinished in found["killed_in"] for stage in unfinished}
    assert len(hit) >= 2, "kills hit several stages"
    stages = read_recipe(built_in()[name]).stages.values()
    assert {one.split("/")[0] for one in found["weights"]} == {
        stage.name for stage in stages if stage.kind != "data"
    }
    rows = {key for key in found["compared"] if key.endswith("/rows.jsonl")}
    assert len(rows) == sum(stage.kind == "data" for stage in stages)
