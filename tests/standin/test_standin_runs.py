"""Runs on the stand-in device: every stage has the bits of the same code on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import standin_runs
from train_worlds import World


def grpo(world: World) -> list[dict[str, Any]]:
    return [world.tree(rl={"steps": 2})]


STAGES = {"grpo": grpo}


@pytest.mark.parametrize("stage", STAGES)
def test_a_run_on_the_device_has_the_bits_of_the_cpu(
    on_device: Any, world: World, stage: str
) -> None:
    on_device(standin_runs.in_folder, str(world.folder / "state"))
    there, here = on_device(standin_runs.run_twice, STAGES[stage](world))
    assert there["metrics"] == here["metrics"]
    assert there["states"] == here["states"] != {}
