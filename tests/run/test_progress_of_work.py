"""What a run says of work that takes long, and how it ends in the middle of it."""

from __future__ import annotations

import io
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from run_fakes import FakeLearner, make_config, take_steps

from assay.host import heartbeat
from assay.host.clock import PhaseClock
from assay.run import progress
from assay.run.directory import Run
from assay.run.progress import Progress, working_words


def test_the_work_at_hand_is_the_outermost_of_known_size() -> None:
    clock = PhaseClock()
    assert clock.now() is None
    with clock.phase("update"):
        assert (clock.now() or {})["what"] == "update"
        with clock.working("pairs", 8, "completions") as work:
            work.done = 2
            for number, _ in enumerate(clock.each("abc", "scoring")):
                row = clock.now() or {}
                assert (row["what"], row["done"], row["of"]) == ("pairs", 2, 8), number
        assert (clock.now() or {})["what"] == "update"
    assert clock.now() is None


def test_micro_batches_are_counted_over_the_optimizer_steps_of_an_update() -> None:
    clock, seen = PhaseClock(), []
    for step in range(2):
        for _ in clock.each("abc", "update", (step, 2)):
            row = clock.now() or {}
            seen.append((row["done"], row["of"], "eta" in row))
    assert seen == [(n, 6, n > 0) for n in range(6)]


def test_words_of_work() -> None:
    row: dict[str, Any] = {"what": "update", "seconds": 41.2, "done": 3, "of": 17, "eta": 190.0}
    words = working_words({**row, "unit": "micro-batches"})
    assert words == "update: 3 of 17 micro-batches, 41 s, ETA 3 min 10 s"
    assert working_words({"what": "verify", "seconds": 70.0}) == "judging: 1 min 10 s"


def test_a_plain_log_says_it_once_in_half_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now, said = [1000.0], io.StringIO()
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    shown = Progress("run", 10, console=Console(file=said, force_terminal=False, width=200))
    for second in range(125):
        now[0] = 1000.0 + second
        shown("progress", {"what": "update", "seconds": float(second)})
    assert said.getvalue().splitlines() == [
        "update: 30 s",
        "update: 1 min 00 s",
        "update: 1 min 30 s",
        "update: 2 min 00 s",
    ]


def test_listeners_are_told_of_work_while_it_lasts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "SECONDS", 0.01)
    told, heard = list[dict[str, Any]](), threading.Event()

    def listen(kind: str, row: Any) -> None:
        if kind == "progress":
            told.append(dict(row))
            heard.set()

    with Run.create(make_config(tmp_path), quiet=True) as run:
        run.attach(learner=FakeLearner())
        run.listen(listen)
        with run.phase("verify"):
            assert heard.wait(60)
    assert told[0]["what"] == "verify" and told[0]["seconds"] >= 0.01


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_run_between_two_micro_batches_with_a_checkpoint(
    tmp_path: Path, number: int
) -> None:
    seen, learner = [], FakeLearner()
    with Run.create(make_config(tmp_path), quiet=True) as run:
        run.attach(learner=learner)
        run.hold_state()
        take_steps(run, learner, 1)
        run.hold_state()
        for micro_batch in run.clock.each("abcdef", "update"):
            seen.append(micro_batch)
            if micro_batch == "b":
                os.kill(os.getpid(), number)
    assert seen == ["a", "b"]
    assert run.stop_reason == "interrupted" and run.checkpoints.steps() == [1]
