"""The clock of a run: what is part of a step, and in which row it stands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from run_fakes import VERIFIERS, FakeLearner, make_config, take_steps

from assay.host import clock
from assay.host.files import read_rows
from assay.run.directory import Run


def test_time_before_a_step_is_no_part_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(clock.time, "perf_counter", lambda: now[0])
    with Run.create(make_config(tmp_path), verifiers=VERIFIERS, quiet=True) as run:
        learner = FakeLearner()
        run.attach(learner=learner)
        now[0] += 20.0  # a look at the untrained policy
        run.begin_step()
        now[0] += 3.0
        take_steps(run, learner, 1)
    (row,) = list(read_rows(tmp_path / "test" / "metrics.jsonl"))
    assert row["time/step"] == 3.0 and row["time/elapsed"] == 23.0


def test_a_steps_time_holds_its_log_its_metrics_and_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is written after a row is made is in the next one, with its part; nothing is lost."""
    now = [1000.0]
    monkeypatch.setattr(clock.time, "perf_counter", lambda: now[0])

    def takes(owner: Any, name: str, seconds: float) -> None:
        before = getattr(owner, name)

        def slow(*arguments: Any, **rest: Any) -> Any:
            now[0] += seconds
            return before(*arguments, **rest)

        monkeypatch.setattr(owner, name, slow)

    config = make_config(tmp_path, checkpoint={"every": 2})
    with Run.create(config, verifiers=VERIFIERS, quiet=True) as run:
        learner = FakeLearner()
        run.attach(learner=learner)
        takes(run.rollouts, "complete", 2.0)
        takes(run.checkpoints, "save", 40.0)
        takes(run, "_append", 0.5)
        for number in range(4):
            now[0] += 10.0
            take_steps(run, learner, 1)
            if number == 1:
                now[0] += 1000.0  # an evaluation is no part of a step
                run.begin_step()
    rows = list(read_rows(tmp_path / "test" / "metrics.jsonl"))
    assert [row["time/step"] for row in rows] == [12.0, 12.5, 52.5, 12.5]
    assert [row["time/record"] for row in rows] == [2.0, 2.5, 2.5, 2.5]
    assert [row.get("time/checkpoint", 0.0) for row in rows] == [0.0, 0.0, 40.0, 0.0]
    assert rows[-1]["time/elapsed"] - rows[0]["time/elapsed"] == 1000.0 + sum(
        row["time/step"] for row in rows[1:]
    )
