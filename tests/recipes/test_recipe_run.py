"""Chains of stages: what is run, what is not run again, and what a killed one comes to."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from recipe_worlds import World

from assay.errors import RunError
from assay.recipes.manifest import RecipeManifest
from assay.recipes.run import run_recipe
from assay.report.loaded import load_run
from assay.run.directory import Run
from assay.run.metrics import is_timing
from assay.training.api import train


class Killed(BaseException):
    """Nothing that Assay catches."""


def learned(folder: Path) -> list[dict[str, Any]]:
    rows = load_run(folder).metrics
    return [{key: row[key] for key in row if not is_timing(key)} for row in rows]


def weights(run: Path | str) -> list[bytes]:
    return [path.read_bytes() for path in sorted(Path(run).rglob("model.safetensors"))]


def kill_at(step: int, patch: pytest.MonkeyPatch, run: str) -> None:
    """Let a run die once it has finished a step."""
    finish = Run.finish_step

    def dying(self: Run, update: Any) -> dict[str, float]:
        row = finish(self, update)
        if self.folder.name == run and self.step == step:
            raise Killed
        return row

    patch.setattr(Run, "finish_step", dying)


def test_each_stage_starts_from_what_it_names(world: World) -> None:
    told: list[str] = []
    result = world.run(world.file(), told)
    assert result.ended == "finished" and len(result.stages) == 3
    assert told == ["2/3  cold: sft from start", "3/3  reason: rl from cold"]
    folder = Path(result.folder)
    tree = world.tree()
    run = {"threads": 1, "directory": str(world.folder / "alone")}
    alone = {**tree["shared"], **tree["stage"]["reason"], "run": run}
    alone["model"] = {"path": str(folder / "cold")}
    assert learned(folder / "reason") == learned(Path(train(alone, quiet=True).run))
    facts = json.loads((folder / "manifest.json").read_text())
    assert facts["recipe"] == "two" and facts["scale"] == "tiny"
    assert [row["ended"] for row in facts["stages"]] == ["finished"] * 3
    assert facts["stages"][2]["inputs"].keys() >= {"@cold"}


@pytest.mark.parametrize(("stage", "step"), [("cold", 2), ("reason", 1), ("reason", 3)])
def test_a_killed_one_ends_as_one_that_was_never_killed(
    world: World, stage: str, step: int
) -> None:
    recipe = world.file()
    whole = Path(world.run(recipe).folder)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        kill_at(step, patch, stage)
        world.run(recipe)
    killed = whole.with_name("two-2")
    assert RecipeManifest.read(killed).rows[stage].ended != "finished"
    assert world.run(resume=killed).ended == "finished"
    assert "resumed" in load_run(killed / stage).events["kind"]
    for name in ("cold", "reason"):
        assert learned(killed / name) == learned(whole / name)
        assert weights(killed / name) == weights(whole / name) != []


def test_a_stage_with_a_changed_reward_goes_on_only_if_that_is_accepted(world: World) -> None:
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        kill_at(3, patch, "reason")
        world.run(world.file())
    folder = world.folder / "runs" / "two"
    file = folder / "reason" / "environment.json"
    facts = json.loads(file.read_text())
    (verifier,) = facts["verifiers"].values()
    verifier["hash"] = "0" * 64
    file.write_text(json.dumps(facts))
    with pytest.raises(RunError, match=r"the reward has changed .*--accept-changed-verifiers"):
        world.run(resume=folder)
    assert world.run(resume=folder, accept_changed_verifiers=True).ended == "finished"
    page = (folder / "reason" / "decision.md").read_text()
    assert "continued after step 2 with a changed reward: " in page


def test_what_has_not_changed_is_not_run_again(world: World) -> None:
    recipe = world.file()
    folder = Path(world.run(recipe, until="cold").folder)
    assert not (folder / "reason").exists()
    told: list[str] = []
    world.run(recipe, told, resume=folder)
    assert "its inputs have not changed" in told[0] and told[1].startswith("3/3")
    told.clear()
    world.run(recipe, told, resume=folder, overrides=["reason.rl.steps=1"])
    assert "cold: done" in told[0] and told[1] == "3/3  reason: rl from cold"
    assert load_run(folder / "reason-2").num_steps == 1, "what was there stays"
    told.clear()
    with (world.folder / "traces.jsonl").open("a") as file:
        file.write('{"prompt": "2 + 2 =", "completion": " 4"}\n')
    world.run(None, told, resume=folder)
    assert [one.split()[1] for one in told] == ["cold:", "reason:"], "and all that was made of it"
    told.clear()
    shutil.rmtree(folder / "reason-3")
    world.run(None, told, resume=folder)
    assert "cold: done" in told[0] and "rl from cold" in told[1]


def test_a_stage_that_fails_is_named_and_the_others_stay(world: World) -> None:
    recipe = world.file(world.tree(reason={"model": {"path": "@cold@7"}}))
    with pytest.raises(
        RunError, match=r"stage reason: .*cold@7; accepted.*; finished stages are kept.*--resume"
    ) as caught:
        world.run(recipe)
    folder = world.folder / "runs" / "two"
    assert RecipeManifest.read(folder).rows["cold"].finished and caught.value.exit_code == 2
    told: list[str] = []
    world.run(world.file(), told, resume=folder)
    assert "cold: done" in told[0] and "rl from cold" in told[1]


def test_a_stranger_s_recipe_is_not_run_unread(world: World) -> None:
    folder = Path(world.run(world.file(), until="start").folder)
    text = (folder / "recipe.toml").read_text().replace("two stages", "others")
    (folder / "recipe.toml").write_text(text)
    with pytest.raises(RunError, match="read it, then name it: assay recipe run"):
        world.run(resume=folder)


def spoilt(folder: Path, stage: str, **keys: Any) -> str:
    """Change a stage's row in a recipe's manifest; return the file's new text."""
    path = folder / "manifest.json"
    facts = json.loads(path.read_text())
    next(row for row in facts["stages"] if row["stage"] == stage).update(keys)
    path.write_text(json.dumps(facts))
    return path.read_text()


OUTSIDE = ("../victim", "../../victim", "..", ".", "/", "{victim}", "link", "link/rows.jsonl", "")


@pytest.mark.parametrize("output", OUTSIDE)
@pytest.mark.parametrize("stage", ["made", "cold"])
def test_a_manifest_that_names_a_place_outside_removes_nothing(
    world: World, stage: str, output: str
) -> None:
    tree = world.tree(made={"model": "tiny"})
    recipe = world.file(tree)
    folder = Path(world.run(recipe, until="made" if stage == "made" else "cold").folder)
    victims = [folder.parent / "victim", folder.parent.parent / "victim"]
    for victim in victims:
        victim.mkdir()
        (victim / "precious").write_text("mine")
    (folder / "link").symlink_to(victims[0])
    output = output.format(victim=victims[0])
    for ended in (None, "failed", "finished"):
        text = spoilt(folder, stage, output=output, ended=ended)
        with pytest.raises(
            RunError, match=rf"manifest\.json stage {stage} output: found .*no link"
        ):
            world.run(recipe, resume=folder)
        assert (folder / "manifest.json").read_text() == text
        assert [(victim / "precious").read_text() for victim in victims] == ["mine", "mine"]
        assert (folder / "recipe.toml").exists()


def test_remains_of_a_killed_stage_are_set_aside(world: World) -> None:
    recipe = world.file(world.tree(made={"model": "tiny"}))
    folder = Path(world.run(recipe, until="made").folder)
    for number in (1, 2):
        (folder / "made" / "mine").write_text(str(number))
        spoilt(folder, "made", ended=None)
        world.run(recipe, resume=folder, until="made")
        assert (folder / "made" / "model.safetensors").exists()
    assert (folder / "unfinished-made" / "mine").read_text() == "1"
    assert (folder / "unfinished-made-2" / "mine").read_text() == "2"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[]", "a damaged file"),
        ("{", "a damaged file"),
        ('{"stages": 1}', "stages: found 1; accepted: a list"),
        ('{"stages": [1]}', r"stages\.0: found 1; accepted: an object"),
        ('{"stages": [{"stage": []}]}', r"stages\.0\.stage: found \[\]; accepted: text"),
        ('{"stages": [{"stage": "a"}]}', r"stages\.0\.kind: found nothing"),
        ('{"recipe": 7}', "recipe: found 7; accepted: text"),
        ('{"stages": [{"stage": "a", "kind": "tiny", "settings": "", "inputs": 3, "output": "a"}]}',
         r"inputs: found 3; accepted: an object"),
        ('{"stages": [{"stage": "a", "kind": "tiny", "settings": "", "inputs": {}, "output": "a",'
         ' "seconds": NaN}]}', r"seconds: found nan; accepted: a number"),
        ('{"stages": [{"stage": "a", "kind": "tiny", "settings": "", "inputs": {}, "output": "a",'
         ' "ended": 1}]}', r"ended: found 1; accepted: text"),
        ('{"stages": [{"stage": "a", "kind": "tiny", "settings": "", "inputs": {}, "output": "a",'
         ' "seconds": 1e999}]}', r"seconds: found inf; accepted: a number"),
    ],
)  # fmt: skip
def test_a_damaged_manifest_is_told_in_one_line(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(RunError, match=rf"manifest\.json.*{told}") as caught:
        RecipeManifest.read(tmp_path)
    assert "\n" not in str(caught.value)


def test_only_a_recipe_s_directory_is_gone_on_with(world: World) -> None:
    """One of another run would be filled with the stages of this recipe."""
    other = world.folder / "other"
    other.mkdir()
    (other / "config.toml").write_text("")
    with pytest.raises(RunError, match=r"found neither recipe\.toml nor manifest\.json in it"):
        run_recipe(str(world.file()), resume=other)
    assert [one.name for one in other.iterdir()] == ["config.toml"]
