"""The results page of a sweep: table, figure and explanations, as text, Markdown and SVG."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.host.files import write_atomic, write_json
from assay.host.terminal import aligned
from assay.run.seed_statistics import MIN_SEEDS, three_digits
from assay.sweep.comparison import ArmRow, SweepTable
from assay.sweep.forest import draw_forest

FIGURE = "sweep.svg"
HEAD = ("arm", "mean", "difference (95 % interval)", "p", "p, Holm")


@dataclass(frozen=True)
class Reported:
    """Accuracy of the winning arm on the report set, on which no choice depended.

    table: the winning arm and the baseline on the report set, or only the baseline if the baseline
    won.
    """

    problems: Sequence[str]
    num_problems: int
    table: SweepTable


@dataclass(frozen=True)
class SweepResult:
    """Result of a sweep.

    first: comparison over the seeds that the sweep file lists. other: comparison over further
        seeds, if the command requested further seeds.
    reported: the winning arm's result on the report set; None without a report set, or if a run did
    not finish. unfinished: reasons why runs did not finish or lack the metric, by the run's name.
    not_judged: number of completions without a verdict in the evaluation that gives the metric, by
    the run's name.
    """

    name: str
    folder: str
    metric: str
    better: str
    first: SweepTable
    other: SweepTable | None = None
    has_report: bool = False
    reported: Reported | None = None
    unfinished: Mapping[str, str] | None = None
    not_judged: Mapping[str, int] | None = None

    @property
    def winner(self) -> ArmRow:
        """The arm with the highest mean difference to the baseline, over the seeds in the sweep
        file.
        """
        return self.first.best(self.better == "higher")

    @property
    def is_complete(self) -> bool:
        """Whether every run finished."""
        return not self.unfinished

    def as_dict(self) -> dict[str, Any]:
        """Return JSON values.

        The written results do not depend on the time, the machine, killed processes or
        ``--parallel``.
        """
        reported = None
        if self.reported is not None:
            found = self.reported
            reported = {"problems": [*found.problems], "num_problems": found.num_problems}
            reported |= found.table.as_dict()
        return {
            "sweep": self.name,
            "metric": self.metric,
            "better": self.better,
            "baseline": self.first.baseline,
            **self.first.as_dict(),
            "winner": self.winner.arm if self.first.row(self.first.baseline).values else None,
            "report": reported,
            "other_seeds": None if self.other is None else self.other.as_dict(),
            "unfinished": dict(self.unfinished or {}),
            "not_judged": dict(self.not_judged or {}),
        }

    def __str__(self) -> str:
        return as_text(self)


def write_results(result: SweepResult, folder: Path) -> None:
    """Write a sweep's results into its folder: ``results.json``, ``sweep.md`` and the figure."""
    write_json(folder / "results.json", result.as_dict())
    write_atomic(folder / FIGURE, draw_forest(result.first, result.metric).encode())
    write_atomic(folder / "sweep.md", as_markdown(result).encode("utf-8", "replace"))


def as_text(result: SweepResult) -> str:
    """Return the result tables as text for a terminal."""
    lines: list[str] = []
    for title, table in _tables(result):
        lines += [title, *aligned([HEAD, *map(_cells, table.arms)], right=(1, 3, 4)), ""]
        lines += [*_notes(table), ""]
    lines += [*_about_winner(result), f"page: {result.folder}/sweep.md"]
    return "\n".join(lines)


def as_markdown(result: SweepResult) -> str:
    """Return the page."""
    lines = [f"# Sweep {result.name}", ""]
    for number, (title, table) in enumerate(_tables(result)):
        lines += [f"## {title}", "", f"| {' | '.join(HEAD)} |", "|---|---:|---|---:|---:|"]
        lines += [f"| {' | '.join(map(_escaped, _cells(row)))} |" for row in table.arms]
        lines += ["", *_notes(table), ""]
        if number == 0:
            lines += [f"![Difference of each arm to {table.baseline}]({FIGURE})", ""]
            lines += ["Dots: seeds. Bars: mean difference with its 95 % interval.", ""]
    lines += ["## The winner", "", *_about_winner(result), ""]
    lines += ["## Values by seed", ""]
    for _, table in _tables(result):
        lines += _values(table)
    about = [f"- *{row.arm}*: {_escaped(row.about)}" for row in result.first.arms if row.about]
    lines += ["## Arms", "", *about] if about else []
    return "\n".join(lines).rstrip() + "\n"


def _tables(result: SweepResult) -> Iterator[tuple[str, SweepTable]]:
    yield f"{result.metric}, {_seeds(result.first)}", result.first
    if result.other is not None:
        yield f"{result.metric}, other seeds: {_seeds(result.other)}", result.other
    if result.reported is not None:
        problems = result.reported.num_problems
        yield f"accuracy on {problems} report problems", result.reported.table


def _seeds(table: SweepTable) -> str:
    noun = "seed" if len(table.seeds) == 1 else "seeds"
    return f"{noun} {', '.join(map(str, table.seeds))}"


def _cells(row: ArmRow) -> list[str]:
    error = "" if math.isnan(row.stderr) else f" ± {three_digits(row.stderr)}"
    mean = "none" if math.isnan(row.mean) else f"{three_digits(row.mean)}{error}"
    if row.difference is None:
        return [row.arm, mean, "baseline", "", ""]
    found = row.difference
    if found.num_seeds == 0:
        return [row.arm, mean, "no pair of finished runs", "", ""]
    ends = f" ({_signed(found.low)} to {_signed(found.high)})" if found.num_seeds > 1 else ""
    return [row.arm, mean, f"{_signed(found.mean)}{ends}", _p(found.p_value), _p(row.p_holm)]


def _signed(value: float) -> str:
    text = three_digits(value)
    return text if value < 0 or text == "0" else f"+{text}"


def _p(value: float | None) -> str:
    if value is None:
        return ""
    return "<0.0001" if value < 1e-4 else f"{value:.4f}" if value < 0.01 else f"{value:.2f}"


def _notes(table: SweepTable) -> Iterator[str]:
    """Yield sentences about the conclusions that the table allows, one sentence per line."""
    count = len(table.compared)
    if not count:
        return
    noun = "comparison" if count == 1 else "comparisons"
    yield (
        f"{count} {noun} with {table.baseline}, paired by seed (Student's t). If no arm differed,"
        f" {table.expected_by_chance:.2g} of {count} intervals would exclude 0 by chance; Holm's p"
        " is corrected for this."
    )
    if not table.is_enough:
        noun = "seed" if table.num_seeds == 1 else "seeds"
        yield (f"{table.num_seeds} {noun}: too few for a claim. Use at least {MIN_SEEDS}.")
    for row in table.compared:
        found = row.difference
        if found is None or found.num_seeds < 2:
            continue
        if found.low == found.high:
            same = "every seed has the value of the baseline" if not found.mean else "no spread"
            yield f"{row.arm}: {same}, so the interval and p say nothing about chance."
    short = [row.arm for row in table.arms if len(row.values) < len(table.seeds)]
    if short:
        yield (
            f"Runs are missing in {', '.join(short)}. Their seeds are left out, which biases the"
            " difference if the cause depends on the arm."
        )


def _about_winner(result: SweepResult) -> Iterator[str]:
    for name, why in (result.unfinished or {}).items():
        yield f"{name}: {why}."
    winner, baseline = result.winner.arm, result.first.baseline
    if not result.first.row(baseline).values:
        is_any = any(row.values for row in result.first.arms)
        yield f"No run of {baseline} finished: no winner." if is_any else "No run finished."
        return
    direction = "highest" if result.better == "higher" else "lowest"
    if result.first.is_full:
        yield f"{winner} has the {direction} mean {result.metric}."
    elif winner == baseline:
        yield f"No arm is better than {baseline}, over the seeds that both finished."
    else:
        yield (
            f"{winner} has the {direction} mean difference to {baseline} in {result.metric}, over"
            " the seeds that both finished."
        )
    if result.reported is not None:
        row = result.reported.table.row(winner)
        found = f"accuracy {_cells(row)[1]}"
        if row.difference is not None:
            found += (
                f", difference to {baseline} {_cells(row)[2]}, p = {_p(row.difference.p_value)}"
            )
        yield f"On the report problems, which influenced no choice: {found}."
    elif result.has_report:
        yield "The report problems are measured when all runs have finished."
    else:
        yield (
            "The same problems chose the winner and measured it, so its figure is optimistic. Give"
            " [report] problems to measure it on others."
        )
    if result.other is None:
        yield "Not repeated: --other-seeds runs the sweep again with other seeds."
    else:
        yield from _replication(result.first, result.other)
    for name, count in (result.not_judged or {}).items():
        noun = "completion" if count == 1 else "completions"
        yield f"{name}: {count} {noun} of the last evaluation could not be judged and do not count."


def _replication(first: SweepTable, other: SweepTable) -> Iterator[str]:
    """For each difference to the baseline, yield whether the sweep with other seeds confirms it."""
    for row in first.compared:
        again = other.row(row.arm).difference
        found = row.difference
        if found is None or again is None or not (found.is_enough and again.is_enough):
            continue
        if found.excludes_zero and again.excludes_zero:
            if (found.mean > 0) == (again.mean > 0):
                what = f"the difference to {first.baseline} is confirmed by the other seeds"
            else:
                what = "the two sweeps show opposite differences: inconclusive"
            yield f"{row.arm}: {what}."
        elif found.excludes_zero or again.excludes_zero:
            yield f"{row.arm}: only one of the two sweeps shows a difference: inconclusive."
        else:
            yield f"{row.arm}: neither sweep shows a difference."


def _values(table: SweepTable) -> list[str]:
    lines = [f"| arm | {' | '.join(f'seed {seed}' for seed in table.seeds)} |"]
    lines.append("|---" + "|---:" * len(table.seeds) + "|")
    for row in table.arms:
        cells = [three_digits(row.values[s]) if s in row.values else "" for s in table.seeds]
        lines.append(f"| {row.arm} | {' | '.join(cells)} |")
    return [*lines, ""]


def _escaped(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
