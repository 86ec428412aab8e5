"""Who listens to a run hears what is in its directory, and can neither stop nor hold up the run."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from run_fakes import FakeLearner, make_config, take_steps

from assay.host.files import read_rows
from assay.run import listeners
from assay.run.directory import Run

Told = list[tuple[str, Mapping[str, Any]]]


def run_with(folder: Path, *told: listeners.Listener) -> Path:
    with Run.create(make_config(folder, rl={"steps": 2}), quiet=True) as run:
        for listener in told:
            run.listen(listener)
        run.attach(learner=FakeLearner())
        take_steps(run, FakeLearner(), 2)
        run.record_evaluation({"eval/pass_at_1": 0.5})
        run.note("a line")
    return run.folder


def kinds(folder: Path) -> list[str]:
    return [row["kind"] for row in read_rows(folder / "events.jsonl")]


def test_all_is_told_and_was_written_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: Told = []
    written: list[bool] = []
    notify = listeners.Journals.notify

    def checked(journals: listeners.Journals, kind: str, row: Mapping[str, Any]) -> None:
        if kind == "rollouts":
            written.append(Path(row["path"]).is_file())
        elif kind != "notes":
            rows = journals.rows(kind)
            written.append(bool(rows) and rows[-1].get("kind") == row.get("kind"))
            written.append(bool(rows) and rows[-1]["step"] == row["step"])
        notify(journals, kind, row)

    monkeypatch.setattr(listeners.Journals, "notify", checked)
    folder = run_with(tmp_path, lambda *told: heard.append(told))
    assert [kind for kind, _ in heard] == [
        *("rollouts", "metrics", "rollouts", "metrics", "evaluations", "notes", "events"),
    ]
    assert all(written) and len(written) == 2 + 2 * 5
    assert [row["step"] for kind, row in heard if kind == "metrics"] == [1, 2]
    assert len(heard[0][1]["groups"]) == len(heard[0][1]["verdicts"]) == 3
    assert kinds(folder) == ["created", "ended"]


def test_a_listener_that_raises_is_dropped_and_recorded(tmp_path: Path) -> None:
    heard: Told = []

    def broken(kind: str, row: Mapping[str, Any]) -> None:
        raise SystemExit("no more")

    folder = run_with(tmp_path, broken, lambda *told: heard.append(told))
    (failed,) = (row for row in read_rows(folder / "events.jsonl") if "listener" in row)
    assert failed["listener"] == "broken" and failed["error"] == "SystemExit: no more"
    assert kinds(folder)[-1] in ("ended", "listener_failed") and len(heard) >= 7
    assert len(list(read_rows(folder / "metrics.jsonl"))) == 2


def test_a_listener_that_hangs_delays_no_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listeners, "CLOSE_SECONDS", 0.05)
    forever = threading.Event()
    heard: Told = []

    def hangs(kind: str, row: Mapping[str, Any]) -> None:
        forever.wait()

    folder = run_with(tmp_path, hangs, lambda *told: heard.append(told))
    forever.set()
    (failed,) = (row for row in read_rows(folder / "events.jsonl") if "listener" in row)
    assert failed["error"] == "it did not end within 0.05 s"
    assert "metrics" in {kind for kind, _ in heard}


def test_a_listener_that_falls_behind_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listeners, "MOST_WAITING", 3)
    forever = threading.Event()
    folder = run_with(tmp_path, lambda *told: forever.wait() and None)
    forever.set()
    (failed,) = (row for row in read_rows(folder / "events.jsonl") if "listener" in row)
    assert failed["error"] == "it is 3 rows behind"
