"""What a dry run says of each stage, and what is wrong with a recipe before its first stage starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from recipe_worlds import World

from assay.errors import ConfigError, DataError, RunError
from assay.recipes.check import Look
from assay.recipes.cost import Cost, Total
from assay.recipes.run import dry_run


def test_a_dry_run_looks_as_far_as_inputs_are_there(world: World) -> None:
    chosen = {"data": "select", "inputs": world.source("traces"), "keep": "any"}
    more = {"model": {"path": "@reason@best"}, "sft": {"traces": ["@chosen"]}}
    path = world.file(world.tree(start={"model": "tiny"}, chosen=chosen, more=more))
    start, cold, reason, kept, last, total = dry_run(str(path), quiet=True)
    assert isinstance(total, Total) and isinstance(cold, Look) and isinstance(kept, Look)
    assert isinstance(start, Look) and isinstance(reason, Look) and isinstance(last, Look)
    assert (start.kind, start.dry_run, kept.kind) == ("tiny", None, "select")
    assert cold.dry_run is not None and "9 traces" in cold.dry_run.notes
    assert reason.later == [
        "@cold is not there yet: stage cold makes it",
        "looked at with the model of stage start",
    ]
    assert reason.dry_run is not None and reason.dry_run.memory.total_mib > 0
    assert [one.split()[0] for one in last.later[:2]] == ["@reason", "@chosen"]
    assert last.later[2:] == [
        "looked at with a made-up trace",
        "looked at with the model of stage start",
    ]
    assert last.dry_run is not None
    assert "=== prompt ===" in str(reason) and reason.as_dict()["looked"]["notes"]
    assert not (world.folder / "runs").exists()


def test_a_dry_run_says_what_stages_take(world: World) -> None:
    """Completions of data transforms, steps, minutes and memory of training, bounds where rows lack."""
    asked = {"data": "collect", "model": "@cold", "inputs": world.source("train"), "num_samples": 3}
    label = {"data": "label_difficulty", "model": "@cold", "inputs": ["@asked"], "num_samples": 2}
    more = {"model": {"path": "@cold"}, "sft": {"traces": ["@both"], "tokens_per_step": 16}}
    tree = world.tree(reason={"data": {"train": ["@label"], "heldout": ["@both"]}})
    tree["stage"]["asked"] = {**asked, "max_problems": 5}
    tree["stage"]["label"] = {**label, "also_without_thinking": True, "max_tokens": 4}
    variants = {"a": {}, "b": {"append": "!"}}
    tree["stage"]["both"] = {"data": "vary", "inputs": ["@asked"], "variants": variants}
    tree["stage"]["more"] = more
    tree["stage"]["reason"] = tree["stage"].pop("reason")
    *looks, total = dry_run(str(world.file(tree)), quiet=True)
    found = {one.stage: one.cost for one in looks if isinstance(one, Look)}
    assert isinstance(total, Total) and total.not_known == []
    assert found["asked"] == Cost(False, 15, 15 * 8), "5 problems x 3, of the run's 8 tokens"
    assert found["label"] == Cost(True, 15 * 2 * 2, 60 * 4), "and as often without thinking"
    assert found["both"] == Cost()
    cold, last, reason = found["cold"], found["more"], found["reason"]
    assert cold and last and reason and not (cold.at_most or reason.at_most) and last.at_most
    assert last.steps == 30 * 8 // 16, "at most 30 rows of 8 tokens"
    assert reason.steps == 4 and cold.steps == 3, "9 traces of 2 or 3 tokens, by 8"
    minutes = [one.minutes or 0.0 for one in (cold, last, reason)]
    assert all(minutes) and total.cost.minutes == pytest.approx(sum(minutes))
    assert total.cost.completions == 75 and total.cost.at_most
    assert total.cost.memory_mib == max(one.memory_mib or 0 for one in (cold, last, reason)) > 0
    assert str(total).startswith("##### in all #####\ncost: at most 75 completions of at most 360")
    (asked_look,) = (one for one in looks if isinstance(one, Look) and one.stage == "asked")
    assert "cost: 15 completions of at most 120 tokens" in str(asked_look)
    assert asked_look.as_dict()["cost"]["completions"] == 15


def test_stages_with_a_teacher_are_looked_at_before_it_is_made(world: World) -> None:
    """Both models are those that they will come from; rows that lack are made up, or bounds."""
    asked = {"data": "collect", "model": "@reason", "inputs": world.source("train")}
    distill = {"traces": ["@asked"], "tokens_per_step": 16}
    taught = {"model": {"path": "@cold"}, "teacher": {"path": "@reason"}}
    varied = {"data": "vary", "inputs": world.source("train"), "variants": {"a": {}}}
    own = {"data": {"train": ["@varied"]}, "distill": {"steps": 3, "num_prompts": 2}}
    stages = {"asked": {**asked, "num_samples": 2}, "varied": varied}
    stages |= {"given": {**taught, "distill": distill}, "own": {**taught, **own}}
    *looks, total = dry_run(str(world.file(world.tree(**stages))), quiet=True)
    found = {one.stage: one for one in looks if isinstance(one, Look)}
    for name in ("given", "own"):
        told, cost = found[name].later, found[name].cost
        assert told[-2:] == [
            f"looked at with the {role} of stage start" for role in ("model", "teacher")
        ]
        assert cost is not None and cost.minutes and cost.memory_mib
        look = found[name].dry_run
        assert look is not None and look.memory.parts["teacher"] == look.memory.parts["weights"]
    first, second = found["given"].cost, found["own"].cost
    assert first and first.steps == 18 * 8 // 16 and first.at_most
    assert second and second.steps == 3
    assert isinstance(total, Total) and total.not_known == []


def test_what_is_not_known_is_named(world: World) -> None:
    """A stage that learns from an earlier one's rollouts, which nobody can count before."""
    pairs = {"model": {"path": "@cold"}, "preference": {"pairs": ["run:@reason"]}}
    *_, total = dry_run(str(world.file(world.tree(pairs=pairs))), quiet=True)
    assert isinstance(total, Total) and total.not_known == ["pairs"]
    assert "not known, and not in the sum: pairs" in str(total)


def test_a_dry_run_of_a_started_recipe_uses_its_results(world: World) -> None:
    folder = Path(world.run(world.file(), until="cold").folder)
    reason, _ = dry_run(resume=folder, quiet=True)
    assert isinstance(reason, Look) and reason.later == [] and reason.dry_run is not None


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
        ("kept", {"data": "selct"}, r'stage kept: data transform: found "selct".*mean select'),
        ("kept", {"data": "select"}, r"stage kept: .* inputs: missing"),
        ("new", {"model": "tiny", "sead": 1}, r"stage new: .*:\d+ sead: unknown key; .*mean seed"),
    ],
)
def test_wrong_keys_are_reported_with_stage_and_line(
    world: World, stage: str, change: dict[str, object], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        world.run(world.file(world.tree(**{stage: change})))


def test_a_wrong_override_is_reported(world: World) -> None:
    with pytest.raises(ConfigError, match=r"stage cold: --set sft.epoch: .*mean sft.epochs"):
        world.run(world.file(), overrides=["cold.sft.epoch=3"])


def test_held_out_pairs_that_are_not_made_yet_are_read_later(world: World) -> None:
    world.rows("pairs", [{"prompt": "1 + 1 =", "chosen": " 2", "rejected": " 3"}])
    chosen = {"data": "mix", "inputs": world.source("pairs")}
    rows = {"rows": world.source("pairs"), "heldout": ["@chosen"]}
    reward = {"model": {"path": "@start"}, "reward_model": rows}
    *_, last, _ = dry_run(str(world.file(world.tree(chosen=chosen, reward=reward))), quiet=True)
    assert isinstance(last, Look)
    assert "@chosen is not there yet: stage chosen makes it" in last.later


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"made": {"model": "tiny", "hidden_size": 800_000_000}}, r"hidden_size: found 800000000"),
        ({"made": {"model": "tiny", "seed": 2**64 + 1}}, r"seed: found 18446744073709551617"),
        ({"made": {"model": "tiny", "seed": -1}}, r"seed: found -1"),
        ({"made": {"model": "tiny", "max_positions": 10**12}}, r"max_positions: found 1000000000000"),
        ({"made": {"data": "mix", "inputs": ["a.jsonl"], "seed": 2**63}}, r"seed: found 9223372036854775808"),
        ({"reason": {"model": {"path": "@cold@zzz"}}}, r"@cold@zzz; accepted: @cold, @cold@best"),
        ({"cold": {"run": 1}}, r"run: found 1; accepted: a section"),
        ({"cold": {"run": "directory"}}, r"run: found \"directory\"; accepted: a section"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_before_a_stage_is_looked_at(
    world: World, change: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError, match=told) as caught:
        list(dry_run(str(world.file(world.tree(**change)))))
    assert "\n" not in str(caught.value)


def test_a_file_is_no_folder_for_a_run_also_when_it_is_only_looked_at(world: World) -> None:
    file = world.rows("other", [{"a": 1}])
    with pytest.raises(RunError, match=r"--directory .*a file; accepted: a folder"):
        list(dry_run(str(world.file()), directory=file))
