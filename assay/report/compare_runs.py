"""Comparison of runs: settings, final metrics, held-out accuracy and speed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean, median
from typing import Any

from assay.errors import RunError, message
from assay.host.files import plain
from assay.host.terminal import aligned, lined
from assay.report.loaded import LoadedRun
from assay.run.environment import comparable_facts, settings_of
from assay.run.evaluation_log import read_answers
from assay.run.evaluations import (
    Row,
    accuracy_of,
    by_kind,
    on_canaries,
)
from assay.run.intervals import share_words
from assay.run.metrics import is_timing
from assay.run.paired import Paired, paired_rows
from assay.run.progress import format_seconds

Each = tuple[Any, ...]
"""One value per run, in the order A, B, C. The value is None if a run lacks the metric."""

_ALWAYS_DIFFER = ("run.name", "run.directory")
_SHOWN = (
    *("reward/mean", "verdict/passed", "verdict/not_judged_share", "group/mixed", "length/mean"),
    *("length/truncated", "entropy/mean", "kl/mean", "loss/total", "loss/nll"),
    *("preference/accuracy", "optimizer/grad_norm"),
)
"""Metrics shown in the text output. The JSON output contains all metrics."""
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_WIDEST = 60
_NAMED = 5
_LONGEST = 600
"""Maximum number of characters of a completion in the text output."""


@dataclass(frozen=True)
class Flip:
    """A held-out problem with different verdicts in runs A and B, and both completions."""

    problem: str
    question: str
    texts: tuple[str, str]
    verdicts: tuple[str, str]


@dataclass(frozen=True)
class HeldOut:
    """Held-out accuracy of run A and of another run, from their last evaluations of one kind.

    other: letter of the other run. same_source: whether both configurations name the same held-out
    data.
    """

    kind: str
    rows: tuple[Row | None, Row | None]
    flips: Sequence[Flip] = ()
    other: str = "B"
    same_source: bool = True

    @property
    def paired(self) -> Paired:
        """Pass rates of A and B on the problems that were judged in both runs."""
        first, last = self.rows
        return Paired() if first is None or last is None else paired_rows(first, last)

    @property
    def on_other_problems(self) -> bool:
        """Whether the runs were evaluated on different problems, so that no gain is defined."""
        first, last = self.rows
        if first is None or last is None or self.paired:
            return False
        # Without results per problem, only the configured data source can tell.
        has_problems = all(row.get("eval/by_problem") for row in (first, last))
        return has_problems or not self.same_source

    @property
    def difference(self) -> tuple[float, float | None] | None:
        """Accuracy of B minus accuracy of A, and the standard error of this difference.

        The difference is paired by problem if both runs have results per problem. None if the runs
        were evaluated on different problems.
        """
        first, last = self.rows
        if first is None or last is None or self.on_other_problems:
            return None
        if (gain := self.paired.gain) is not None:
            return gain.value, gain.stderr
        before, after = (accuracy_of(row) or 0.0 for row in (first, last))
        # These accuracies are not paired by problem, so their variances add up.
        errors = [row.get("eval/stderr") for row in (first, last)]
        known = [error for error in errors if error is not None]
        return after - before, sum(one**2 for one in known) ** 0.5 if len(known) == 2 else None

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain values for JSON."""
        value, error = self.difference or (None, None)
        return {
            "kind": self.kind,
            "other": self.other,
            "same_problems": not self.on_other_problems,
            "step": [row and row["step"] for row in self.rows],
            "accuracy": [row and accuracy_of(row) for row in self.rows],
            "stderr": [row and row.get("eval/stderr") for row in self.rows],
            "difference": value,
            "difference_stderr": error,
            "p_value": self.paired.p_value,
            "better": list(self.paired.better),
            "worse": list(self.paired.worse),
            "flips": [asdict(one) for one in self.flips],
        }


@dataclass(frozen=True)
class ComparedRuns:
    """Two or more runs and their differences. Run A is the baseline for held-out accuracy.

    settings: configuration keys with different values. surroundings: differences of machines and
    package versions. metrics: means over the last tenth of each run's steps (1 to 20 steps). speed:
    median seconds per step, tokens per second, wall time, peak memory.
    """

    runs: tuple[str, ...]
    settings: Mapping[str, Each]
    surroundings: Mapping[str, Each]
    heldout: Sequence[HeldOut]
    metrics: Mapping[str, Each]
    speed: Mapping[str, Each]

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain values for JSON. Tuples become lists."""
        tables = ("runs", "settings", "surroundings", "metrics", "speed")
        heldout = [one.as_dict() for one in self.heldout]
        return plain({name: getattr(self, name) for name in tables} | {"heldout": heldout})

    def __str__(self) -> str:
        numbers = {name: self.metrics[name] for name in _SHOWN if name in self.metrics}
        lines = [f"{letter}: {run}" for letter, run in zip(LETTERS, self.runs, strict=False)]
        lines += _section("settings that differ", self.settings, _text)
        lines += ["", "=== held-out accuracy ==="]
        lines += [line for one in self.heldout for line in _heldout_lines(one)] or ["none"]
        lines += _section("last steps, mean", numbers, _number)
        lines += _section("speed", self.speed, _number)
        lines += _section("machine and versions that differ", self.surroundings, _text)
        return lined(lines)


def compare_runs(runs: Sequence[LoadedRun], num_flips: int = 0) -> ComparedRuns:
    """Compare two or more runs, finished or in progress.

    num_flips: number of held-out problems to show with both completions, for each direction (solved
    only by A, solved only by B). Raises RunError for a single run and for too many runs.
    """
    if not 2 <= len(runs) <= len(LETTERS):
        raise RunError(message("assay run compare", f"{len(runs)} runs", f"2 to {len(LETTERS)}"))
    settings = _differing(*(settings_of(run.config) for run in runs))
    return ComparedRuns(
        runs=tuple(map(_described, runs)),
        settings={key: settings[key] for key in settings if key not in _ALWAYS_DIFFER},
        surroundings=_differing(*(comparable_facts(run.environment) for run in runs)),
        heldout=[
            one
            for letter, other in zip(LETTERS[1:], runs[1:], strict=False)
            for one in _held_out((runs[0], other), letter, num_flips)
        ],
        metrics=_beside(*map(_ends, runs)),
        speed=_beside(*map(_speed, runs)),
    )


def _held_out(runs: tuple[LoadedRun, LoadedRun], letter: str, num_flips: int) -> Iterator[HeldOut]:
    first, other = (by_kind(run.evaluations) for run in runs)
    settings = [settings_of(run.config) for run in runs]
    for kind in dict.fromkeys([*first, *other]):
        rows = (_last(first, kind), _last(other, kind))
        ending = ".canaries" if any(row and on_canaries(row) for row in rows) else ".heldout"
        sources = [
            {key: one for key, one in each.items() if key.endswith(ending)} for each in settings
        ]
        one = HeldOut(kind, rows, other=letter, same_source=sources[0] == sources[1])
        yield _with_flips(one, runs, num_flips)


def _last(kinds: Mapping[str, Sequence[Row]], kind: str) -> Row | None:
    return kinds[kind][-1] if kind in kinds else None


def _with_flips(one: HeldOut, runs: Sequence[LoadedRun], count: int) -> HeldOut:
    wanted = [*one.paired.better[:count], *one.paired.worse[:count]]
    if not wanted:
        return one
    read = [
        read_answers(run.folder, one.kind, int(row["step"])) if row is not None else {}
        for run, row in zip(runs, one.rows, strict=True)
    ]
    flips = [
        Flip(id, str(a["prompt"]), (a["text"], b["text"]), (a["status"], b["status"]))
        for id in wanted
        for a, b in zip(*(found.get(id, [])[:1] for found in read), strict=False)
    ]
    return replace(one, flips=flips)


def _described(run: LoadedRun) -> str:
    ended = run.ended or "still running, or killed"
    return f"{run.folder} ({ended}, {run.num_steps} steps, {format_seconds(run.seconds)})"


def _ends(run: LoadedRun) -> dict[str, float]:
    # The metrics of a single step are too noisy to compare runs.
    rows = run.metrics[-min(20, max(1, len(run.metrics) // 10)) :]
    names = [name for name in run.metrics.columns if name != "step" and not is_timing(name)]
    found = {name: _known(row.get(name) for row in rows) for name in names}
    return {name: fmean(values) for name, values in found.items() if values}


def _speed(run: LoadedRun) -> dict[str, float]:
    seconds = _known(row.get("time/step") for row in run.metrics)
    memory = _known(row.get("memory/peak_mib") for row in run.metrics)
    found: dict[str, float] = {}
    # A median, because a step after a checkpoint takes longer than the other steps.
    if seconds:
        found = {"seconds a step": median(seconds), "seconds in all": run.seconds}
    if run.seconds and run.num_tokens:
        found["tokens a second"] = run.num_tokens / run.seconds
    return found | ({"peak memory, MiB": max(memory)} if memory else {})


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _beside(*sides: Mapping[str, Any]) -> dict[str, Each]:
    names = dict.fromkeys(name for side in sides for name in side)
    return {name: tuple(side.get(name) for side in sides) for name in names}


def _differing(*sides: Mapping[str, Any]) -> dict[str, Each]:
    found = _beside(*sides)
    return {name: each for name, each in found.items() if any(one != each[0] for one in each)}


def _heldout_lines(one: HeldOut) -> Iterator[str]:
    shown = [
        "not measured"
        if row is None
        else f"{accuracy_of(row):.1%}{share_words(row)} at step {row['step']}"
        for row in one.rows
    ]
    line = f"{one.kind}: A {shown[0]}, {one.other} {shown[1]}"
    if one.on_other_problems:
        yield f"{line}; not compared: they were evaluated on different problems"
        return
    if one.difference is None:
        yield line
        return
    value, error = one.difference
    spread = "" if error is None else f" ± {100 * error:.1f}"
    paired = one.paired
    words = paired.gain.points if paired.gain is not None else f"{100 * value:+.1f} points{spread}"
    line += f"; {one.other} minus A {words}{_overlap(one)}"
    if (p := paired.p_value) is None:
        yield line
        return
    yield f"{line}, p {p:.2g}"
    for what, ids in (("better on", paired.better), ("worse on", paired.worse)):
        named = f"{': ' if ids else ''}{', '.join(ids[:_NAMED])}"
        yield f"  {what} {len(ids)}{named}{', ...' if len(ids) > _NAMED else ''}"
    for flip in one.flips:
        yield from _flip_lines(flip, one.other)


def _overlap(one: HeldOut) -> str:
    """Name the number of common problems, if one run was evaluated on more problems."""
    counts = [len((row or {}).get("eval/by_problem") or {}) for row in one.rows]
    common = len(one.paired)
    return "" if max(counts) == common else f" over the {common} in common"


def _flip_lines(flip: Flip, other: str) -> Iterator[str]:
    yield f"  --- {flip.problem}: {flip.question.strip()}"
    # Of a long completion, the end is shown, because the answer is at the end.
    for side, text, verdict in zip(("A", other), flip.texts, flip.verdicts, strict=True):
        yield f"  {side} ({verdict}): {text if len(text) <= _LONGEST else f'...{text[-_LONGEST:]}'}"


def _section(title: str, rows: Mapping[str, Each], words: Callable[[Any], str]) -> Iterator[str]:
    yield from ("", f"=== {title} ===")
    table = [(name, *map(words, each)) for name, each in rows.items()]
    if not table:
        yield "none"
        return
    yield from aligned([("", *LETTERS[: len(table[0]) - 1]), *table])


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def _text(value: Any) -> str:
    text = "-" if value is None else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 3]}..."
