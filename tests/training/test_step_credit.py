"""Credit by steps learns from step scores alone, and drops no other part of a reward in silence."""

from __future__ import annotations

from typing import Any

import pytest
from train_worlds import World, rows_of

from assay.errors import ConfigError, DataError
from assay.training.api import dry_run, train

STEPS = "train_worlds:in_steps"


def by_steps(world: World, verifier: str, **algorithm: Any) -> dict[str, Any]:
    options = {"length_target": {"target_tokens": 4}}
    return world.tree(
        data={"verifier": verifier},
        algorithm={"name": "grpo_process", **algorithm},
        verification={"options": options},
    )


@pytest.mark.parametrize("verifier", [f"{STEPS} + length_target", f"length_target - 0.1*{STEPS}"])
def test_a_sum_is_refused(world: World, verifier: str) -> None:
    for start in (train, dry_run):
        with pytest.raises(
            ConfigError, match=r"data\.verifier: .*a single verifier that scores steps"
        ):
            start(by_steps(world, verifier))
    assert not (world.folder / "runs").exists()


def test_a_sum_that_a_row_asks_for_is_refused_with_its_place(world: World) -> None:
    rows = [{"prompt": "1 + 1 =", "answer": "2"}] * 2
    rows[1] = {**rows[1], "verifier": f"{STEPS} + length_target", "target_tokens": 4}
    world.write_rows("train.jsonl", rows)
    with pytest.raises(DataError, match=r"train\.jsonl:2 .*a single verifier that scores steps"):
        train(by_steps(world, STEPS), quiet=True)


@pytest.mark.parametrize(
    ("verifier", "algorithm"),
    [(f"{STEPS} + 0*length_target", {}), (f"{STEPS} + length_target", {"credit": "completion"})],
)
def test_what_drops_nothing_is_learned_from(
    world: World, verifier: str, algorithm: dict[str, Any]
) -> None:
    rows = rows_of(train(by_steps(world, verifier, **algorithm), quiet=True).run, "metrics")
    assert rows[0]["optimizer/steps"] == 1.0 and rows[0]["loss/token_share"] > 0
