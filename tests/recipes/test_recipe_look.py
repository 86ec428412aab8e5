"""What a dry run says of each stage, and what is wrong with a recipe before its first stage starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from recipe_worlds import World

from assay.errors import ConfigError, DataError
from assay.recipes.run import dry_run


def test_a_dry_run_looks_as_far_as_inputs_are_there(world: World) -> None:
    chosen = {"data": "select", "inputs": world.source("traces"), "keep": "any"}
    more = {"model": {"path": "@reason@best"}, "sft": {"traces": ["@chosen"]}}
    path = world.file(world.tree(start={"model": "tiny"}, chosen=chosen, more=more))
    start, cold, reason, kept, last = dry_run(str(path), quiet=True)
    assert (start.kind, start.dry_run, kept.kind) == ("tiny", None, "select")
    assert cold.dry_run is not None and "9 traces" in cold.dry_run.notes
    assert reason.later == [
        "@cold is not there yet: stage cold makes it",
        "looked at with the model of stage start",
    ]
    assert reason.dry_run is not None and reason.dry_run.memory.total_mib > 0
    assert last.dry_run is None and [one.split()[0] for one in last.later] == ["@reason", "@chosen"]
    assert "=== prompt ===" in str(reason) and reason.as_dict()["looked"]["notes"]
    assert not (world.folder / "runs").exists()


def test_a_dry_run_of_a_begun_one_uses_what_is_there(world: World) -> None:
    folder = Path(world.run(world.file(), until="cold").folder)
    (reason,) = dry_run(resume=folder, quiet=True)
    assert reason.later == [] and reason.dry_run is not None


def test_rows_of_every_stage_are_read_before_the_first_starts(world: World) -> None:
    world.rows("train", [{"id": "x", "answer": "1"}])
    with pytest.raises(DataError, match=r"stage reason: .*train.jsonl:1"):
        world.run(world.file())
    held = {"data": {"heldout": ["@chosen"], "train": ["@chosen", "nowhere.jsonl"]}}
    chosen = {"data": "select", "inputs": world.source("traces"), "keep": "any"}
    tree = world.tree(reason=held)
    tree["stage"] = {"chosen": chosen, **tree["stage"]}
    with pytest.raises(DataError, match=r"stage reason: nowhere.jsonl: found no such file"):
        world.run(world.file(tree))
    chosen["inputs"] = ["gone.jsonl"]
    with pytest.raises(DataError, match=r"stage chosen: gone.jsonl: found no such file"):
        world.run(world.file(tree))
    assert not (world.folder / "runs").exists()


@pytest.mark.parametrize(
    ("stage", "change", "complaint"),
    [
        ("cold", {"sft": {"trace": ["x"]}}, r"stage cold: .*two.toml:\d+ sft.trace: unknown key"),
        ("cold", {"run": {"name": "x"}}, r'stage cold: run.name: found "x"; accepted: none'),
        ("cold", {"sft": 3}, r"stage cold: .*two.toml:\d+ sft: found 3; accepted: a section"),
        ("more", {"rows": []}, r"stage more: .*two.toml:\d+ rows: unknown key"),
        ("kept", {"data": "selct"}, r'stage kept: data stage: found "selct".*mean "select"'),
        ("kept", {"data": "select"}, r"stage kept: .* inputs: missing"),
        ("new", {"model": "tiny", "sead": 1}, r"stage new: .*:\d+ sead: unknown key; .*mean seed"),
    ],
)
def test_wrong_keys_are_told_with_stage_and_line(
    world: World, stage: str, change: dict[str, object], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        world.run(world.file(world.tree(**{stage: change})))


def test_a_wrong_override_is_told(world: World) -> None:
    with pytest.raises(ConfigError, match=r"stage cold: --set sft.epoch: .*mean sft.epochs"):
        world.run(world.file(), overrides=["cold.sft.epoch=3"])
