"""Mixtures: each part's own verifier, weight, group size and limit, and draws that survive a kill."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from test_combinations import completions_of
from train_worlds import World, rows_of

from assay.config import load
from assay.errors import ConfigError, UserError
from assay.report.charts import make_charts
from assay.report.loaded import load_run
from assay.session import assemble
from assay.session.mixture_check import PartCheck
from assay.training.api import evaluate, train

EVEN, ODD = "train_worlds:even_text", "train_worlds:few_marks"


def rows(start: int, count: int, **keys: Any) -> list[dict[str, Any]]:
    return [
        {"prompt": f"{n} + 1 =", "answer": str(n + 1), **keys} for n in range(start, start + count)
    ]


@pytest.fixture
def sources(world: World) -> dict[str, list[str]]:
    """Sources of two parts and of a third that is held out."""
    sets = {"short": 10, "long": 200, "short_heldout": 400, "long_heldout": 500, "far": 600}
    return {
        name: [str(world.write_rows(f"{name}.jsonl", rows(start, 7)))]
        for name, start in sets.items()
    }


@pytest.fixture
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where a model is loaded."""

    def load_model(*_: Any) -> None:
        raise AssertionError("a model is loaded")

    monkeypatch.setattr(assemble, "load_model", load_model)


def mixture_tree(world: World, sources: dict[str, list[str]], **sections: Any) -> dict[str, Any]:
    """Two parts with three quarters and a quarter of the prompts, and one that is held out."""
    short = {"train": sources["short"], "heldout": sources["short_heldout"], "weight": 3.0}
    long = {"train": sources["long"], "heldout": sources["long_heldout"]}
    parts = {
        "short": {**short, "verifier": EVEN, "group_size": 4, "max_tokens": 6},
        "long": {**long, "verifier": ODD, "group_size": 2, "max_tokens": 12},
        "far": {"heldout": sources["far"], "weight": 0.0, "verifier": EVEN, "max_tokens": 4},
    }
    tree = world.tree(**{"rl": {"steps": 4, "num_prompts": 4}, **sections})
    tree["data"] = {"mixture": parts}
    return tree


def test_parts_have_their_own_verifier_share_group_size_and_limit(
    world: World, sources: dict[str, list[str]]
) -> None:
    run = Path(train(world.config_file(mixture_tree(world, sources)), quiet=True).run)
    found = completions_of(run)
    for name, verifier, size, limit in (("short", EVEN, 4, 6), ("long", ODD, 2, 12)):
        own = [row for row in found if row["tags"] == [name]]
        assert {row["verifier"].partition("@")[0] for row in own} == {verifier}
        assert len(own) == size * len({row["group_id"] for row in own})
        assert max(len(row["tokens"]) for row in own) <= limit
        lengths = {len(row["tokens"]) for row in own if row["finish_reason"] == "length"}
        assert lengths <= {limit}
    groups = {(row["step"], row["group_id"], row["tags"][0]) for row in found}
    for step in range(1, 5):
        names = sorted(name for at, _, name in groups if at == step)
        assert names == ["long", "short", "short", "short"]
    last = rows_of(run, "metrics")[-1]
    assert last["mixture/short.share"] == 0.75 and last["mixture/long.share"] == 0.25
    own = [row["reward"] for row in found if row["step"] == 4 and row["tags"] == ["long"]]
    assert last["mixture/long.reward"] == pytest.approx(sum(own) / len(own))
    evaluation = rows_of(run, "evaluations")[-1]
    assert evaluation["eval/by_tag"].keys() == {"short", "long", "far"}
    assert not any(row["tags"] == ["far"] for row in found)


def test_report_draws_a_curve_for_each_part(world: World, sources: dict[str, list[str]]) -> None:
    run = Path(train(world.config_file(mixture_tree(world, sources)), quiet=True).run)
    drawn = {chart.title: chart for chart in make_charts(load_run(run))}
    names = [
        {trace["name"] for trace in drawn[title].traces}
        for title in ("Parts of the mixture", "Held-out accuracy by tag")
    ]
    assert {"short", "long"} <= names[0] and {"short", "long", "far"} <= names[1]
    assert not any("far" in name for name in names[0])


def test_evaluation_of_the_run_samples_each_part_with_its_limit(
    world: World, sources: dict[str, list[str]]
) -> None:
    run = train(world.config_file(mixture_tree(world, sources, rl={"steps": 1})), quiet=True).run
    tagged = [row | {"tags": [name]} for name in ("short", "long") for row in rows(700, 2)]
    named = [row | {"id": f"{n}"} for n, row in enumerate(tagged)]
    for max_tokens, limits in ((None, [6, 6, 12, 12]), (3, [3] * 4)):
        out = world.folder / "out.jsonl"
        found = evaluate(run, named, temperature=1.0, out=out, quiet=True, max_tokens=max_tokens)
        assert found.num_problems == 4
        lines = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
        assert all(one["tokens"] <= limit for one, limit in zip(lines, limits, strict=True))
        cut = [limit for one, limit in zip(lines, limits, strict=True) if one["tokens"] == limit]
        assert cut, "some completion reaches its limit"


def test_run_copy_of_the_configuration_loads_unchanged(
    world: World, sources: dict[str, list[str]]
) -> None:
    path = world.config_file(mixture_tree(world, sources))
    config = load(path)
    copy = world.folder / "copy.toml"
    copy.write_text(tomli_w.dumps(config.model_dump(mode="json", exclude_none=True)))
    assert load(copy) == config
    assert config.data.train == (*sources["short"], *sources["long"])
    assert config.data.verifier_by_tag == {"short": EVEN, "long": ODD, "far": EVEN}


@pytest.mark.parametrize(
    ("part", "change", "complaint"),
    [
        ("short", {"wait": 1}, "data.mixture.short.wait: unknown key"),
        ("short", {"weight": 0.0}, "data.mixture.short.train: found"),
        (
            "short",
            {"group_size": 1},
            "data.mixture.short.group_size: found 1; accepted: at least 2",
        ),
        (
            "short",
            {"kl_factor": 0.5},
            "data.mixture.short.kl_factor: found 0.5 with rloo, which has no KL to a reference; accepted: 1",
        ),
        ("short", {"think_budget": 9}, "data.mixture.short.think_budget: found 9; accepted: less"),
        ("far", {"heldout": []}, "data.mixture.far: found weight 0 and no held-out row"),
        ("short", {"train": []}, "data.mixture.short: found no training row with this tag"),
        ("bad name", {}, 'data.mixture: found the key "bad name"'),
    ],
)
def test_impossible_settings_are_refused_before_a_model_is_loaded(
    world: World,
    sources: dict[str, list[str]],
    part: str,
    change: dict[str, Any],
    complaint: str,
    no_model: None,
) -> None:
    tree = mixture_tree(world, sources)
    tree["algorithm"] = {"name": "rloo"}
    parts = tree["data"]["mixture"]
    parts[part] = {**parts.get(part, {}), **change}
    with pytest.raises(UserError) as error:
        train(world.config_file(tree), quiet=True)
    text = str(error.value)
    assert complaint.partition(": ")[0] in text and complaint.partition(": ")[2] in text
    assert "\n" not in text


def test_row_of_no_part_is_refused_with_its_place(
    world: World, sources: dict[str, list[str]], no_model: None
) -> None:
    tree = mixture_tree(world, sources)
    stray = world.write_rows("stray.jsonl", rows(900, 2, tags=["poems"]))
    tree["data"]["train"] = [str(stray)]
    with pytest.raises(UserError, match=r"stray.jsonl:1.* tags: found poems; accepted: a tag of"):
        train(world.config_file(tree), quiet=True)


def test_part_whose_source_an_earlier_stage_will_make_may_lack_rows(
    world: World, sources: dict[str, list[str]]
) -> None:
    """A recipe is checked before its first stage, without the sources that do not exist yet."""
    config = load(world.config_file(mixture_tree(world, sources)))
    with pytest.raises(ConfigError, match="short: found no training row with this tag"):
        PartCheck(config).finish([])
    later = config.data.model_copy(update={"train": (), "heldout": ()})
    config = config.model_copy(update={"data": later})
    PartCheck(config).finish([])
    PartCheck(config, trains=False).finish([])


def test_limited_evaluation_may_leave_out_a_held_out_part(
    world: World, sources: dict[str, list[str]]
) -> None:
    tree = mixture_tree(world, sources)
    with pytest.raises(ConfigError, match="far: found weight 0 and no held-out row"):
        PartCheck(load(world.config_file(tree)), trains=False).finish([])
    tree["evaluation"] = {"max_problems": 2}
    PartCheck(load(world.config_file(tree)), trains=False).finish([])
