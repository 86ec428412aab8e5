"""Following a run in a terminal: every row once, in order, until the run ends."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from run_fakes import FakeLearner, FakeUpdate, make_config, make_rollouts

from assay.errors import RunError
from assay.report.viewer import watch as watching
from assay.report.viewer.watch import thinned, watch
from assay.run.directory import Run
from assay.run.progress import Progress


def make_run(folder: Path) -> Run:
    run = Run.create(make_config(folder, rl={"steps": 4}), quiet=True)
    run.attach(learner=FakeLearner())
    return run


def step(run: Run, reward: float = 0.5) -> None:
    run.finish_step(FakeUpdate({"loss/total": 1.0, "reward/mean": reward}))


def test_every_step_and_event_is_shown_once_until_the_run_ends(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    step(run)
    seen: list[tuple[str, Any]] = []
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 1:
            step(run)
            run.event("guard_note", reason="slow")
        elif len(waits) == 3:
            step(run)
            run.__exit__(None, None, None)

    state = watch(run.folder, lambda kind, row: seen.append((kind, row)), sleep)
    assert [row["step"] for kind, row in seen if kind == "metrics"] == [1, 2, 3]
    assert ("notes", {"text": "step 2: guard note: slow"}) in seen
    assert len(waits) == 3 and state.split(":")[0] != "running"


def test_a_run_that_is_killed_ends_the_command(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    step(run)
    # The system releases the lock of a killed process; no file of the run changes.
    assert watch(run.folder, lambda kind, row: None, lambda _: run._release()) == "killed"


def test_a_rollback_shows_the_new_rows_of_its_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path)
    step(run)
    step(run)
    path = run.folder / "metrics.jsonl"
    shown: list[tuple[str, int]] = []

    class Recorder(Progress):
        def __call__(self, kind: str, row: Any) -> None:
            if kind == "metrics":
                shown.append((kind, row["loss/total"]))

    def sleep(seconds: float) -> None:
        path.write_text(path.read_text().replace('"loss/total": 1.0', '"loss/total": 2.0'))
        run._release()

    monkeypatch.setattr(watching, "Progress", Recorder)
    watch(run.folder, sleep=sleep)
    assert [value for _, value in shown] == [1.0, 1.0, 2.0, 2.0]


@pytest.mark.parametrize("terminal", [True, False])
def test_a_value_that_is_no_number_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    with make_run(tmp_path) as run:
        step(run, float("nan"))
    text = io.StringIO()
    console = Console(file=text, width=100, force_terminal=terminal, color_system=None)
    monkeypatch.setattr(
        watching, "Progress", lambda *given, **more: Progress(*given, console=console, **more)
    )
    watch(run.folder)
    assert "reward nan" in text.getvalue()


def test_a_terminal_shows_curves_and_the_newest_completions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with make_run(tmp_path) as run:
        for number, reward in enumerate((0.25, 0.5, 0.75), 1):
            run.record(*make_rollouts(number))
            step(run, reward)
    text = io.StringIO()
    console = Console(file=text, width=100, force_terminal=True, color_system=None)
    monkeypatch.setattr(
        watching, "Progress", lambda *given, **more: Progress(*given, console=console, **more)
    )
    watch(run.folder)
    # A display that is updated in place first erases its lines, so the last screen comes last.
    shown = text.getvalue().rsplit("\x1b[2K", 1)[-1]
    assert "3/4" in shown and "best of step 3" in shown and "worst of step 3" in shown


def test_a_folder_without_a_run_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no run directory") as refused:
        watch(tmp_path)
    assert "\n" not in str(refused.value)


def test_long_curves_are_thinned_to_means() -> None:
    assert thinned([1.0, 2.0], 4) == [1.0, 2.0]
    assert thinned([float(n) for n in range(8)], 4) == [0.5, 2.5, 4.5, 6.5]
