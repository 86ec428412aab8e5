"""Runs on the stand-in device: every stage has the bits of the same code on the CPU, and an update
waits for the device equally often however many micro-batches it has."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import standin_runs
from test_devices import VARIANTS
from train_worlds import World

QUICK = ("rl", "critic", "given", "pretrain", "distill", "sft", "process_model", "lora")
UPDATES: dict[str, tuple[int, dict[str, Any]]] = {
    # The head's gradient, which is known before the backward pass, is compared with what arrives.
    "known gradient": (1, {}),
    "with a KL": (0, {"algorithm": {"name": "grpo", "kl_weight": 0.1}}),
    "critic": (0, {"algorithm": {"name": "ppo"}, "critic": {"learning_rate": 1e-2}}),
    "shared critic": (0, {"algorithm": {"name": "ppo"}, "critic": {"backbone": "shared"}}),
}


@pytest.fixture
def own_state(on_device: Any, world: World) -> None:
    on_device(standin_runs.in_folder, str(world.folder / "state"))


@pytest.mark.parametrize(
    "variant",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in VARIANTS],
)
def test_a_run_on_the_device_has_the_bits_of_the_cpu(
    on_device: Any, own_state: None, world: World, variant: str
) -> None:
    there, here = on_device(standin_runs.run_twice, [VARIANTS[variant](world)])
    assert there["metrics"] == here["metrics"]
    assert there["states"] == here["states"] != {}


@pytest.mark.parametrize("update", UPDATES)
def test_waits_of_an_update_are_constant_per_micro_batch(
    on_device: Any, own_state: None, world: World, update: str
) -> None:
    per_micro_batch, sections = UPDATES[update]
    found: list[tuple[int, int, Any]] = []
    for number, most in enumerate((1000, 48)):
        tree = world.tree(**sections, run={"name": f"run{number}"}, evaluation={"every": 9})
        tree["rl"] = {"steps": 1, "num_prompts": 4, "max_tokens_per_micro_batch": most}
        found.append(on_device(standin_runs.waits_of_update, tree))
    (few, waits, places), (many, more_waits, more_places) = found
    assert many >= few + 2
    assert more_waits - waits == per_micro_batch * (many - few), more_places - places


def test_a_resumed_run_on_the_device_has_the_bits_of_the_whole_one(
    on_device: Any, own_state: None, world: World
) -> None:
    tree = world.tree(rl={"steps": 2}, checkpoint={"every": 1})
    whole, part, same_draws = on_device(standin_runs.resumed, tree)
    assert whole == part
    assert same_draws


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_tests_of_devices_pass_on_the_standin(on_device: Any) -> None:
    """Every stage and feature, search, tools and learned rewards, each resumed to the same bits."""
    here = Path(__file__).parent
    file = here.parent / "training" / "test_devices.py"
    command = ["-m", "pytest", "-p", "standin_plugin", "-p", "no:xdist", "-q", str(file)]
    paths = [str(here), str(here.parent.parent), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "ASSAY_TEST_DEVICE": "standin", "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        cwd=here.parent.parent,
    )
    assert done.returncode == 0, done.stdout[-5000:]
