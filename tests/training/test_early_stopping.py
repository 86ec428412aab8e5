"""A run whose held-out accuracy has settled ends before its last step, in every stage, and resumes exactly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from train_worlds import World, rows_of

from assay.config import STAGES
from assay.errors import RunError
from assay.run.directory import Run
from assay.run.metrics import is_timing
from assay.training.api import evaluate, train

NEVER_RIGHT = {"verifier": "train_worlds:wrong_in_many_ways"}
PATIENT = {"every": 1, "patience": 2}
STILL = {"learning_rate": 1e-12}
GO_ON = "evaluation.patience="


def early_tree(world: World, **sections: Any) -> dict[str, Any]:
    """A run of which nothing ever passes: it has settled after two steps."""
    tree = world.tree(data=NEVER_RIGHT, rl={"steps": 9}, evaluation=PATIENT, **sections)
    return tree


def stage_tree(world: World, stage: str) -> dict[str, Any]:
    tree = early_tree(world, optimizer=STILL)
    if stage == "rl":
        return tree
    del tree["rl"]
    if stage == "sft":
        return tree | {
            "sft": {"traces": [str(world.folder / "traces.jsonl")], "tokens_per_step": 8}
        }
    if stage == "distill":
        traces = {"traces": [str(world.folder / "traces.jsonl")], "tokens_per_step": 8}
        return tree | {"teacher": {"path": str(world.folder / "model")}, "distill": traces}
    if stage == "pretrain":
        texts = str(world.write_rows("texts.jsonl", [{"text": "one and two"}] * 12))
        given = {"texts": [texts], "heldout": [texts], "tokens_per_step": 24}
        return tree | {"data": {}, "pretrain": given}
    row = {"prompt": "1 + 1 =", "chosen": " 2", "rejected": " three"}
    pairs = [str(world.write_rows("pairs.jsonl", [row] * 12))]
    tree["data"] = {}
    shared = {"heldout": pairs, "epochs": 3}
    if stage == "preference":
        given = {"pairs": pairs, "method": "dpo", "pairs_per_step": 4}
        return tree | {"preference": given | shared}
    given = {"kind": "preference", "rows": pairs, "rows_per_step": 4}
    return tree | {"reward_model": given | shared}


@pytest.mark.parametrize("stage", [*STAGES])
def test_every_stage_ends_early(world: World, stage: str) -> None:
    result = train(stage_tree(world, stage), quiet=True)
    run = Path(result.run)
    assert (result.steps, result.ended) == (2, "finished early")
    assert result.checkpoint == str(run / "checkpoints" / "step-000002")
    assert [row["step"] for row in rows_of(run, "metrics")] == [1, 2]
    assert {row["step"] for row in rows_of(run, "evaluations")} == {0, 1, 2}
    end = rows_of(run, "events")[-1]
    assert (end["kind"], end["reason"], end["checkpoint"]) == ("ended", "finished early", 2)
    assert "2 evaluations in a row were not above" in end["because"]
    assert "finished early, after step 2 of " in (run / "decision.md").read_text()
    assert ">finished early</span>" in (run / "report.html").read_text()
    assert (
        str(result).splitlines()[-1] == f"continue with: assay train --resume {run} --set {GO_ON}"
    )


def test_a_run_that_ended_early_goes_on_only_if_asked(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train(early_tree(world), quiet=True).run
    again = train(resume=run)
    assert (again.steps, again.ended) == (2, "finished early")
    assert "2 evaluations in a row were not above 0.000 of step 0" in capsys.readouterr().err
    with pytest.raises(RunError, match=r"finished early, after step 2.*rl\.steps: 9 before, 3 now"):
        train(resume=run, overrides=["rl.steps=3"], quiet=True)
    longer = train(resume=run, overrides=["evaluation.patience=3"], quiet=True)
    assert (longer.steps, longer.ended) == (3, "finished early")
    whole = train(resume=run, overrides=[GO_ON, "rl.steps=4"], quiet=True)
    assert (whole.steps, whole.ended) == (4, "finished")


def test_a_model_of_such_a_run_can_be_evaluated(world: World) -> None:
    """Its held-out problems are left out then, and with them what watches them."""
    run = train(early_tree(world), quiet=True).run
    found = evaluate(run, [str(world.folder / "train.jsonl")], max_problems=2, quiet=True)
    assert found.num_problems == 2


class Killed(BaseException):
    """What ends a process at once, as far as a run can tell."""


@pytest.mark.parametrize("saved", [True, False], ids=["with a checkpoint", "without"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_the_evaluation_that_decides(
    world: World, when: str, saved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = {"checkpoint": {"every": 2 if saved else 50, "keep_best": False}}
    whole = train(early_tree(world, **every, run={"name": "whole"}), quiet=True).run
    record = Run.record_evaluation

    def killed(run: Run, result: Any, step: int | None = None) -> None:
        if when == "after" or run.step < 2:
            record(run, result, step)
        if run.step == 2:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Run, "record_evaluation", killed)
        with pytest.raises(Killed):
            train(early_tree(world, **every, run={"name": "part"}), quiet=True)
    part = world.folder / "runs" / "part"
    assert (part / "checkpoints" / "step-000002").is_dir() is saved
    result = train(resume=part, quiet=True)
    assert (result.steps, result.ended) == (2, "finished early")
    for name in ("metrics", "evaluations"):
        assert plain(part, name) == plain(Path(whole), name)


def plain(run: Path, name: str) -> list[str]:
    """The rows of a journal, without what the clock says."""
    kept = [{k: v for k, v in row.items() if not is_timing(k)} for row in rows_of(run, name)]
    return [json.dumps(row, sort_keys=True) for row in kept]


def test_a_time_limit_between_two_evaluations_does_not_shift_the_end(world: World) -> None:
    tree = early_tree(world, run={"name": "short"})
    tree["evaluation"] = {"every": 2, "patience": 1}
    first = train(tree, overrides=["run.max_minutes=1e-9"], quiet=True)
    assert (first.steps, first.ended) == (1, "max_minutes")
    assert [row["step"] for row in rows_of(first.run, "evaluations")] == [0, 1]
    assert train(resume=first.run, quiet=True).steps == 2
