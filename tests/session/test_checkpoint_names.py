"""A checkpoint's name is taken wherever a run is, and damaged weights are refused there."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from train_worlds import World

from assay.curation.base import run_stage
from assay.errors import UserError
from assay.release.export import export
from assay.reward_models.options import checkpoint_folder
from assay.training import api


@pytest.fixture
def run(world: World) -> Path:
    """A run with checkpoints after its first and its second step."""
    tree = world.tree(rl={"steps": 2}, checkpoint={"every": 1, "keep_last": 2})
    return Path(api.train(tree, quiet=True).run)


def uses(world: World, run: Path) -> dict[str, Callable[[str], Any]]:
    """Everything that opens a checkpoint by its name."""
    problems = [str(world.folder / "heldout.jsonl")]
    rows = world.write_rows("rows.jsonl", [{"prompt": "1 + 1 =", "completion": "a\nb"}])
    later: dict[str, Any] = {"run": {"name": "later"}, "rl": {"steps": 1}}
    ppo = {**later, "algorithm": {"name": "ppo"}}
    judged = {"reward_model": {"head": "scalar", "path": "NAME"}}
    return {
        "eval": lambda name: api.evaluate(name, problems),
        "sample": lambda name: api.sample(name, prompt="1 + 1 =", num_samples=1),
        "export": lambda name: export(name, world.folder / "out"),
        "label_steps": lambda name: run_stage(
            "label_steps", {"inputs": [str(rows)], "model": name}, world.folder / "labels"
        ),
        "model.path": lambda name: api.train(world.tree(**later, model={"path": name}), quiet=True),
        "critic.path": lambda name: api.train(world.tree(**ppo, critic={"path": name}), quiet=True),
        "reward_model.path": lambda name: api.train(
            world.tree(
                **later,
                data={"verifier": "reward_model"},
                verification={"options": json.loads(json.dumps(judged).replace("NAME", name))},
            ),
            quiet=True,
        ),
    }


NAMES = ("eval", "sample", "export", "label_steps", "model.path", "critic.path")


@pytest.mark.parametrize("use", ["eval", "export", "model.path", "critic.path"])
def test_a_step_is_taken_by_its_name(
    world: World, run: Path, use: str, capsys: pytest.CaptureFixture[str]
) -> None:
    result = uses(world, run)[use](f"{run}@1")
    assert f"note: {run}@1 is {run}/checkpoints/step-000001" in capsys.readouterr().err
    if use.endswith(".path"):  # the run that starts from it says for ever what that was
        config = tomllib.loads((Path(result.run) / "config.toml").read_text())
        assert config[use.partition(".")[0]]["path"] == f"{run}/checkpoints/step-000001"


@pytest.mark.parametrize("use", [*NAMES, "reward_model.path"])
def test_a_flipped_byte_in_the_weights_is_one_line(world: World, run: Path, use: str) -> None:
    weights = run / "checkpoints/step-000002/model.safetensors"
    data = bytearray(weights.read_bytes())
    data[len(data) // 2] ^= 1
    weights.write_bytes(data)
    with pytest.raises(UserError, match=r"damaged \(model\.safetensors has changed since") as error:
        uses(world, run)[use](str(run))
    assert "\n" not in str(error.value) and f"{run}@1" in str(error.value)
    assert not (world.folder / "runs/later").exists() and not (world.folder / "out").exists()


def test_a_base_whose_weights_were_changed_is_not_resumed_from(world: World, run: Path) -> None:
    later = api.train(
        world.tree(run={"name": "later"}, model={"path": f"{run}@2"}, rl={"steps": 1}), quiet=True
    )
    manifest = run / "checkpoints/step-000002/manifest.json"
    manifest.write_text("{")
    with pytest.raises(UserError, match=r"step-000002: the checkpoint is damaged \(manifest\.json"):
        api.train(resume=later.run, overrides=["rl.steps=2"], quiet=True)


def test_a_process_keeps_to_the_reward_model_that_it_found(run: Path) -> None:
    name = f"{run}@last"
    found = checkpoint_folder(name)
    assert found == f"{run}/checkpoints/step-000002"
    (run / "checkpoints/step-000002").rename(run / "gone")
    assert checkpoint_folder(name) == found and checkpoint_folder("org/model") == "org/model"
