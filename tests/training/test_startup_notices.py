"""Which parts of a start-up are named to whoever waits for it."""

from __future__ import annotations

from typing import Any

import pytest
from train_worlds import World

from assay.run.timing import PhaseClock
from assay.training.api import train


def test_a_training_start_names_rows_model_probe_and_first_evaluation(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    named: list[str] = []
    working = PhaseClock.working

    def noted(self: PhaseClock, what: str, *rest: Any) -> Any:
        named.append(what)
        return working(self, what, *rest)

    monkeypatch.setattr(PhaseClock, "working", noted)
    train(world.tree(rl={"steps": 1}), quiet=True)
    wanted = ["checking the rows", "loading the model", "probing the layers", "evaluate"]
    found = [what for what in dict.fromkeys(named) if what in wanted]
    assert found == wanted
