"""What is shown: lines off a terminal, a live display on one, nothing when quiet."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
from dataclasses import dataclass
from types import ModuleType

import pytest
from rich.console import Console
from rich.live import Live

from assay.host.clock import PhaseClock
from assay.run.progress import Progress, evaluation_seconds_left, format_seconds, sparkline
from assay.run.stop import StopSignal

METRICS = {"reward/mean": 0.5, "time/step": 0.5, "speed/step": 1234.5, "loss/total": 0.25}


def row(step: int) -> dict[str, float]:
    return {**METRICS, "step": step, "time/elapsed": 2.0 * step}


def make(terminal: bool, **settings: object) -> tuple[Progress, io.StringIO]:
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=120, highlight=False)
    return Progress("demo", 10, console=console, **settings), out  # type: ignore[arg-type]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that the display believes in."""
    now = [0.0]
    monkeypatch.setattr("assay.run.progress.time.monotonic", lambda: now[0])
    return now


def test_plain_lines_are_few_and_end_with_the_last_step() -> None:
    progress, out = make(terminal=False)
    for step in range(1, 11):
        progress("metrics", row(step))
    progress.close()
    lines = out.getvalue().splitlines()
    assert [line.split("  ")[0] for line in lines] == ["step 1/10", "step 10/10"]
    assert "reward 0.500" in lines[0] and "tok/s 1,234" in lines[0]
    assert lines[1].endswith("ETA 0 s")


def test_the_pace_includes_what_lies_between_steps() -> None:
    progress, _ = make(terminal=False)
    assert progress.eta(0) is None
    for step in (1, 2, 3):
        progress("metrics", row(step))
    assert progress.eta(3) == pytest.approx(14.0)


def test_evaluations_are_counted_apart_from_the_pace(clock: list[float]) -> None:
    progress, _ = make(terminal=False, max_minutes=1.0, evaluate_every=5)
    progress("metrics", row(1))
    progress("evaluations", {"step": 1, "eval/seconds": 100.0})
    progress("metrics", {**row(2), "time/elapsed": 104.0})
    progress.evaluations = [{"step": 1, "eval/seconds": 10.0}]
    assert progress.eta(2) == pytest.approx(8 * 2.0 + 2 * 10.0)
    clock[0] = 55.0
    assert progress.eta(2) == 5.0, "the run stops by itself after a minute"


@pytest.mark.parametrize(
    ("every", "step", "num_steps", "count"),
    [(None, 3, 10, 1), (5, 3, 10, 2), (5, 5, 10, 2), (5, 6, 10, 1), (4, 1, 10, 3), (4, 10, 10, 1)],
)
def test_seconds_of_evaluations_to_come(
    every: int | None, step: int, num_steps: int, count: int
) -> None:
    due = {num_steps, *(range(every, num_steps + 1, every) if every else ())}
    assert count == len([one for one in due if one >= step])
    rows = [{"step": 0, "eval/seconds": 90.0}, {"step": 2, "eval/seconds": 2.0}]
    rows.append({"step": 2, "eval/seconds": 1.0})
    assert evaluation_seconds_left(rows, every, step, num_steps) == pytest.approx(3.0 * count)
    assert evaluation_seconds_left([], every, step, num_steps) == 0.0


def test_a_terminal_gets_a_live_display_that_leaves_notes() -> None:
    progress, out = make(terminal=True)
    for step in (1, 2):
        progress("metrics", row(step))
    progress("notes", {"text": "held-out 0.5 [not markup]"})
    progress.close()
    assert "2/10" in out.getvalue() and "held-out 0.5 [not markup]" in out.getvalue()


def test_quiet_shows_nothing() -> None:
    for terminal in (True, False):
        progress, out = make(terminal=terminal, quiet=True)
        progress("metrics", row(10))
        progress("notes", {"text": "x"})
        progress.close()
        assert out.getvalue() == ""


def test_durations_and_sparklines() -> None:
    shown = [format_seconds(s) for s in (0.4, 59.6, 260, 11100)]
    assert shown == ["0 s", "1 min 00 s", "4 min 20 s", "3 h 05 min"]
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█" and sparkline([3.0, 3.0]) == "▁▁"


def test_the_first_signal_asks_and_the_second_interrupts() -> None:
    before = signal.getsignal(signal.SIGINT)
    with StopSignal() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.requested
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGINT) is before


def test_signal_handlers_are_unchanged_outside_the_main_thread() -> None:
    errors: list[BaseException] = []

    def work() -> None:
        try:
            with StopSignal():
                pass
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not errors


def test_a_nested_phase_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("time.perf_counter", lambda: now)
    clock = PhaseClock()

    with clock.phase("judge"):
        now += 1.0
        with clock.phase("generate"):
            now += 3.0
        now += 0.5
    with pytest.raises(ValueError, match="x"), clock.phase("judge"):
        now += 1.0
        raise ValueError("x")
    assert clock.drain() == {"judge": 2.5, "generate": 3.0}
    assert clock.drain() == {}


@dataclass
class Call:
    """What a generator tells of one of its calls."""

    num_wanted: int = 8
    num_completions: int = 0
    tokens: int = 0
    tokens_per_second: float = 1234.5


def test_a_long_generation_says_how_far_it_is_where_nothing_else_is_said(
    clock: list[float],
) -> None:
    progress, out = make(terminal=False)
    call = Call()
    for second in range(65):
        clock[0], call.tokens = float(second), 100 * second
        call.num_completions = second // 20
        progress.sampling(call)
        if second == 10:
            progress("notes", {"text": "a note"})
    assert out.getvalue().splitlines() == [
        "a note",
        "sampling: 2 of 8 completions, 4,000 tokens, 1,234 tokens/s",
    ], "30 seconds after the note, and not yet 30 after that"


def test_a_generation_that_was_shown_is_not_left_half_done(clock: list[float]) -> None:
    progress, out = make(terminal=False)
    call = Call()
    for done in (0, 7, 8):
        clock[0] += 25.0
        call.num_completions = done
        progress.sampling(call)
    lines = [line.partition(" completions")[0] for line in out.getvalue().splitlines()]
    assert lines == ["sampling: 7 of 8", "sampling: 8 of 8"]


def test_parts_of_an_evaluation_are_counted_as_one(clock: list[float]) -> None:
    progress, out = make(terminal=False)
    with progress.sampling.doing("held-out problems, greedy", 20):
        progress.sampling(Call(num_completions=1))
        first = Call(num_completions=8)
        progress.sampling(first)
        clock[0] = 40.0
        progress.sampling(Call(num_completions=3))
    clock[0] = 80.0
    progress.sampling(Call(num_completions=5))
    lines = [line.partition(" completions")[0] for line in out.getvalue().splitlines()]
    assert lines == ["held-out problems, greedy: 12 of 20", "sampling: 5 of 8"]


def test_short_steps_leave_no_lines_of_generations(clock: list[float]) -> None:
    progress, out = make(terminal=False)
    for step in range(1, 10):
        clock[0] = 20.0 * step
        progress.sampling(Call())
        progress("metrics", row(step))
    assert "sampling" not in out.getvalue()


def test_a_terminal_shows_a_bar_below_that_of_the_steps(clock: list[float]) -> None:
    progress, out = make(terminal=True)
    progress("metrics", row(3))
    for second in (1.0, 2.0):
        clock[0] = second
        progress.sampling(Call(num_completions=5, tokens=99))
    assert isinstance(progress._live, Live)
    progress._live.refresh()
    shown = out.getvalue()
    assert "5 of 8 completions, 99 tokens, 1,234 tokens/s" in shown and "3/10" in shown
    progress.close()


def test_a_quiet_run_says_nothing_of_its_generations(clock: list[float]) -> None:
    for terminal in (False, True):
        progress, out = make(terminal=terminal, quiet=True)
        clock[0] += 100.0
        progress.sampling(Call())
        assert out.getvalue() == ""


class FakeCell:
    """A notebook's `IPython.display`: the pages that its one display has shown."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pages: list[dict[str, str]] = []
        self.num_displays = 0
        module = ModuleType("IPython.display")
        module.display = self.display  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
        monkeypatch.setitem(sys.modules, "IPython.display", module)

    def display(self, page: dict[str, str], **how: bool) -> FakeCell:
        assert how == {"raw": True, "display_id": True}
        self.num_displays += 1
        self.pages.append(page)
        return self

    def update(self, page: dict[str, str], **how: bool) -> None:
        self.pages.append(page)


def test_a_notebook_s_cell_is_replaced_in_place(
    monkeypatch: pytest.MonkeyPatch, clock: list[float]
) -> None:
    cell = FakeCell(monkeypatch)
    monkeypatch.setenv("FORCE_COLOR", "1")  # as kernels have it
    console = Console(file=io.StringIO(), force_jupyter=True)
    progress = Progress("a <b> run", 10, console=console)
    for step in range(1, 11):
        clock[0] += 0.1
        progress("metrics", row(step))
    assert cell.num_displays == 1 and 3 <= len(cell.pages) <= 5, "not at every step"
    progress.close()
    first, last = cell.pages[0]["text/plain"], cell.pages[-1]["text/plain"]
    assert "1/10" in first and "10/10" in last and "reward 0.500" in last and "\x1b" not in last
    assert "<pre>a &lt;b&gt; run" in cell.pages[-1]["text/html"]
    quiet = Progress("quiet", 10, console=console, quiet=True)
    quiet("metrics", row(1))
    quiet.close()
    assert cell.num_displays == 1
