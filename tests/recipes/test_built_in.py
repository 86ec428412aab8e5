"""The recipes that ship with Assay, and the one of docs/recipes.md, run from beginning to end."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from assay import config
from assay.errors import ConfigError
from assay.recipes.check import check_settings
from assay.recipes.file import built_in, read_recipe
from assay.recipes.manifest import RecipeManifest
from assay.recipes.run import planned_outputs, run_recipe

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "recipes.md"
EXAMPLE = ROOT / "examples" / "recipe"
SHORT = {
    "rl": ["rl.steps=2", "rl.num_prompts=2", "rl.group_size=2", "critic.warmup_steps=0"],
    "sft": ["sft.epochs=0.0005"],
    "distill": ["distill.steps=2", "distill.num_prompts=2", "distill.epochs=0.05"],
    "pretrain": ["pretrain.epochs=0.002"],
    "reward_model": ["reward_model.epochs=0.05"],
    "select": ["keep=any", "filters=[]"],
    "collect": ["max_problems=4", "max_tokens=16"],
    "rewrite": ["verifier=recipe_worlds:anything"],
    "pairs": ['inputs=["recipe_worlds:ranked"]'],
    "label_difficulty": ["max_problems=4"],
    "label_steps": ["max_problems=4", "max_tokens=16"],
    "filter": ["min_pass_rate=0.0", "max_pass_rate=1.0"],
}
"""What makes two steps of each kind of stage; an untrained model solves nothing, and writes bytes
that are no text, each of which takes three as a row."""


def short_changes(name: str) -> list[str]:
    """Return the overrides with which every stage of a recipe takes a few steps."""
    changes = ["shared.evaluation.max_problems=2"]
    for stage in read_recipe(built_in()[name]).stages.values():
        kinds = [stage.tree["data"]] if stage.kind == "data" else stage.tree
        short = [change for kind in kinds for change in SHORT.get(kind, ())]
        changes += [f"{stage.name}.{change}" for change in short]
    return changes


def test_the_recipe_of_the_page_runs(
    tmp_path: Path, one_thread: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page shows the example's file word for word; two steps of it, where its rows lie."""
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    path = EXAMPLE / "backwards.toml"
    assert text == path.read_text(encoding="utf-8")
    for row in ("traces.jsonl", "problems.jsonl"):
        first = (EXAMPLE / row).read_text(encoding="utf-8").splitlines()[0]
        assert f"    {first}\n" in PAGE.read_text(encoding="utf-8")
    assert read_recipe(path, "small").stages["reason"].tree["rl"]["steps"] == 200
    monkeypatch.chdir(EXAMPLE)
    told: list[str] = []
    changes = ["cold.sft.epochs=0.6", "reason.rl.steps=2", "shared.evaluation.max_problems=2"]
    where = tmp_path / "runs"
    result = run_recipe(str(path), overrides=changes, directory=where, quiet=True, say=told.append)
    assert result.ended == "finished"
    assert told[1:] == [
        "2/3  Cold start: supervised on solutions",
        "3/3  RL: sample groups, verify, reinforce",
    ]
    report = (where / "backwards" / "report.md").read_text(encoding="utf-8")
    assert "| cold | sft |" in report and "| reason | rl |" in report


def test_the_mixture_example_trains_on_its_five_parts(
    tmp_path: Path, one_thread: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "examples" / "mixture" / "mixture.toml").read_text(encoding="utf-8")
    (tmp_path / "mixture.toml").write_text(re.sub(r"size=\d+", "size=6", text), encoding="utf-8")
    changes = ["reason.rl.steps=1", "reason.rl.num_prompts=9", "reason.rl.group_size=2"]
    changes += ["reason.data.mixture.instructions.group_size=2"]
    result = run_recipe("mixture.toml", overrides=changes, quiet=True, say=lambda _: None)
    assert result.ended == "finished"
    (metrics,) = (tmp_path / "runs" / "mixture").rglob("reason/metrics.jsonl")
    last = json.loads(metrics.read_text(encoding="utf-8").splitlines()[-1])
    shares = {key: value for key, value in last.items() if key.endswith(".share")}
    assert shares.pop("mixture/instructions.share") == pytest.approx(1 / 9)
    assert list(shares.values()) == [pytest.approx(2 / 9)] * 4


def test_a_recipe_that_is_given_as_a_configuration_is_told_so() -> None:
    path = EXAMPLE / "backwards.toml"
    with pytest.raises(ConfigError) as told:
        config.load(path)
    expected = f"{path}: found a recipe: [stage]; accepted: the settings of one run; run it with: "
    assert str(told.value) == f"{expected}assay recipe run {path}"


def test_every_recipe_has_a_page_that_is_listed() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for name in {*built_in()} - {"demo"}:
        assert f"(recipes/{name}.md)" in text and (PAGE.parent / "recipes" / f"{name}.md").is_file()


@pytest.mark.parametrize("name", built_in())
def test_keys_are_right_at_every_scale(name: str) -> None:
    for scale in read_recipe(built_in()[name]).scales:
        stages = list(read_recipe(built_in()[name], scale).stages.values())
        check_settings(stages, planned_outputs(stages, RecipeManifest(Path("runs")), {}))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", built_in())
def test_two_steps_of_every_stage(name: str, tmp_path: Path, one_thread: None) -> None:
    result = run_recipe(name, directory=tmp_path, overrides=short_changes(name), quiet=True)
    assert result.ended == "finished" and all(row.finished for row in result.stages)
    assert (tmp_path / name / "report.html").is_file()
    again: list[str] = []
    run_recipe(resume=tmp_path / name, quiet=True, say=again.append)
    assert all("its inputs have not changed" in one for one in again)
