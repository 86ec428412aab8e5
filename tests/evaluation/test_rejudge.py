"""Judging a run's recorded completions again: what flips, which way, and what is no longer there."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from train_worlds import REWARD, World

from assay.cli import main
from assay.curation.base import run_stage
from assay.errors import RunError
from assay.evaluation.rejudge import rejudge, rescore
from assay.training.api import train


@pytest.fixture
def run(world: World) -> Path:
    return Path(train(world.tree(rl={"steps": 2}), quiet=True).run)


def test_the_same_verifier_flips_nothing(run: Path) -> None:
    result = rescore(run)
    assert (result.completions, result.unchanged, result.missing) == (16, 16, 0)
    assert not result.flips and result.reward_changes == 0 and result.verifier == REWARD
    assert "0 verdicts flipped" in str(result)


def test_pairs_hold_the_logged_and_the_new_verdict_of_chosen_completions(run: Path) -> None:
    with rejudge(run, "train_worlds:other_marks") as again:
        first, second = again
    assert [pair.step for pair in (*first, *second)] == [1] * 8 + [2] * 8
    assert all(pair.statuses[0] != pair.statuses[1] for pair in first)
    chosen = second[3]
    only = {(2, chosen.completion.id), (1, "of no such id")}
    with rejudge(run, only=only, instead_of_rows=True, num_workers=1) as again:
        steps = list(again)
    assert [len(pairs) for pairs in steps] == [0, 1] and again.missing == 0
    (pair,) = steps[1]
    assert pair.completion.id == chosen.completion.id and len(pair.group.completions) == 1
    assert (pair.logged, pair.new.status) == (chosen.logged, chosen.logged.status)
    assert pair.as_row()["before"]["status"] == pair.as_row()["status"]


def test_another_verifier_flips_verdicts_and_says_which(run: Path, tmp_path: Path) -> None:
    before = sorted(path.stat().st_mtime_ns for path in run.rglob("*"))
    out = tmp_path / "again.jsonl"
    result = rescore(run, "train_worlds:other_marks", out=out)
    assert result.unchanged == 0 and result.flips.total() == 16 == result.reward_changes
    assert result.flips["failed -> passed"] == result.before["failed"] == result.after["passed"]
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(rows) == 16 and {row["step"] for row in rows} == {1, 2}
    assert all(row["status"] != row["before"]["status"] for row in rows)
    assert "train_worlds:other" in rows[0]["verifier"] and "failed -> passed" in str(result)
    assert all(len(examples) <= 3 for examples in result.examples.values())
    assert json.loads(json.dumps(result.as_dict()))["flips"] == dict(result.flips)
    assert sorted(path.stat().st_mtime_ns for path in run.rglob("*")) == before


def test_problems_that_are_gone_are_counted(run: Path, world: World) -> None:
    world.write_rows("train.jsonl", [{"id": "new", "prompt": "What?", "answer": "1"}])
    result = rescore(run)
    assert (result.completions, result.missing) == (0, 16)
    assert "their problems are gone" in str(result)


@pytest.mark.parametrize("damage", ["flip", "cut"])
def test_a_damaged_shard_is_told_and_counted(
    run: Path, damage: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = run / "rollouts/step-000002.parquet"
    data = bytearray(shard.read_bytes())
    data[len(data) // 4] ^= 4
    shard.write_bytes(data if damage == "flip" else data[:-9])
    result = rescore(run)
    assert (result.completions, result.missing, result.unreadable) == (8, 8, [2])
    assert "rollouts/step-000002.parquet cannot be read" in str(result)
    monkeypatch.setattr(sys, "argv", ["assay", "verify", "--rescore", str(run), "--json"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 1
    assert json.loads(capsys.readouterr().out)["unreadable"] == [2]
    settings = {"inputs": [str(run)], "model": str(run)}
    with pytest.raises(RunError, match=r"step-000002\.parquet: found a damaged file.*move it away"):
        run_stage("label_steps", settings, run.with_name("labels"))


def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"not a run directory .*give one, as runs/NAME"):
        rescore(tmp_path)
