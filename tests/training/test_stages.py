"""A list of stages: run one after the other, and gone on with."""

from __future__ import annotations

from typing import Any

from train_worlds import World, events_of, rows_of

from assay.config import build
from assay.run.metrics import is_timing
from assay.training.api import run_stages, train
from assay.training.stage import Stage


def two_stages(world: World, **rl: Any) -> list[Stage]:
    cold = world.sft_tree(run={"name": "cold"})
    warm = world.tree(**{"run": {"name": "warm"}, **rl})
    return [
        Stage(build(cold), title="first", quiet=True),
        Stage(build(warm), title="second", follows=True, quiet=True),
    ]


def learned(run: str) -> list[dict[str, Any]]:
    rows = rows_of(run, "metrics")
    return [{key: row[key] for key in row if not is_timing(key)} for row in rows]


def test_a_stage_starts_from_what_the_one_before_made(world: World) -> None:
    told: list[str] = []
    cold, warm = run_stages(two_stages(world), say=told.append)
    assert told == ["first", "second"] and cold.finished and warm.finished
    alone = world.tree(run={"name": "alone"}, model={"path": cold.checkpoint})
    assert learned(warm.run) == learned(train(alone, quiet=True).run)


def test_stages_go_on_where_they_were(world: World) -> None:
    """A finished stage is only read, an unfinished one is resumed."""
    whole = run_stages(two_stages(world))
    cold = whole[0].run
    limit = {"name": "short", "max_minutes": 1e-9}
    short = run_stages(two_stages(world, run=limit), runs=[cold])
    assert [one.finished for one in short] == [True, False]
    cold_events = events_of(cold)
    runs = [one.run for one in short]
    again = run_stages(two_stages(world), runs=runs)
    assert [one.run for one in again] == runs and again[1].finished
    assert events_of(cold) == cold_events and "resumed" in events_of(runs[1])
    assert learned(runs[1]) == learned(whole[1].run)


def test_what_did_not_finish_is_not_built_upon(world: World) -> None:
    stages = two_stages(world)
    stopped = build(world.sft_tree(run={"name": "cold", "max_minutes": 1e-9}))
    results = run_stages([Stage(stopped, quiet=True), stages[1]])
    assert [one.ended for one in results] == ["max_minutes"]
