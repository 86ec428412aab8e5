"""`assay frontier`: a point for each budget and mode, in a table, a JSON file and a figure."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from train_worlds import World

from assay.cli import main
from assay.errors import ConfigError, MissingExtra
from assay.evaluation import frontier as module
from assay.evaluation.frontier import Frontier, Point, draw, frontier

ROWS = [{"question": f"{n} + 1 =", "answer": f"{n + 1}"} for n in range(4)]
HOW: dict[str, Any] = {
    "verifier": "train_worlds:few_marks",
    "overrides": [
        *("sampling.think_stop_text=!{close}", "sampling.max_tokens=16", "sampling.efforts.low=4"),
        *("data.think=opened", "data.think_open={", "data.think_close=}"),
    ],
    "quiet": True,
}


def test_a_point_for_each_budget_and_mode(world: World) -> None:
    pytest.importorskip("matplotlib")
    out = world.folder / "frontier.json"
    how: dict[str, Any] = {**HOW, "budgets": ["low", 10, "none"], "modes": ["opened", "empty"]}
    found = frontier(world.folder / "model", ROWS, out=out, num_samples=2, temperature=1.0, **how)
    assert [(one.mode, one.name, one.budget) for one in found.points] == [
        ("opened", "low", 4),
        ("opened", "10", 10),
        ("opened", "none", None),
        ("empty", "none", None),
    ]
    shares = [one.injected for one in found.points]
    assert shares[0] >= shares[1] > 0 == shares[2] == shares[3]
    for one in found.points:
        assert one.num_problems == 4 and 0 < one.tokens <= 16
        assert one.accuracy is not None and 0 <= one.accuracy <= 1
    assert json.loads(out.read_text(encoding="utf-8")) == found.as_dict()
    figure = out.with_suffix(".svg").read_text(encoding="utf-8")
    assert all(
        word in figure for word in ("think opened", "think empty", "low", "generated tokens")
    )
    draw(found, again := world.folder / "again.svg")
    assert again.read_text(encoding="utf-8") == figure
    table = str(found)
    assert "opened" in table and "low" in table and "4 problems, 2 samples of each" in table


def test_a_name_that_is_a_line_is_shown_in_place_of_the_rows_own(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[tuple[set[str], int | None]] = []
    plain = module.evaluate

    def see(generator: Any, verifiers: Any, rows: Any, sampling: Any, *rest: Any) -> Any:
        words = {generator.render(row).text.partition("=")[2].strip(" \n{") for row in rows}
        shown.append((words, sampling.budget(rows[0].effort)))
        return plain(generator, verifiers, rows, sampling, *rest)

    monkeypatch.setattr(module, "evaluate", see)
    lines = ["sampling.efforts.most=Think on.", "sampling.efforts.least=Be brief."]
    how = {**HOW, "overrides": [*HOW["overrides"], *lines]}
    rows = [
        {**row, "effort": effort} for row, effort in zip(ROWS, ["least", "low"] * 2, strict=True)
    ]
    found = frontier(world.folder / "model", rows, budgets=["most", "low", 6, "none"], **how)
    assert [(one.name, one.budget) for one in found.points] == [
        ("most", None), ("low", 4), ("6", 6), ("none", None)
    ]  # fmt: skip
    own = {"Be brief.", ""}
    assert shown == [({"Think on."}, None), ({""}, 4), (own, 6), (own, None)]


def test_by_default_parts_of_the_longest_completion(world: World) -> None:
    found = frontier(world.folder / "model", ROWS, **HOW)
    assert [one.budget for one in found.points] == [2, 4, 8, None]
    assert "mode" not in str(found)


def test_the_figure_and_table_hold_to_the_numbers() -> None:
    point = Point(None, 64, "64", 0.5, 0.1, 60.0, 2.0, 0.25, 0.0, 9)
    table = str(Frontier("m", 1, 0.0, [point, point]))
    assert "50.0% ± 10.0%" in table and "60.0 ± 2.0" in table and "25%" in table


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--budget", "some"], "--budget: found 'some'; accepted: a number of tokens, or none, low"),
        (["--budget", "0"], "--budget: found '0'; accepted: a number of tokens"),
        (["--budget", "16"], "think_budget: found 16; accepted: less than sampling.max_tokens"),
        (["--budget", "8", "--budget", "1"], "think_budget: found 1; accepted: at least 2"),
        (["--mode", "loud"], "--mode: found 'loud'; accepted: off, free, opened, empty"),
        (["--think-budget", "8"], "found a budget that is not in the list; give each as --budget"),
        (["--budget", "8", "--set", "data.think=off"], "found 8, but no prompt has a think block"),
        (["--out", "no/such/folder.json"], "--out"),
    ],
)  # fmt: skip
def test_impossible_settings_are_one_line_before_sampling(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    given: list[str],
    words: str,
) -> None:
    monkeypatch.setattr(module, "_measure", None)  # not to be called
    problems = world.write_rows("asked.jsonl", ROWS)
    settings = [part for one in HOW["overrides"] for part in ("--set", one)]
    arguments = ["frontier", str(world.folder / "model"), "--problems", str(problems)]
    arguments += ["--verifier", HOW["verifier"], *settings, *given]
    monkeypatch.setattr(sys, "argv", ["assay", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    error = capfd.readouterr().err
    assert end.value.code == 2 and words in error, error
    assert len(error.splitlines()) == 1


def test_the_command_prints_its_points(
    world: World, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    problems = world.write_rows("asked.jsonl", ROWS)
    settings = [part for one in HOW["overrides"] for part in ("--set", one)]
    arguments = ["frontier", str(world.folder / "model"), "--problems", str(problems), "--json"]
    arguments += ["--verifier", HOW["verifier"], "--budget", "6", *settings]
    monkeypatch.setattr(sys, "argv", ["assay", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    (point,) = json.loads(capfd.readouterr().out)["points"]
    assert end.value.code == 0 and point["budget"] == 6


def test_without_the_library_the_extra_is_named(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"assay-rl\[figures\]"):
        frontier(world.folder / "model", ROWS, out=tmp_path / "f.json", **HOW)


def test_a_name_that_is_no_effort(world: World) -> None:
    with pytest.raises(ConfigError, match="found 'most'"):
        frontier(world.folder / "model", ROWS, budgets=["most"], **HOW)
