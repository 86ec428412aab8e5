"""Trackers hear what the run directory has, go on when a run is resumed, and never stop one."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from run_fakes import FakeLearner, make_config, make_rollouts, take_steps

from assay.config import LogConfig
from assay.errors import MissingExtra, UserError
from assay.host.records import read_events
from assay.report import trackers
from assay.run import listeners
from assay.run.directory import Run


class Recorder:
    """A tracker that keeps what it is told."""

    opened: list[Recorder]

    def __init__(self, place: trackers.Place) -> None:
        self.place = place
        self.id, self.where = place.known or f"run {len(self.opened) + 1}", "nowhere"
        self.rows: list[tuple[int, Mapping[str, float]]] = []
        self.shown: list[tuple[int, Sequence[trackers.Rollout]]] = []
        self.ended: tuple[str, bool] | None = None
        self.opened.append(self)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.rows.append((step, values))

    def show(self, step: int, rollouts: Sequence[trackers.Rollout]) -> None:
        self.shown.append((step, rollouts))

    def end(self, reason: str, is_good: bool) -> None:
        self.ended = reason, is_good


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Recorder]:
    """The recorders that stand in W&B's place, in the order in which they were opened."""
    monkeypatch.setattr(Recorder, "opened", [], raising=False)
    monkeypatch.setitem(trackers.TRACKERS, "wandb", Recorder)  # pyright: ignore[reportArgumentType]
    return Recorder.opened


def begin(folder: Path, num_steps: int = 3, **log: Any) -> Path:
    """Take some steps and an evaluation, and die of an error; its last checkpoint is of step 2."""
    config = make_config(
        folder, log=log, rl={"steps": 5}, checkpoint={"every": 2, "keep_best": False}
    )
    with pytest.raises(RuntimeError), Run.create(config, quiet=True) as run:
        trackers.report_to_trackers(run)
        run.attach(learner=FakeLearner())
        take_steps(run, FakeLearner(), num_steps)
        run.record_evaluation({"eval/pass_at_1": 0.5, "eval/temperature": 1.0, "eval/by_tag": {}})
        raise RuntimeError("the power failed")
    return run.folder


def go_on(folder: Path) -> None:
    with Run.resume(folder, quiet=True) as run:
        assert run.step == 2
        trackers.report_to_trackers(run)
        learner = FakeLearner()
        run.attach(learner=learner)
        take_steps(run, learner, 3)


def events_of(folder: Path, kind: str) -> list[dict[str, Any]]:
    return [row for row in read_events(folder / "events.jsonl") if row["kind"] == kind]


def test_a_tracker_hears_the_run(tmp_path: Path, opened: list[Recorder]) -> None:
    folder = begin(tmp_path, to=["wandb"], samples=3, samples_every=2)
    (tracker,) = opened
    steps = [(step, "reward/mean" in row) for step, row in tracker.rows]
    assert steps == [(1, True), (2, True), (3, True), (3, False)]
    assert "step" not in tracker.rows[0][1] and "time/step" in tracker.rows[0][1]
    assert tracker.rows[-1][1] == {
        "eval/temperature_1/pass_at_1": 0.5,
        "eval/temperature_1/temperature": 1.0,
    }
    assert [(step, len(rows)) for step, rows in tracker.shown] == [(1, 3), (2, 3)]
    assert tracker.ended == ("RuntimeError: the power failed", False)
    assert tracker.place.name == "test"
    (event,) = events_of(folder, trackers.OPENED)
    assert event["tracker"] == "wandb" and event["id"] == "run 1"


def test_a_resumed_run_goes_on_under_the_same_name(tmp_path: Path, opened: list[Recorder]) -> None:
    folder = begin(tmp_path, to=["wandb"])
    go_on(folder)
    first, second = opened
    assert second.id == first.id == "run 1" and second.place.step == 2
    assert [step for step, _ in second.rows] == [3, 4, 5]
    assert second.ended == ("finished", True)
    assert len(events_of(folder, trackers.OPENED)) == 1


def test_one_that_cannot_be_opened_stops_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(place: trackers.Place) -> Any:
        raise ConnectionError("no network")

    monkeypatch.setitem(trackers.TRACKERS, "wandb", refuse)  # pyright: ignore[reportArgumentType]
    folder = begin(tmp_path, to=["wandb"])
    (failed,) = events_of(folder, "listener_failed")
    assert failed["listener"] == "wandb" and failed["error"] == "ConnectionError: no network"


def test_the_end_waits_longer_for_a_tracker_than_for_a_display(
    tmp_path: Path, opened: list[Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was not yet sent is sent at the end."""
    waited: list[float | None] = []

    class Watched(listeners._ListenerThread):
        def join(self, timeout: float | None = None) -> None:
            waited.append(timeout)
            super().join(timeout)

    monkeypatch.setattr(listeners, "_ListenerThread", Watched)
    begin(tmp_path, to=["wandb"])
    assert opened[0].ended is not None
    assert waited == [trackers.Reporter.close_seconds] and waited[0] > listeners.CLOSE_SECONDS


def test_shown_rollouts_go_from_the_lowest_reward_to_the_highest() -> None:
    groups, verdicts = make_rollouts(3)
    everything = trackers.choose(groups, verdicts, 1000)
    rewards = [-1.0 if one["reward"] is None else one["reward"] for one in everything]
    assert rewards == sorted(rewards) and len(everything) == 12
    few = trackers.choose(groups, verdicts, 4)
    assert [everything.index(one) for one in few] == [0, 3, 7, 11]
    assert trackers.choose(groups, verdicts, 1) == everything[:1]


def test_a_missing_library_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where W&B's folder of old runs looks like a package of that name."""
    (tmp_path / "wandb").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(MissingExtra) as caught:
        trackers.check_trackers(LogConfig(to=("wandb",)))
    assert 'log.to = ["wandb"] needs wandb: install it with' in str(caught.value)
    assert str(caught.value).endswith('[wandb]"')


def test_a_missing_library_is_reported_before_a_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from assay.training import api

    monkeypatch.setattr(trackers.PathFinder, "find_spec", lambda name: None)
    (tmp_path / "empty").mkdir()
    config = make_config(tmp_path, log={"to": ["mlflow"]}, model={"path": str(tmp_path / "empty")})
    for call in (api.train, api.dry_run):
        with pytest.raises(MissingExtra):
            call(config, quiet=True)
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


def fake_library(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> None:
    (folder / f"{name}.py").write_text(text)
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    monkeypatch.delitem(sys.modules, name, raising=False)


def test_a_missing_key_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "def login(verify):\n    raise ValueError('No API key configured')\n"
    fake_library(tmp_path, monkeypatch, "wandb", text)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    with pytest.raises(UserError, match=r"no API key .*No API key configured.*wandb login, or set"):
        trackers.check_trackers(LogConfig(to=("wandb",)))
    trackers.check_trackers(LogConfig(to=("wandb",), offline=True))
    monkeypatch.setenv("WANDB_MODE", "offline")
    trackers.check_trackers(LogConfig(to=("wandb",)))


def test_a_broken_library_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_library(tmp_path, monkeypatch, "mlflow", "raise RuntimeError('built for another Python')")
    with pytest.raises(UserError, match=r"mlflow cannot be imported .*built for another Python"):
        trackers.check_trackers(LogConfig(to=("mlflow",)))


# The real libraries, each without a network.


def check_wandb(folder: Path, name: str) -> None:
    logged = sorted((folder / "wandb").glob("offline-run-*"))
    assert len(logged) == 2 and {one.name.rpartition("-")[2] for one in logged} == {name}
    tables = [*(folder / "wandb").glob("offline-run-*/files/media/table/rollouts*.json")]
    assert tables and all("completion" in one.read_text() for one in tables)
    assert all(b"reward/mean" in one.read_bytes() for one in folder.glob("wandb/*/run-*.wandb"))


def check_tensorboard(folder: Path, name: str) -> None:
    home = "tensorboard.backend.event_processing.event_accumulator"
    found = importlib.import_module(home).EventAccumulator(str(folder / name)).Reload()
    assert [one.step for one in found.Scalars("reward/mean")] == [1, 2, 3, 4, 5]
    texts = found.Tensors("rollouts/text_summary")
    assert [one.step for one in texts] == [1, 2, 4]
    assert b"completion: " in texts[0].tensor_proto.string_val[0]


def check_trackio(folder: Path, name: str) -> None:
    storage = importlib.import_module("trackio.sqlite_storage").SQLiteStorage
    rows = storage.get_logs("tests", name)
    assert [row["step"] for row in rows if "reward/mean" in row] == [1, 2, 3, 3, 4, 5]
    assert [row["step"] for row in rows if "rollouts" in row] == [1, 2, 4]
    assert len(storage.get_runs("tests")) == 1


def check_mlflow(folder: Path, name: str) -> None:
    mlflow = importlib.import_module("mlflow")
    (run,) = mlflow.search_runs(search_all_experiments=True, output_format="list")
    assert run.info.run_id == name and run.info.status == "FINISHED"
    assert run.data.params["rl.steps"] == "5" and run.data.tags["group"] == "seeds"
    history = mlflow.MlflowClient().get_metric_history(name, "reward/mean")
    assert sorted(one.step for one in history) == [1, 2, 3, 3, 4, 5]
    table = mlflow.load_table("rollouts/step-000004.json", run_ids=[name])
    assert {"completion", "reward"} <= {*table.columns} and len(table) == 8


CHECKS: Mapping[str, Callable[[Path, str], None]] = {
    "wandb": check_wandb,
    "tensorboard": check_tensorboard,
    "trackio": check_trackio,
    "mlflow": check_mlflow,
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CHECKS)
def test_the_real_library_goes_on_with_the_same_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))  # which is read at import
    pytest.importorskip(name, reason=f'needs {name}: pip install -e ".[{name}]"')
    monkeypatch.chdir(tmp_path)
    trackers.check_trackers(LogConfig(to=(name,), offline=True))  # pyright: ignore[reportArgumentType]
    about = {"project": "tests", "group": "seeds", "tags": ["a"], "offline": True}
    folder = begin(tmp_path / "runs", to=[name], samples_every=2, **about)
    go_on(folder)
    assert not events_of(folder, "listener_failed")
    (event,) = events_of(folder, trackers.OPENED)
    CHECKS[name](folder, event["id"])
    assert capsys.readouterr().out == "", "standard output is for results"
