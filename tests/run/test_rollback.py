"""A run goes back to a checkpoint and loses nothing; a severe stop needs somebody who answers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from run_fakes import FakeLearner, make_config, take_steps

from assay.errors import RunError
from assay.report.loaded import load_run
from assay.run.checkpoints import Checkpoints
from assay.run.directory import Run
from assay.run.evaluation_log import log_of
from assay.run.metrics import is_timing
from assay.run.rollback import check_approved, newest_stop, roll_back


def make_run(folder: Path, **stop: Any) -> Path:
    with Run.create(make_config(folder, checkpoint={"keep_last": 9}), quiet=True) as run:
        learner = FakeLearner()
        run.attach(model=learner)
        take_steps(run, learner, 12)
        run.record_evaluation({"eval/pass_at_1": 0.5})
        if stop:
            run.event("guard_stop", **stop)
    answers = log_of(run.folder, "greedy").path(12)
    answers.parent.mkdir(parents=True)
    shutil.copy(run.rollouts.path(12), answers)
    return run.folder


def rows_of(path: Path) -> list[dict[str, Any]]:
    rows = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    return [{key: row[key] for key in row if not is_timing(key)} for row in rows]


def test_what_came_after_is_set_aside_and_made_again(tmp_path: Path) -> None:
    folder = make_run(tmp_path)
    (folder / "gates").mkdir()
    for step in (8, 12):
        (folder / f"gates/step-{step:06d}.json").write_text("{}")
    before = rows_of(folder / "metrics.jsonl")
    found = roll_back(folder, 8, who="Ada", why="it went wrong")
    aside = Path(found.kept)
    assert aside == folder / "rolled_back" / "step-000012-to-000008" and found.before == 12
    assert rows_of(aside / "metrics.jsonl") == before[8:]
    assert [row["step"] for row in rows_of(aside / "evaluations.jsonl")] == [12]
    assert sorted(str(one.relative_to(aside)) for one in aside.glob("*/*") if one.is_dir()) == [
        "checkpoints/step-000012",
        "evaluations/greedy",
    ]
    assert len([*aside.glob("rollouts/*")]) == 4 and len([*folder.glob("rollouts/*")]) == 8
    assert [one.name for one in (folder / "gates").iterdir()] == ["step-000008.json"]
    assert (aside / "gates/step-000012.json").is_file(), "it is about a model that is set aside"
    assert load_run(folder).ended == "rolled back to step 8 by Ada"
    event = rows_of(folder / "events.jsonl")[-1]
    assert (event["kind"], event["step"], event["who"]) == ("rolled_back", 8, "Ada")
    assert event["why"] == "it went wrong"
    with Run.resume(folder, quiet=True) as run:
        learner = FakeLearner()
        run.attach(model=learner)
        assert run.step == 8
        take_steps(run, learner, 4)
    assert rows_of(folder / "metrics.jsonl") == before
    again = roll_back(folder, 8, who="Ada", why="again")
    assert again.kept == f"{aside}-2"


@pytest.mark.parametrize(
    ("to", "said"),
    [
        (5, "found 5; accepted: the step of a checkpoint: 4, 8, 12"),
        (12, "found 12; accepted: a step before the newest, which it is"),
        (4, "found 4, which is damaged"),
    ],
)
def test_a_step_that_cannot_be_gone_back_to(tmp_path: Path, to: int, said: str) -> None:
    folder = make_run(tmp_path)
    (folder / "checkpoints/step-000004/weights.npy").unlink()
    files = sorted(folder.rglob("*"))
    with pytest.raises(RunError, match=said):
        roll_back(folder, to, who="Ada", why="")
    assert sorted(folder.rglob("*")) == files


def test_a_severe_stop_needs_somebody_who_answers(tmp_path: Path) -> None:
    folder = make_run(tmp_path, rule="mismatch", severe=True, well=8, evidence="e.md", reason="x")
    with pytest.raises(RunError) as error:
        check_approved(folder, None)
    for word in ("step 12 (mismatch)", "--approved-by NAME", f"rollback {folder} --to 8", "e.md"):
        assert word in str(error.value)
    check_approved(folder, "Ada")
    event = rows_of(folder / "events.jsonl")[-1]
    assert (event["kind"], event["who"], event["rule"]) == ("approved", "Ada", "mismatch")
    check_approved(folder, None)


def test_who_rolls_back_has_answered(tmp_path: Path) -> None:
    folder = make_run(tmp_path, rule="mismatch", severe=True, well=8, reason="x")
    assert newest_stop(folder) is not None
    roll_back(folder, 8, who="Ada", why="old weights")
    check_approved(folder, None)


def test_a_stop_that_is_not_severe_needs_no_approver(tmp_path: Path) -> None:
    check_approved(make_run(tmp_path, rule="length", severe=False, reason="x"), None)


def test_a_checkpoint_is_pinned_before_the_reward_changes(tmp_path: Path) -> None:
    folder = make_run(tmp_path)
    changed = {"math": {"version": 2, "hash": "b" * 64}}
    for version in ({"math": {"version": 1, "hash": "a" * 64}}, changed):
        with Run.resume(
            folder, verifiers=version, accept_changed_verifiers=True, quiet=True
        ) as run:
            run.attach(model=FakeLearner())
    assert Checkpoints(folder / "checkpoints", run.config.checkpoint).pinned() == {
        "12": "the newest before the reward changed"
    }
