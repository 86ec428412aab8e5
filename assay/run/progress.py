"""Progress display of a run: updated in place in a terminal or a notebook, or else lines of
text."""

from __future__ import annotations

import html
import io
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from rich.console import Console, ConsoleRenderable, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from assay.host.terminal import escaped, one_line
from assay.run.evaluations import (
    Row,
    accuracy_of,
    is_of_loss,
    kind_of,
    on_canaries,
    perplexity_words,
)
from assay.run.intervals import share_words

_BARS = "▁▂▃▄▅▆▇█"
_PLAIN_EVERY = 5.0
"""Minimum number of seconds between the lines of two steps, without a live display."""
_SAMPLING_EVERY = 30.0
"""Seconds without output after which a line reports the progress of sampling."""
_SILENT_AFTER = 5.0
"""Seconds without a report of the generator, after which the general progress is shown."""
_LIVE_EVERY = 0.25
"""Minimum number of seconds between two updates of a live display."""
_WORDS = {
    "generate": "sampling",
    "evaluate": "evaluating",
    "critic": "updating the critic",
    "verify": "judging",
    "score": "scoring",
    "record": "writing the log",
    "load_policy": "handing on the weights",
    "checkpoint": "saving a checkpoint",
}
_NOTEBOOK_WIDTH = 100
_SHOWN = (
    ("reward/mean", "reward", "{:.3f}"),
    ("verdict/passed", "passed", "{:.1%}"),
    ("kl/mean", "kl", "{:.4f}"),
    ("entropy/mean", "entropy", "{:.3f}"),
    ("length/mean", "length", "{:.0f}"),
    ("loss/total", "loss", "{:z.4f}"),
    ("loss/nll", "nll", "{:.4f}"),
    ("optimizer/grad_norm", "grad norm", "{:.2f}"),
    ("speed/step", "tok/s", "{:,.0f}"),
)
_WINDOW = 32
"""Number of newest steps for the estimate of the pace and for the reward curve."""


class SamplingCall(Protocol):
    """State of a generator call, which the generator reports at each decoding step."""

    @property
    def num_wanted(self) -> int: ...
    @property
    def num_completions(self) -> int: ...
    @property
    def tokens(self) -> int: ...
    @property
    def tokens_per_second(self) -> float: ...


@dataclass(frozen=True, slots=True)
class HowFar:
    """Progress of a sampling task. call: number of the newest generator call within the current
    task.
    """

    what: str
    num_completions: int
    num_wanted: int
    call: SamplingCall

    @property
    def numbers(self) -> str:
        """Text of the counts and the speed, without the name of the current work."""
        of = f"{self.num_completions:,} of {self.num_wanted:,} completions"
        return f"{of}, {self.call.tokens:,} tokens, {self.call.tokens_per_second:,.0f} tokens/s"

    def __str__(self) -> str:
        return f"{self.what}: {self.numbers}"


class SamplingWatch:
    """Receives the progress reports of a generator, and displays some of them.

    every: minimum number of seconds between two displayed reports. Other output also counts as a
    displayed report; the method `showed` announces other output. If any report of a generator call
    was displayed, its last report is displayed too.
    """

    def __init__(self, show: Callable[[HowFar], None], every: float = _SAMPLING_EVERY) -> None:
        self._show = show
        self._every = every
        self._last = time.monotonic()
        self._what, self._num_wanted, self._num_before = "sampling", 0, 0
        self._heard = float("-inf")
        self._call: SamplingCall | None = None
        self._shown: SamplingCall | None = None

    def __call__(self, call: SamplingCall) -> None:
        """Receive a progress report of a generator call."""
        self._heard = time.monotonic()
        if call is not self._call:
            if self._call is not None and self._num_wanted:
                self._num_before += self._call.num_completions
            self._call = call
        # A call's last report is always displayed, so that a visible count reaches its total.
        ended = self._shown is call and call.num_completions == call.num_wanted
        if ended or self.is_due:
            self._shown = call
            self.showed()
            done = self._num_before + call.num_completions
            self._show(HowFar(self._what, done, self._num_wanted or call.num_wanted, call))

    @property
    def is_due(self) -> bool:
        """Whether the minimum time since the last output has passed."""
        return time.monotonic() - self._last >= self._every

    @property
    def is_silent(self) -> bool:
        """Whether the generator has sent no report for `_SILENT_AFTER` seconds."""
        return time.monotonic() - self._heard >= _SILENT_AFTER

    def showed(self) -> None:
        """Restart the time between displayed reports, because other output was displayed."""
        self._last = time.monotonic()

    @contextmanager
    def doing(self, what: str, num_wanted: int) -> Iterator[None]:
        """Count all generator calls in this context as one task that samples ``num_wanted``
        completions.
        """
        self._what, self._num_wanted, self._num_before = what, num_wanted, 0
        self._call = None
        try:
            yield
        finally:
            self._what, self._num_wanted, self._num_before = "sampling", 0, 0


class NotebookDisplay:
    """Display in a notebook cell that is updated in place, as `Live` does in a terminal."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._newest: ConsoleRenderable | None = None
        self._shown = float("-inf")

    def update(self, shown: ConsoleRenderable) -> None:
        """Replace the content of the notebook cell, at most once per `_LIVE_EVERY` seconds."""
        self._newest = shown
        if time.monotonic() - self._shown >= _LIVE_EVERY:
            self.stop()

    def stop(self) -> None:
        """Display the newest content, unless it is displayed already."""
        if self._newest is None:
            return
        text = io.StringIO()
        # Jupyter kernels set FORCE_COLOR, which rich obeys, although HTML cannot show color codes.
        plainly: dict[str, Any] = {"force_terminal": False, "color_system": None}
        console = Console(file=text, width=_NOTEBOOK_WIDTH, force_jupyter=False, **plainly)
        console.print(self._newest)
        plain = text.getvalue()
        page = {"text/plain": plain, "text/html": f"<pre>{html.escape(plain)}</pre>"}
        self._newest, self._shown = None, time.monotonic()
        if self._handle is None:
            # IPython exists only in a notebook, so the import happens here.
            from IPython.display import display  # pyright: ignore[reportMissingImports]

            self._handle = display(page, raw=True, display_id=True)
        else:
            self._handle.update(page, raw=True)


class Progress:
    """Progress display of a run on standard error. The progress display receives the rows of the
    run as a `Listener`.

    A terminal or notebook shows a progress bar, the newest metrics, the reward curve, and the
    progress of sampling. Without a terminal or notebook, the display prints a line per step, at
    most one line every 5 s, and a line for each long work. A quiet display shows nothing.
    evaluate_every, max_minutes: configured values, from which the remaining time is estimated.
    evaluations: evaluations so far. sampling: receives the generator's reports. transient: whether
    `close` erases a display that is updated in place.
    """

    def __init__(
        self,
        name: str,
        num_steps: int | None = None,
        quiet: bool = False,
        console: Console | None = None,
        evaluate_every: int | None = None,
        max_minutes: float | None = None,
        transient: bool = True,
    ) -> None:
        self.name = name
        self.num_steps = num_steps
        self.quiet = quiet
        self.console = console or Console(stderr=True, highlight=False)
        self.evaluations: list[Row] = []
        self._below: Sequence[ConsoleRenderable] = ()
        self._evaluate_every = evaluate_every
        self._ends = float("inf") if max_minutes is None else time.monotonic() + 60 * max_minutes
        self._seconds_evaluating = 0.0
        self._pace: deque[tuple[int, float]] = deque(maxlen=_WINDOW)
        self._rewards: deque[float] = deque(maxlen=_WINDOW)
        self._last_line = float("-inf")
        self._live: Live | NotebookDisplay | None = None
        self._head: Group | None = None
        if self.console.is_jupyter and not quiet:
            self._live = NotebookDisplay()
        elif self.console.is_terminal and not quiet:
            self._live = Live(console=self.console, refresh_per_second=4, transient=transient)
            self._live.start()
        every = _LIVE_EVERY if self._live is not None else _SAMPLING_EVERY
        self.sampling = SamplingWatch(self._show_sampling, every)

    def __call__(self, kind: str, row: Row) -> None:
        """Display a finished step, an evaluation, the progress of long work, or a note."""
        if kind == "metrics":
            self._step(row["step"], row)
        elif kind == "evaluations":
            self._evaluated(row)
        elif kind == "progress" and not self.quiet:
            self._working(row)
        elif kind == "notes" and not self.quiet:
            self._print(one_line(row["text"]))

    def show_below(self, lines: Sequence[ConsoleRenderable]) -> None:
        """Show lines under the metrics of a display that is updated in place."""
        self._below = lines
        if self._live is not None:
            head = self._head or Text(escaped(self.name), "bold")
            self._live.update(Group(head, *lines))

    def _step(self, step: int, metrics: Row) -> None:
        elapsed = metrics.get("time/elapsed") or 0.0
        # The pace excludes evaluations: they run every few steps, and `eta` counts them separately.
        self._pace.append((step, elapsed - self._seconds_evaluating))
        if metrics.get("reward/mean") is not None:
            self._rewards.append(metrics["reward/mean"])
        if self._live is not None:
            self._head = self._display(step, metrics)
            self._live.update(Group(self._head, *self._below))
        elif not self.quiet:
            now = time.monotonic()
            if now - self._last_line >= _PLAIN_EVERY or step == self.num_steps:
                self._last_line = now
                self._print(self._line(step, metrics))

    def _working(self, row: Row) -> None:
        """Display long work: at once if the display updates in place, or else after 30 s without
        other output.

        While the generator reports its tokens, other progress reports are not displayed, because
        they have fewer details.
        """
        if row["what"] in ("generate", "evaluate") and not self.sampling.is_silent:
            return
        if self._live is not None:
            shown = Text(working_words(row), "dim")
            self._live.update(shown if self._head is None else Group(self._head, shown))
        elif self.sampling.is_due:
            self._print(working_words(row))

    def _evaluated(self, row: Row) -> None:
        self.evaluations.append(row)
        self._seconds_evaluating += row.get("eval/seconds") or 0.0
        accuracy = accuracy_of(row)
        if self.quiet:
            return
        if is_of_loss(row):
            self._print(f"step {row['step']}: held-out {perplexity_words(row)}")
        elif accuracy is not None:
            shown = f"{accuracy:.3f}{share_words(row, '.3f')}"
            name = kind_of(row) if on_canaries(row) else "held-out"
            kind = "" if on_canaries(row) else f" ({kind_of(row)})"
            self._print(f"step {row['step']}: {name} {shown}{kind}")

    def close(self) -> None:
        """Restore the terminal."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def eta(self, step: int) -> float | None:
        """Estimate the seconds until the end of the run from the recent pace, plus the time of
        future evaluations.
        """
        if self.num_steps is None or len(self._pace) < 2:
            return None
        (first, started), (last, now) = self._pace[0], self._pace[-1]
        # A damaged journal may contain a step twice.
        if last <= first:
            return None
        pace = (now - started) / (last - first)
        left = (self.num_steps - step) * pace
        left += evaluation_seconds_left(
            self.evaluations, self._evaluate_every, step, self.num_steps
        )
        return max(0.0, min(left, self._ends - time.monotonic()))

    def _show_sampling(self, how_far: HowFar) -> None:
        if self._live is not None:
            row = Table.grid(padding=(0, 2))
            bar = ProgressBar(how_far.num_wanted, how_far.num_completions, width=30)
            row.add_row(Text(escaped(how_far.what)), bar, Text(how_far.numbers, "dim"))
            self._live.update(row if self._head is None else Group(self._head, row))
        elif not self.quiet:
            self._print(str(how_far))

    def _print(self, text: str) -> None:
        self.sampling.showed()
        self.console.print(Text(escaped(text)), soft_wrap=True)

    def _line(self, step: int, metrics: Row) -> str:
        of = f"/{self.num_steps}" if self.num_steps else ""
        pairs = [f"{label} {value}" for label, value in _shown(metrics)]
        return "  ".join([f"step {step}{of}", *pairs, *self._times(step, metrics)])

    def _times(self, step: int, metrics: Row) -> list[str]:
        eta = self.eta(step)
        times = [f"{metrics.get('time/step') or 0.0:.2f} s/step"]
        return [*times, f"ETA {format_seconds(eta)}"] if eta is not None else times

    def _display(self, step: int, metrics: Row) -> Group:
        head = Table.grid(padding=(0, 2))
        bar = ProgressBar(total=self.num_steps, completed=step, width=30, pulse=not self.num_steps)
        of = f"{step}/{self.num_steps}" if self.num_steps else f"{step}"
        times = "  ".join(self._times(step, metrics))
        head.add_row(Text(escaped(self.name), "bold"), bar, Text(of, "bold"), Text(times, "dim"))
        numbers = Text()
        for label, value in _shown(metrics):
            numbers.append(f"{label} ", "dim").append(f"{value}   ")
        if len(self._rewards) > 1:
            numbers.append("reward ", "dim").append(sparkline(self._rewards), "green")
        return Group(head, numbers)


def _shown(metrics: Row) -> list[tuple[str, str]]:
    # In metrics.jsonl, a value that is not a number is null.
    values = {key: math.nan if value is None else value for key, value in metrics.items()}
    return [(label, form.format(values[key])) for key, label, form in _SHOWN if key in values]


def working_words(row: Row) -> str:
    """Describe long work as ``update: 3 of 17 micro-batches, 41 s, ETA 3 min 10 s``."""
    what = _WORDS.get(row["what"], row["what"])
    parts = [f"{row['done']:,} of {row['of']:,} {row['unit']}"] if "of" in row else []
    parts.append(format_seconds(row["seconds"]))
    parts += [f"ETA {format_seconds(row['eta'])}"] if "eta" in row else []
    return f"{what}: {', '.join(parts)}"


def evaluation_seconds_left(
    evaluations: Sequence[Row], every: int | None, step: int, num_steps: int | None
) -> float:
    """Estimate the total seconds of all evaluations from ``step`` on.

    Each future evaluation is assumed to take as long as the newest evaluation.
    """
    if num_steps is None or not evaluations:
        return 0.0
    newest = [row for row in evaluations if row["step"] == evaluations[-1]["step"]]
    seconds = sum(row.get("eval/seconds") or 0.0 for row in newest)
    if every is None:
        return seconds
    count = num_steps // every - (step - 1) // every + (num_steps % every > 0)
    return count * seconds


def sparkline(values: deque[float] | list[float]) -> str:
    """Draw values as a line of block characters, scaled from the lowest value to the highest."""
    low, high = min(values), max(values)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((value - low) * scale)] for value in values)


def format_seconds(seconds: float) -> str:
    """Format a duration as 8 s, 4 min 20 s, or 3 h 05 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
