"""Accuracy as a function of the generated tokens, for each thinking budget and think mode."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, Unpack, get_args

import numpy as np

from assay import config as configuration
from assay.config import SamplingConfig
from assay.data.sources import Rows, as_sources
from assay.errors import ConfigError, MissingExtra, message
from assay.host.files import check_output
from assay.host.terminal import aligned
from assay.run.intervals import stderr_of
from assay.run.startup import show_startup
from assay.session.assemble import show_sampling
from assay.session.evaluate import evaluate
from assay.session.sampling import SamplingOptions, takes_sampling_options
from assay.session.sampling_session import SamplingSession, check_sampling
from assay.session.thinking import check_thinking
from assay.training.api import open_asked
from assay.types import Group, Problem, ThinkMode, Verdict

SHARES_OF_LONGEST = (8, 4, 2)
"""Divisors of the longest completion that give the default budgets; "no budget" is added."""


@dataclass(frozen=True, slots=True)
class Point:
    """Results of a model at one thinking budget and in one think mode.

    tokens: mean completion length over problems, in tokens, including injected tokens. stderr,
    tokens_stderr: standard errors over problems of the accuracy and of the tokens. injected: share
    of completions with injected tokens, such as the text that ends thinking. mode: think mode of
    all problems; None if each row has its own think mode. accuracy: mean pass rate over problems;
    None if no completion was judged.
    """

    mode: str | None
    budget: int | None
    name: str
    accuracy: float | None
    stderr: float | None
    tokens: float
    tokens_stderr: float | None
    injected: float
    truncated: float
    num_problems: int


@dataclass(frozen=True, slots=True)
class Frontier:
    """Results of one model at several thinking budgets."""

    model: str
    num_samples: int
    temperature: float
    points: Sequence[Point]

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        rows = [("mode", "budget", "accuracy", "tokens", "injected", "cut at the limit")]
        for one in self.points:
            accuracy = "not judged"
            if one.accuracy is not None:
                accuracy = f"{one.accuracy:.1%}{_spread(one.stderr, '.1%')}"
            tokens = f"{one.tokens:.1f}{_spread(one.tokens_stderr, '.1f')}"
            shares = (f"{one.injected:.0%}", f"{one.truncated:.0%}")
            rows.append((one.mode or "as the rows", one.name, accuracy, tokens, *shares))
        if all(one.mode is None for one in self.points):
            rows = [row[1:] for row in rows]
        noun = "sample" if self.num_samples == 1 else "samples"
        about = f"{self.points[0].num_problems} problems, {self.num_samples} {noun} of each"
        return "\n".join([*aligned(rows), f"{about}, temperature {self.temperature:g}"])

    # Notebooks show the repr of an object, so the repr is the text for people.
    __repr__ = __str__


@takes_sampling_options
def frontier(
    model: Path | str,
    problems: Rows,
    *,
    budgets: Sequence[int | str] = (),
    modes: Sequence[str] = (),
    num_samples: int = 1,
    temperature: float = 0.0,
    max_problems: int | None = None,
    out: Path | str | None = None,
    quiet: bool = False,
    **options: Unpack[SamplingOptions],
) -> Frontier:
    """Measure a model at several thinking budgets, with the same random numbers at each budget.

    budgets: numbers of tokens, names in ``sampling.efforts``, or ``none`` for no budget. The
    default is three fractions of the maximum completion length, and ``none``. modes: think modes to
    measure. Efforts and think modes in the arguments replace those of the rows. A think mode
    without thinking is measured only once, for all budgets. out: JSON file; the figure is written
    next to it as SVG. All other parameters of this function are those of `assay.evaluate`. Raises
    UserError for invalid input.
    """
    configuration.check_siblings(num_samples, temperature)
    if options.get("think_budget") is not None or options.get("effort") is not None:
        raise ConfigError("frontier: found a budget that is not in the list; give each as --budget")
    if unknown := [mode for mode in modes if mode not in get_args(ThinkMode)]:
        raise ConfigError(message("--mode", repr(unknown[0]), ", ".join(get_args(ThinkMode))))
    if out is not None:
        figure = Path(out).with_suffix(".svg")
        if figure == Path(out):
            raise ConfigError(message("--out", str(out), "a JSON file; its figure is an SVG"))
        check_output(Path(out))
        check_output(figure)
        # A missing matplotlib is reported before the sampling, which may take hours.
        if importlib.util.find_spec("matplotlib") is None:
            raise MissingExtra.of("matplotlib", "figures", "the figure of a frontier")
    with ExitStack() as stack:
        sources = as_sources(problems)
        with show_startup(quiet):
            session, rows = open_asked(
                str(model), sources, max_problems, num_samples, options, stack
            )
        sampling = configuration.at_temperature(session.config.sampling, temperature)
        # All budgets are checked before sampling, so that a wrong budget wastes no samples.
        plan = list(_plan(session, rows, budgets, modes, sampling))
        watch = show_sampling(session.generator, stack, quiet)
        points: list[Point] = []
        for mode, name, own, of_budget in plan:
            with watch.doing(f"problems, budget {name}", len(own) * num_samples):
                points.append(_measure(session, own, of_budget, num_samples, mode, name))
    found = Frontier(str(model), num_samples, temperature, points)
    if out is not None:
        Path(out).write_text(json.dumps(found.as_dict(), indent=1) + "\n", encoding="utf-8")
        draw(found, figure)
    return found


Planned = tuple[str | None, str, Sequence[Problem], SamplingConfig]


def _plan(
    session: SamplingSession,
    rows: Sequence[Problem],
    budgets: Sequence[int | str],
    modes: Sequence[Any],
    sampling: SamplingConfig,
) -> list[Planned]:
    """Return (mode, budget, problems, sampling) for each point of the curve; raise if a point is
    invalid."""
    longest = sampling.max_tokens
    asked = budgets or [*(max(1, longest // part) for part in SHARES_OF_LONGEST), "none"]
    named = {str(one): _budget_of(one, sampling) for one in asked}
    planned: list[Planned] = []
    for mode in dict.fromkeys(modes or [None]):
        own = rows if mode is None else [replace(row, think=mode) for row in rows]
        thinks = any(session.renderer.render(problem).think.thinks for problem in own)
        # Without thinking, thinking budgets have no effect, so the mode is measured once.
        for name, budget in named.items() if thinks or mode is None else [("none", None)]:
            try:
                asked_at, held = _at(name, budget, own, sampling)
                check_sampling(session.config.model_copy(update={"sampling": held}), asked_at)
                check_thinking(
                    session.renderer, asked_at, held, mode is None and budget is not None
                )
            except ConfigError:
                if budgets or not thinks:
                    raise
                # A default budget may leave no room for the text that ends the thinking.
                # Some generators do not support a thinking budget.
                continue
            planned.append((mode, name, asked_at, held))
    return planned


def _at(
    name: str, budget: int | None, rows: Sequence[Problem], sampling: SamplingConfig
) -> tuple[Sequence[Problem], SamplingConfig]:
    """Return the problem rows and the sampling settings for one thinking budget.

    If the budget is a number of tokens, the line of a row's prompt that states the thinking effort
    is kept.
    """
    if name in sampling.efforts:
        none = configuration.with_sampling(sampling, think_budget=None, effort=None)
        return [replace(row, effort=name) for row in rows], none
    changes = {"think_budget": budget, "effort": sampling.line(sampling.effort)}
    held = configuration.with_sampling(sampling, **changes)
    return [replace(row, effort=sampling.line(row.effort)) for row in rows], held


def _budget_of(asked: int | str, sampling: SamplingConfig) -> int | None:
    """Return the token budget that a number, a name or ``none`` denotes; None means no token
    budget.
    """
    text = str(asked)
    if text == "none" or text in sampling.efforts:
        level = sampling.efforts.get(text)
        return level if isinstance(level, int) else None
    if text.isdecimal() and int(text):
        return int(text)
    names = ", ".join(["none", *sampling.efforts])
    raise ConfigError(message("--budget", repr(text), f"a number of tokens, or {names}"))


def _measure(
    session: SamplingSession,
    rows: Sequence[Problem],
    sampling: SamplingConfig,
    num_samples: int,
    mode: str | None,
    name: str,
) -> Point:
    lengths: list[float] = []
    injected: list[bool] = []

    def look(group: Group, verdicts: Sequence[Verdict]) -> None:
        lengths.append(float(np.mean([len(one.tokens) for one in group.completions])))
        injected.extend(one.num_injected > 0 for one in group.completions)

    found = evaluate(session.generator, session.verifiers, rows, sampling, num_samples, look)
    return Point(
        mode=mode,
        budget=sampling.budget(rows[0].effort),
        name=name,
        accuracy=found.pass_at_1 if found.num_problems else None,
        stderr=found.stderr,
        tokens=float(np.mean(lengths)),
        tokens_stderr=stderr_of(lengths),
        injected=float(np.mean(injected)),
        truncated=found.truncated,
        num_problems=len(rows),
    )


def draw(found: Frontier, path: Path) -> None:
    """Write the figure as SVG. Equal results give identical files."""
    import matplotlib

    # Matplotlib's SVG backend also works on a machine without a display.
    matplotlib.use("svg")
    from matplotlib import pyplot

    # Labels in the SVG figure stay text instead of paths, so that a reader can search for words.
    # A fixed salt makes the ids in the SVG equal each time, and therefore the file's bytes.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "assay", "font.size": 9}):
        figure, axis = pyplot.subplots(figsize=(5, 3.6))
        for mode, own in groupby(found.points, key=lambda one: one.mode):
            points = sorted(own, key=lambda one: one.tokens)
            # Matplotlib draws a gap for NaN, which is the value where no completion was judged.
            shares = [float("nan") if one.accuracy is None else one.accuracy for one in points]
            axis.errorbar(
                [one.tokens for one in points],
                shares,
                xerr=[one.tokens_stderr or 0.0 for one in points],
                yerr=[one.stderr or 0.0 for one in points],
                marker="o",
                capsize=3,
                label=f"think {mode}",
            )
            for one, share in zip(points, shares, strict=True):
                place = (one.tokens, share)
                axis.annotate(one.name, place, xytext=(4, 4), textcoords="offset points")
        axis.set_xlabel("generated tokens")
        axis.set_ylabel("accuracy")
        axis.grid(True, alpha=0.25, linewidth=0.6)
        axis.spines[["top", "right"]].set_visible(False)
        if any(one.mode is not None for one in found.points):
            axis.legend(frameon=False)
        figure.tight_layout()
        # The SVG file contains no date, so that equal numbers give equal files.
        figure.savefig(path, transparent=True, metadata={"Date": None})
        pyplot.close(figure)


def _spread(error: float | None, style: str) -> str:
    return "" if error is None else f" ± {error:{style}}"
