"""A recipe's file: order, references, scales and overrides, and what is wrong with one."""

from __future__ import annotations

from pathlib import Path

import pytest

from assay.errors import ConfigError
from assay.recipes.file import built_in, find_recipe, read_recipe

WHOLE = """
about = "three stages"
[shared.data]
template = "base"
think = "free"
[stage.start]
model = "tiny"
[stage.cold]
model.path = "@start"
data.think = "always"
sft.traces = ["rows.jsonl"]
[stage.reason]
model.path = "@cold@best"
rl.steps = 2
data.train = ["@cold", "gym:chain_sum"]
[stage.chosen]
data = "select"
inputs = ["@reason"]
[scale.small.shared.data]
template = "chat"
[scale.small.stage.reason.rl]
steps = 200
[scale.real.stage.cold]
model = "Qwen/Qwen3-0.6B-Base"
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "some.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_shared_sections_are_merged_under_training_stages(tmp_path: Path) -> None:
    recipe = read_recipe(written(tmp_path, WHOLE))
    assert list(recipe.stages) == ["start", "cold", "reason", "chosen"]
    assert [one.kind for one in recipe.stages.values()] == ["model", "training", "training", "data"]
    assert recipe.stages["cold"].tree["data"] == {"template": "base", "think": "always"}
    assert recipe.stages["chosen"].tree == {"data": "select", "inputs": ["@reason"]}
    assert recipe.stages["reason"].uses == ["cold"]


def test_references_become_what_stages_made(tmp_path: Path) -> None:
    reason = read_recipe(written(tmp_path, WHOLE)).stages["reason"].resolved({"cold": "runs/x"})
    assert reason["model"]["path"] == "runs/x@best"
    assert reason["data"]["train"] == ["runs/x", "gym:chain_sum"]
    pairs = WHOLE.replace('"@reason"', '"run:@reason"')
    chosen = read_recipe(written(tmp_path, pairs)).stages["chosen"].resolved({"reason": "r"})
    assert chosen["inputs"] == ["run:r"]


def test_a_scale_changes_keys_and_replaces_a_stage_by_a_model(tmp_path: Path) -> None:
    path = written(tmp_path, WHOLE)
    small = read_recipe(path, "small")
    assert small.stages["reason"].tree["rl"]["steps"] == 200
    assert small.stages["reason"].tree["data"]["template"] == "chat"
    real = read_recipe(path, "real")
    assert real.stages["cold"].tree == {"model": "Qwen/Qwen3-0.6B-Base"}
    assert real.scales == ["tiny", "small", "real"] and read_recipe(path).scale == "tiny"


def test_a_scale_replaces_a_data_transform_by_another_one(tmp_path: Path) -> None:
    change = '\n[scale.large.stage.chosen]\ndata = "mix"\nrows = 4\ninputs = ["@reason"]\n'
    change += '[scale.more.stage.chosen]\ndata = "select"\nk = 2\n'
    path = written(tmp_path, WHOLE + change)
    replaced = {"data": "mix", "rows": 4, "inputs": ["@reason"]}
    assert read_recipe(path, "large").stages["chosen"].tree == replaced
    merged = {"data": "select", "inputs": ["@reason"], "k": 2}
    assert read_recipe(path, "more").stages["chosen"].tree == merged


def test_overrides_change_one_stage_or_all(tmp_path: Path) -> None:
    changes = ["reason.rl.steps=7", "shared.data.template=chat", "cold.model=runs/mine@best"]
    recipe = read_recipe(written(tmp_path, WHOLE), None, changes)
    assert recipe.stages["reason"].tree["rl"]["steps"] == 7
    assert recipe.stages["reason"].tree["data"]["template"] == "chat"
    assert recipe.stages["cold"].tree == {"model": "runs/mine@best"}, "one that is there"


@pytest.mark.parametrize(
    ("before", "after", "complaint"),
    [
        (WHOLE, "", r"some.toml: found no stage; accepted: a table \[stage.NAME\]"),
        ("about", "abuot", r"some.toml:2 abuot: unknown key; did you mean about\?"),
        ('"three stages"', "3", r"some.toml:2 about: found 3; accepted: text"),
        (
            "@start",
            "@strat",
            r"some.toml:9 stage.cold.model.path: found @strat, which no stage.*st",
        ),
        ("@start", "@reason", r"some.toml:9 .*found @reason, a later stage; .*move \[stage.reason"),
        ("@start", "@cold", r"some.toml:9 .*found @cold, the stage itself"),
        ('model = "tiny"', 'model = "@cold"', r"found @cold, a later stage; accepted: no @NAME"),
        ("[stage.cold]", "[stage.start]", r"some.toml:8 not TOML: .*start"),
        ("[stage.cold]", "[stage.shared]", r'some.toml:8 stage.shared: found "shared"'),
        ("[stage.start]\nmodel", "[stage]\nx", r'some.toml:7 stage.x: found "tiny"; .* a table'),
        ("scale.small.stage.reason", "scale.small.stage.raeson", r'"raeson".*mean reason\?'),
        ("scale.small.shared", "scale.small.shred", r"accepted: tables .*small.shared"),
    ],
)
def test_errors_of_a_file(tmp_path: Path, before: str, after: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint) as caught:
        read_recipe(written(tmp_path, WHOLE.replace(before, after)), "small")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ("reson.rl.steps=3", r'--set reson.rl.steps: found "reson"; .*mean reason\?'),
        ("rl.steps=3", r'found "rl"; accepted: a stage of the recipe: start, cold'),
        ("reason=3", r'--set: found "reason=3"; accepted: STAGE.KEY=VALUE'),
    ],
)
def test_errors_of_an_override(tmp_path: Path, change: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        read_recipe(written(tmp_path, WHOLE), None, [change])


def test_unknown_names_are_reported_with_suggestions(tmp_path: Path) -> None:
    recipe = read_recipe(written(tmp_path, WHOLE))
    with pytest.raises(ConfigError, match=r'--until: found "colt"; .* did you mean cold\?'):
        recipe.until("colt")
    assert [one.name for one in recipe.until("cold")] == ["start", "cold"]
    with pytest.raises(ConfigError, match=r'--scale: found "smal"; .* did you mean small\?'):
        read_recipe(written(tmp_path, WHOLE), "smal")
    with pytest.raises(ConfigError, match=r'recipe: found "r1_zeor"; .* did you mean r1_zero\?'):
        find_recipe("r1_zeor")
    with pytest.raises(ConfigError, match=r"nowhere.toml: cannot be read \(No such file"):
        read_recipe(find_recipe("nowhere.toml"))


@pytest.mark.parametrize("name", built_in())
def test_built_in_recipes_are_read_at_every_scale(name: str) -> None:
    recipe = read_recipe(built_in()[name])
    assert recipe.about and recipe.paper
    for scale in recipe.scales:
        assert read_recipe(built_in()[name], scale).stages
