"""Runs with a thinking budget: what is logged, learned and resumed, and what the commands show and
refuse."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from train_killer import fingerprint, thinking
from train_worlds import World, rows_of

import assay
from assay.cli import main
from assay.errors import ConfigError
from assay.report.report import write_report
from assay.training import rl
from assay.training.api import train

STEPS = 4
BUDGET, STOP = 8, "!}"


def tree_of(world: World, name: str, **sections: Any) -> dict[str, Any]:
    tree = thinking(world.tree(rl={"steps": STEPS}, run={"name": name}, **sections))
    tree["sampling"].pop("stop")
    return tree


def rollouts_of(run: Path | str) -> list[dict[str, Any]]:
    shards = sorted((Path(run) / "rollouts").glob("*"))
    return [row for shard in shards for row in pq.ParquetFile(shard).read().to_pylist()]


class Killed(BaseException):
    """What a SIGKILL is to a test in one process."""


def test_a_run_goes_on_bit_by_bit_from_its_log(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed behind the log of a step, whose completions are replayed with what was given."""
    whole = Path(train(tree_of(world, "whole"), quiet=True).run)
    plain, seen = rl.compute_advantages, []

    def dies(*rest: Any) -> Any:
        seen.append(rest)
        if len(seen) == 3:
            raise Killed
        return plain(*rest)

    with monkeypatch.context() as patch:
        patch.setattr(rl, "compute_advantages", dies)
        with pytest.raises(Killed):
            train(tree_of(world, "killed"), quiet=True)
    killed = world.folder / "runs" / "killed"
    train(resume=killed, quiet=True)
    one, other = fingerprint(whole), fingerprint(killed)
    assert one.keys() == other.keys()
    assert [name for name in one if one[name] != other[name]] == []

    rows = rollouts_of(killed)
    stopped = [row for row in rows if not all(row["sampled"])]
    assert stopped and len(rows) == STEPS * 8
    for row in stopped:
        sampled = np.array(row["sampled"])
        assert np.array(row["tokens"])[~sampled].tolist()[-2:] == [*STOP.encode()]
        assert np.flatnonzero(~sampled)[-1] < BUDGET and STOP in row["text"]
        for name in ("behavior_logprobs", "model_logprobs", "advantages"):
            assert not np.array(row[name])[~sampled].any(), name
        assert "think_budget" in row["sampling"]
    metrics = rows_of(killed, "metrics")
    given = [row for row in metrics if "length/injected" in row]
    assert given and all(0 < row["length/injected"] <= 1 for row in given)
    assert all(
        row["tokens/trained"] <= row["tokens/generated"] - row["tokens/injected"] for row in given
    )
    assert all(row["mismatch/mean"] < 1e-4 for row in metrics)
    assert "of them injected" in write_report(killed).read_text(encoding="utf-8")
    shown = assay.load_run(killed).rollouts()
    assert sum(shown["num_injected"]) == sum(row.get("tokens/injected", 0) for row in metrics)


def how_of(world: World) -> list[str]:
    """What `thinking` sets, as overrides."""
    control = ["sampling.think_stop_text=!{close}", "sampling.max_tokens=12"]
    data = ["data.think=opened", "data.think_open={", "data.think_close=}"]
    return [
        *control,
        *data,
        "data.verifier=train_worlds:few_marks",
        f"run.directory={world.folder}",
    ]


def test_sample_and_evaluate_hold_to_a_budget(world: World) -> None:
    model, how = world.folder / "model", {"overrides": how_of(world), "quiet": True}
    free = assay.sample(model, "1 + 1 =", answer="2", num_samples=6, **how)
    held = assay.sample(model, "1 + 1 =", answer="2", num_samples=6, think_budget=6, **how)
    assert not any(one["injected"] for one in free.samples)
    assert any(one["injected"] == 2 for one in held.samples)
    assert "(2 of them injected)" in str(held) and "injected" not in str(free)
    found = assay.evaluate(
        model, [{"question": "1 + 1 =", "answer": "2"}], num_samples=4, temperature=1.0, effort="low",
        **{**how, "overrides": [*how_of(world), "sampling.efforts.low=6"]},
    )  # fmt: skip
    assert found.num_completions == 4


def test_an_effort_may_be_a_line_of_the_prompt(world: World) -> None:
    model, how = world.folder / "model", {"overrides": how_of(world), "quiet": True}
    how["overrides"] += ["sampling.efforts.low=Be brief.", "sampling.efforts.high=10"]
    rows = [{"question": "1 + 1 =", "answer": "2", **own} for own in ({}, {"effort": "high"})]
    both = assay.sample(
        model, problems=rows, max_problems=2, effort="low", think_budget=6, num_samples=6, **how
    ).samples
    lines = ["Be brief." in one["prompt"] for one in both]
    assert lines == [True] * 6 + [False] * 6, "the second row has an effort of its own"
    stops = [{one["completion"].find(STOP) for one in part} - {-1} for part in (both[:6], both[6:])]
    assert max(stops[0]) == 4 and max(stops[1]) == 8, "6 and 10 tokens, with the text that stops"


def test_a_budget_of_a_command_takes_the_place_of_the_runs_and_leaves_its_line(
    world: World,
) -> None:
    tree = tree_of(world, "lined")
    del tree["sampling"]["think_budget"], tree["sampling"]["min_think"]
    tree["sampling"] |= {"effort": "low", "efforts": {"low": "Be brief.", "high": 8}}
    run = train(tree, quiet=True).run
    assert all("Be brief." in row["prompt"] for row in rollouts_of(run))
    how = {"answer": "2", "num_samples": 6, "quiet": True}
    for asked, line, given in (
        ({"think_budget": 6}, True, True),
        ({"effort": "high"}, False, True),
        ({}, True, False),
    ):
        samples = assay.sample(run, "1 + 1 =", **asked, **how).samples
        assert all(("Be brief." in one["prompt"]) == line for one in samples)
        assert any(one["injected"] for one in samples) == given


def test_a_row_whose_budget_cannot_be_is_refused_before_anything_is_sampled(world: World) -> None:
    problem = {"question": "1 + 1 =", "answer": "2", "effort": "low"}
    how = {"overrides": how_of(world), "quiet": True}
    for level, words in (
        (12, r"effort: found 12; accepted: less than"),
        (1, "found 1; accepted: at least 2"),
    ):
        how["overrides"] = [*how_of(world), f"sampling.efforts.low={level}"]
        with pytest.raises(ConfigError, match=words):
            assay.sample(world.folder / "model", problems=[problem], **how)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--think-budget", "1"], "sampling.think_budget: found 1; accepted: at least 2, the number of tokens"),
        (["--think-budget", "12"], "think_budget: found 12; accepted: less than sampling.max_tokens"),
        (["--effort", "most"], 'effort: found "most"; accepted: a name of sampling.efforts: low'),
        (["--think-budget", "6", "--set", "data.think=off"], "found 6, but no prompt has a think"),
        (["--think-budget", "6", "--effort", "low"], 'effort: found "low"; accepted: none with'),
        (["--set", "sampling.min_think=12"], "min_think: found 12; accepted: less than"),
        (["--set", "sampling.think_stop_text=x"], "accepted: text that holds {close}"),
        (["--set", "sampling.min_think=4", "--set", "data.think=empty"], "found 4, but no prompt"),
    ],
)  # fmt: skip
def test_impossible_settings_are_one_line(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    given: list[str],
    words: str,
) -> None:
    settings = [part for one in how_of(world) for part in ("--set", one)]
    arguments = ["sample", str(world.folder / "model"), "--prompt", "1 + 1 =", *settings, *given]
    monkeypatch.setattr(sys, "argv", ["assay", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    error = capfd.readouterr().err
    assert end.value.code == 2 and words in error, error
    assert len(error.splitlines()) == 1


def test_a_run_without_thinking_is_refused_before_it_is_made(world: World) -> None:
    tree = tree_of(world, "off")
    tree["data"] |= {"think": "off"}
    with pytest.raises(ConfigError, match=r"sampling\.think_budget: found 8, but no prompt"):
        train(tree, quiet=True)
    assert not (world.folder / "runs" / "off").exists()
