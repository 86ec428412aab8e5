"""The run directory: what it holds, how it is resumed, what it refuses."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from run_fakes import (
    VERIFIERS,
    FakeLearner,
    FakeUpdate,
    make_config,
    make_problem,
    make_rollouts,
    make_update,
    take_steps,
)

from assay.config import parse
from assay.errors import DiskFull, RunError, RunStopped
from assay.host.files import read_rows
from assay.run.directory import Run

Rows = list[dict[str, Any]]


def rows_of(folder: Path, name: str) -> Rows:
    return list(read_rows(folder / f"{name}.jsonl"))


def kinds(folder: Path) -> list[str]:
    return [row["kind"] for row in rows_of(folder, "events")]


@pytest.fixture
def killed(tmp_path: Path) -> Iterator[Path]:
    """A run of 12 steps with a checkpoint every 4 that was killed within step 7."""
    config = make_config(tmp_path, checkpoint={"keep_best": False})
    run = Run.create(config, verifiers=VERIFIERS, quiet=True)
    learner = FakeLearner()
    run.attach(learner=learner)
    run.record_evaluation({"eval/pass_at_1": 0.1})
    take_steps(run, learner, 6)
    run.record_evaluation({"eval/pass_at_1": 0.05})
    run.record(*make_rollouts(7))
    run.event("worker_killed")
    run._release()  # what the system does for a killed process
    yield run.folder


def test_a_run_leaves_everything_that_the_design_lists(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    with Run.create(config, verifiers=VERIFIERS, quiet=True) as run:
        learner = FakeLearner()
        run.attach(learner=learner)
        take_steps(run, learner, 12)
        run.record_evaluation(
            {"eval/pass_at_1": 0.5, "eval/stderr": 0.1, "eval/by_tag": {"a": 1.0}}
        )
    folder = tmp_path / "test"
    assert parse(tomllib.loads((folder / "config.toml").read_text())) == config
    environment = json.loads((folder / "environment.json").read_text())
    assert environment["verifiers"] == VERIFIERS and environment["seed"] == 0
    assert environment["versions"]["numpy"] and environment["hardware"]["cores"] == os.cpu_count()
    rows = rows_of(folder, "metrics")
    assert [row["step"] for row in rows] == list(range(1, 13))
    for key in ("reward/mean", "group/mixed", "loss/total", "time/step", "memory/peak_mib"):
        assert all(key in row for row in rows), key
    assert rows_of(folder, "evaluations")[0]["eval/by_tag"] == {"a": 1.0}
    shards = sorted(path.name for path in (folder / "rollouts").iterdir())
    assert shards == [f"step-{step:06d}.parquet" for step in range(1, 13)]
    last = pq.ParquetFile(folder / "rollouts" / shards[-1]).read()
    assert last.column("advantages").null_count == 0
    assert set(last.column("verifier_hash").to_pylist()) == {"a" * 64}
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == [
        "step-000008",
        "step-000012",
    ]
    assert kinds(folder) == ["created", "ended"]
    assert rows_of(folder, "events")[-1]["reason"] == "finished"


def test_names_are_numbered_when_taken(tmp_path: Path) -> None:
    names: list[str] = []
    for _ in range(3):
        with Run.create(make_config(tmp_path), quiet=True) as run:
            names.append(run.folder.name)
    assert names == ["test", "test-2", "test-3"]


def test_a_taken_run_name_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = make_config(tmp_path)
    with pytest.raises(ValueError), Run.create(config) as died:
        raise ValueError("no such key")
    assert "taken" not in capsys.readouterr().err
    Run.create(config).__exit__(None, None, None)
    ended = "a run that ended after 0 steps: ValueError: no such key"
    assert (
        f"{died.folder} is taken by {ended}; this run is {died.folder}-2" in capsys.readouterr().err
    )
    (died.folder / "config.toml").unlink()
    Run.create(config).__exit__(None, None, None)
    assert (
        f"{died.folder} is taken by a folder that is not a readable run" in capsys.readouterr().err
    )


def test_without_a_name_the_configurations_file_gives_it(tmp_path: Path) -> None:
    config = make_config(tmp_path, run={"name": None})
    with Run.create(config, config_path="configs/gsm8k.toml", quiet=True) as run:
        assert run.folder == tmp_path / "gsm8k"


def test_a_directory_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for parent in (tmp_path / "file", Path("/proc/assay")):
        with pytest.raises(RunError, match=r"cannot be written.*run\.directory") as error:
            Run.create(make_config(parent), quiet=True)
        assert "\n" not in str(error.value)
    with pytest.raises(RunError, match="File name too long"):
        Run.create(make_config(tmp_path, run={"name": "x" * 300}), quiet=True)


def test_one_process_writes_a_run_at_a_time(tmp_path: Path) -> None:
    with (
        Run.create(make_config(tmp_path), quiet=True) as run,
        pytest.raises(RunError, match="is writing this run"),
    ):
        Run.resume(run.folder, quiet=True)
    Run.resume(run.folder, quiet=True).__exit__(None, None, None)


def test_the_log_is_on_disk_before_it_is_learned_from(tmp_path: Path) -> None:
    with Run.create(make_config(tmp_path), quiet=True) as run:
        groups, verdicts = make_rollouts(1)
        run.record(groups, verdicts)
        assert pq.ParquetFile(run.folder / "rollouts/step-000001.parquet").read().num_rows == 12
        found = run.rollouts.read(1, lambda id: make_problem(int(id[1:])))
        assert found is not None and found[1] == verdicts
        assert found[0][1].problem == groups[1].problem
        assert run.recorded(2) is None


def test_resume_goes_back_to_the_checkpoint_and_keeps_the_evidence(killed: Path) -> None:
    learner = FakeLearner()
    with Run.resume(killed, quiet=True) as run:
        assert run.step == 4 and len(rows_of(killed, "metrics")) == 6  # untouched before `attach`
        run.attach(learner=learner)
        assert learner.policy_version == 4
        assert [row["step"] for row in rows_of(killed, "metrics")] == [1, 2, 3, 4]
        assert run.metrics["step"] == 4 and run.metrics["policy_version"] == 4
        assert run.evaluations() == [{"step": 0, "eval/pass_at_1": 0.1}] == run.evaluations(0)
        assert [run.recorded(step) is not None for step in (5, 6, 7, 8)] == [
            True,
            True,
            True,
            False,
        ]
        take_steps(run, learner, 8)
    assert kinds(killed) == ["created", "worker_killed", "resumed", "ended"]
    elapsed = [row["time/elapsed"] for row in rows_of(killed, "metrics")]
    assert elapsed == sorted(elapsed)


def test_resume_without_a_checkpoint_begins_again(tmp_path: Path) -> None:
    run = Run.create(make_config(tmp_path), quiet=True)
    take_steps(run, FakeLearner(), 2)
    run._release()
    learner = FakeLearner()
    with Run.resume(run.folder, quiet=True) as again:
        again.attach(learner=learner)
        assert again.step == 0 and not rows_of(run.folder, "metrics")
        assert again.recorded(2) is not None
        take_steps(again, learner, 1)


def test_a_damaged_checkpoint_is_passed_over_and_reported(killed: Path) -> None:
    learner = FakeLearner()
    with Run.resume(killed, quiet=True) as run:
        run.attach(learner=learner)
        take_steps(run, learner, 4)
    for path in (killed / "checkpoints/step-000008").rglob("weights.npy"):
        path.write_bytes(b"torn")
    with Run.resume(killed, quiet=True) as run:
        assert run.step == 4
        run.attach(learner=learner)
        take_steps(run, learner, 4)
    resumed = [row for row in rows_of(killed, "events") if row["kind"] == "resumed"][-1]
    assert "step-000008" in resumed["damaged"][0]
    assert resumed["set_aside"] == ["damaged-step-000008"]
    kept = killed / "checkpoints/damaged-step-000008"
    assert (kept / "learner/learner.json").exists() and (kept / "manifest.json").exists()
    assert run.checkpoints.steps() == [4, 8]
    (killed / "checkpoints/step-000008/manifest.json").unlink()
    with Run.resume(killed, quiet=True) as run:
        run.attach(learner=learner)
    assert (killed / "checkpoints/damaged-step-000008-2/learner/weights.npy").exists()


def everything(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.parametrize("damage", ["manifests", "no manifests", "one checkpoint", "no folder"])
def test_a_run_whose_checkpoints_are_lost_is_not_trained_again(tmp_path: Path, damage: str) -> None:
    with Run.create(make_config(tmp_path), quiet=True) as run:
        run.attach(learner=FakeLearner())
        take_steps(run, FakeLearner(), 12)
    for manifest in run.folder.rglob("manifest.json"):
        if damage == "manifests":
            manifest.write_bytes(b"\0")
        elif damage == "no manifests":
            manifest.unlink()
    if damage == "one checkpoint":
        shutil.rmtree(run.checkpoints.path(8))
        (run.checkpoints.path(12) / "learner/weights.npy").write_bytes(b"torn")
    elif damage == "no folder":
        shutil.rmtree(run.checkpoints.folder)
    before = everything(run.folder)
    with pytest.raises(RunError, match="12 steps are done, and no checkpoint is whole") as error:
        Run.resume(run.folder, quiet=True)
    found = "its checkpoints are missing" if damage == "no folder" else "step-000012: "
    assert found in str(error.value) and "\n" not in str(error.value)
    assert "restore the files from a copy, or start a new run" in str(error.value)
    assert everything(run.folder) == before


def test_a_short_run_whose_only_checkpoint_is_gone_is_not_trained_again(tmp_path: Path) -> None:
    """Its end tells that there was one, although none was due before."""
    with Run.create(make_config(tmp_path, checkpoint={"every": 50}), quiet=True) as run:
        run.attach(learner=FakeLearner())
        take_steps(run, FakeLearner(), 3)
    shutil.rmtree(run.checkpoints.folder)
    with pytest.raises(RunError, match="its checkpoints are missing"):
        Run.resume(run.folder, quiet=True)


def test_a_changed_verifier_is_refused_unless_accepted(killed: Path) -> None:
    changed = {"math": {"version": 1, "hash": "b" * 64}}
    with pytest.raises(RunError, match=r"math.*aaa.*bbb.*--accept-changed-verifiers"):
        Run.resume(killed, verifiers=changed, quiet=True)
    assert len(rows_of(killed, "metrics")) == 6
    with Run.resume(killed, verifiers=changed, accept_changed_verifiers=True, quiet=True) as run:
        run.attach(learner=FakeLearner())
        assert run.recorded(5) is None  # judged by the old one, not learned from yet
        assert run.recorded(4) is not None
    events = {row["kind"]: row for row in rows_of(killed, "events")}
    assert "bbb" in events["verifiers_changed"]["changes"][0]
    assert events["rollouts_dropped"]["steps"] == [5, 6, 7]
    environment = json.loads((killed / "environment.json").read_text())
    assert environment["verifiers"] == changed
    Run.resume(killed, verifiers=changed, quiet=True).__exit__(None, None, None)


def test_a_changed_second_verifier_is_recorded_and_no_rollout_is_dropped(killed: Path) -> None:
    changed = {"math": {"version": 1, "hash": "b" * 64, "audit_only": True}}
    with Run.resume(killed, verifiers=changed, quiet=True) as run:
        run.attach(learner=FakeLearner())
        assert run.recorded(5) is not None
    events = {row["kind"]: row for row in rows_of(killed, "events")}
    assert "bbb" in events["audit_verifier_changed"]["changes"][0]
    assert not {"verifiers_changed", "rollouts_dropped"} & {*events}
    environment = json.loads((killed / "environment.json").read_text())
    assert environment["verifiers"] == changed


def test_a_verifier_met_later_is_written_down_and_then_held(tmp_path: Path) -> None:
    with Run.create(make_config(tmp_path), quiet=True) as run:
        run.check_verifiers(VERIFIERS)
        run.check_verifiers({"think_format": {"version": 1, "hash": "c"}})
        with pytest.raises(RunError, match="think_format"):
            run.check_verifiers({"think_format": {"version": 2, "hash": "c"}})


def test_a_run_can_be_extended(tmp_path: Path) -> None:
    learner = FakeLearner()
    with Run.create(make_config(tmp_path), quiet=True) as run:
        run.attach(learner=learner)
        take_steps(run, learner, 12)
    with Run.resume(run.folder, overrides=["rl.steps=14"], quiet=True) as run:
        run.attach(learner=learner)
        assert (run.step, run.num_steps) == (12, 14)
        take_steps(run, learner, 2)
    assert "steps = 14" in (run.folder / "config.toml").read_text()
    assert [row["step"] for row in rows_of(run.folder, "metrics")] == list(range(1, 15))
    resumed = rows_of(run.folder, "events")[2]
    assert resumed["config_changes"] == ["rl.steps: 12 before, 14 now"]


def test_a_change_that_matters_drops_rollouts_that_would_be_replayed(killed: Path) -> None:
    with Run.resume(killed, overrides=["checkpoint.every=3"], quiet=True) as run:
        run.attach(learner=FakeLearner())
        assert run.recorded(5) is not None
    with Run.resume(killed, overrides=["sampling.temperature=0.5"], quiet=True) as run:
        run.attach(learner=FakeLearner())
        assert run.recorded(5) is None
    assert rows_of(killed, "events")[-2]["dropped_rollouts"] == [5, 6, 7]


@pytest.mark.parametrize(
    ("override", "kept"),
    [
        ("verification.deadline=9.0", True),
        ("verification.num_workers=3", True),
        ("verification.options={math={fallback='none'}}", False),
        ("verification.schedule={math=[[0, 0.5]]}", False),
    ],
)
def test_other_weights_or_options_drop_rollouts_that_would_be_replayed(
    killed: Path, override: str, kept: bool
) -> None:
    accepted = {"accept_changed_verifiers": "schedule" in override}  # it is another reward
    with Run.resume(killed, overrides=[override], quiet=True, **accepted) as run:
        run.attach(learner=FakeLearner())
        assert (run.recorded(run.step + 1) is not None) == kept


def test_another_thread_count_is_a_warning(
    killed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = killed / "environment.json"
    facts = json.loads(path.read_text())
    path.write_text(json.dumps({**facts, "threads": 999}))
    with Run.resume(killed) as run:
        run.attach(learner=FakeLearner())
    assert "warning: threads: 999 before" in capsys.readouterr().err
    resumed = next(row for row in rows_of(killed, "events") if row["kind"] == "resumed")
    assert any("threads: 999" in one for one in resumed["differences"])


def test_what_is_no_run_cannot_be_resumed(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(RunError, match="not a run directory"):
            Run.resume(path)


def test_a_new_best_is_checkpointed_and_kept(tmp_path: Path) -> None:
    config = make_config(tmp_path, checkpoint={"keep_last": 1})
    with Run.create(config, quiet=True) as run:
        learner = FakeLearner()
        run.attach(learner=learner)
        for accuracy in (0.2, 0.9, 0.3, 0.4):
            take_steps(run, learner, 3)
            run.record_evaluation({"eval/pass_at_1": accuracy})
    assert run.checkpoints.steps() == [6, 12]


def test_an_older_best_goes_when_there_is_a_better_one(tmp_path: Path) -> None:
    config = make_config(tmp_path, checkpoint={"keep_last": 1, "every": 6})
    with Run.create(config, quiet=True) as run:
        learner = FakeLearner()
        run.attach(learner=learner)
        for accuracy in (0.2, 0.9):
            take_steps(run, learner, 6)
            run.record_evaluation({"eval/pass_at_1": accuracy})
        assert run.checkpoints.steps() == [12]


def test_a_broken_step_is_never_checkpointed(tmp_path: Path) -> None:
    with (
        pytest.raises(RunStopped, match="stop"),
        Run.create(make_config(tmp_path, checkpoint={"every": 1}), quiet=True) as run,
    ):
        run.attach(learner=FakeLearner())
        run.finish_step(FakeUpdate())
        row = run.finish_step(FakeUpdate({"loss/total": math.nan}))
        assert math.isnan(row["loss/total"]) and math.isnan(run.metrics["loss/total"])
        raise RunStopped("stop")
    assert run.checkpoints.steps() == [1]
    assert rows_of(run.folder, "metrics")[-1]["loss/total"] is None
    assert rows_of(run.folder, "events")[-1]["reason"] == "RunStopped: stop"


def test_ctrl_c_ends_after_the_step_with_a_checkpoint(tmp_path: Path) -> None:
    with Run.create(make_config(tmp_path), quiet=True) as run:
        learner = FakeLearner()
        run.attach(learner=learner)
        while not run.stop_reason:
            take_steps(run, learner, 1)
            if run.step == 2:
                os.kill(os.getpid(), signal.SIGINT)
    assert run.step == 2 and run.checkpoints.steps() == [2]
    assert rows_of(run.folder, "events")[-1]["reason"] == "interrupted"


def test_the_time_limit_ends_one_start_after_a_step_with_a_checkpoint(tmp_path: Path) -> None:
    learner, limit = FakeLearner(), {"max_minutes": 1e-9}
    with Run.create(make_config(tmp_path, run=limit), quiet=True) as run:
        run.attach(learner=learner)
        assert run.stop_reason is None, "each start takes a step"
        take_steps(run, learner, 1)
        assert run.stop_reason == "max_minutes"
    assert rows_of(run.folder, "events")[-1]["reason"] == "max_minutes"
    assert run.checkpoints.steps() == [1]
    assert "max_minutes" not in (run.folder / "config.toml").read_text()
    with Run.resume(run.folder, quiet=True) as run:
        run.attach(learner=learner)
        take_steps(run, learner, 1)
        assert run.stop_reason is None
    assert "config_changes" not in rows_of(run.folder, "events")[-2]
    with Run.resume(run.folder, overrides=["run.max_minutes=1e-9"], quiet=True) as run:
        run.attach(learner=learner)
        assert run.step == 2 and run.stop_reason is None
        take_steps(run, learner, 1)
        assert run.stop_reason == "max_minutes"


def test_a_time_limit_that_an_older_version_wrote_into_a_run_is_over(tmp_path: Path) -> None:
    with Run.create(make_config(tmp_path), quiet=True) as run:
        run.attach()
    path = run.folder / "config.toml"
    path.write_text(path.read_text().replace("[run]\n", "[run]\nmax_minutes = 1e-9\n", 1))
    with Run.resume(run.folder, quiet=True) as run:
        run.attach()
        take_steps(run, FakeLearner(), 1)
        assert run.stop_reason is None
    assert "max_minutes" not in path.read_text()


def test_an_error_is_written_down_and_passed_on(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), Run.create(make_config(tmp_path), quiet=True) as run:
        1 / 0  # pyright: ignore
    assert rows_of(run.folder, "events")[-1]["reason"] == "ZeroDivisionError: division by zero"
    Run.resume(run.folder, quiet=True).__exit__(None, None, None)  # the lock is free


def test_a_full_disk_while_logging_says_what_is_usable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run.create(make_config(tmp_path), quiet=True)
    learner = FakeLearner()
    run.attach(learner=learner)
    take_steps(run, learner, 5)
    run.rollouts.flush()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("assay.run.rollout_log.write_atomic", full)
        with pytest.raises(DiskFull, match=r"step-000006.*last checkpoint is usable"):
            take_steps(run, learner, 1)
    run._release()
    with Run.resume(run.folder, quiet=True) as again:
        again.attach(learner=learner)
        assert again.step == 4


def test_a_full_disk_in_the_background_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run.create(make_config(tmp_path), quiet=True)
    groups, verdicts = make_rollouts(1)
    run.record(groups, verdicts)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("assay.run.rollout_log.write_atomic", full)
    run.finish_step(make_update(groups))
    with pytest.raises(DiskFull):
        run.save_checkpoint()
    run._release()


def test_a_stage_without_rollouts_writes_metrics_alone(tmp_path: Path) -> None:
    with Run.create(make_config(tmp_path), num_steps=2, quiet=True) as run:
        run.attach(learner=FakeLearner())
        for _ in range(2):
            with run.phase("learn"):
                run.finish_step(FakeUpdate({"loss/mean": 1.0, "tokens/trained": 100.0}))
    rows = rows_of(run.folder, "metrics")
    assert rows[1]["time/learn"] > 0 and rows[1]["speed/learn"] > 0
    assert run.checkpoints.steps() == [2]
    assert not (run.folder / "rollouts").exists()


def test_metrics_of_others_join_every_row(tmp_path: Path) -> None:
    learner = FakeLearner()
    with Run.create(make_config(tmp_path), quiet=True) as run:
        counts = iter(range(9))
        run.add_metrics(lambda: {"verify/math/count": float(next(counts))})
        run.attach(learner=learner)
        take_steps(run, learner, 2)
    assert [row["verify/math/count"] for row in rows_of(run.folder, "metrics")] == [0.0, 1.0]
