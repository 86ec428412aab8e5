"""Rates of behaviors that detectors find in completions: over the steps of a run, or in a file of
rows.

``assay run behaviors RUN`` runs detectors of behaviors on the completions that a run recorded. The
command writes the rates for the report, and the behaviors of each completion, to
``RUN/behaviors/``.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from assay.data.completions import read_completions
from assay.errors import RunError
from assay.evaluation.detector_errors import DetectorError, detector_errors
from assay.host.files import check_folder, config_of, plain, write_atomic, write_json
from assay.host.terminal import aligned, lined
from assay.report.behavior_charts import COMPLETIONS, FOLDER, RATES, TRAINING
from assay.run.evaluation_log import FOLDER as EVALUATIONS
from assay.run.intervals import Interval, clustered_stderr, share_interval
from assay.run.rollout_log import RolloutLog, read_columns
from assay.types import Completion, Status, ThinkFormat
from assay.verify.base import resolve
from assay.verify.behaviors.detectors import BEHAVIORS, find_behaviors
from assay.verify.behaviors.monitor import FINDINGS, find_in_trace

ALL, PASSED, FAILED = "all", "passed", "failed"
NAMES = (*BEHAVIORS, *FINDINGS)
"""Names of all behaviors and findings, in the order of the table."""
# The first fifth of a run's steps is compared with its last fifth.
_WINDOW = 0.2
# Minimum number of completions per step; if ``among`` is too small for it, steps are skipped.
_LEAST = 64
_COLUMNS = ("completion_id", "group_id", "text", "think", "said", "status")


@dataclass(frozen=True, slots=True)
class Read:
    """One completion that the detectors of behaviors read.

    shows: names of the behaviors and findings that the detectors found; None if the text is not
    English. source: origin of the completion: ``training``, the kind of an evaluation such as
    ``greedy``, or the name of a file.
    """

    source: str
    step: int | None
    id: str
    group: str
    status: Status | None
    shows: frozenset[str] | None


@dataclass(frozen=True, slots=True)
class Rates:
    """Share of completions that show each behavior, with its 95 % interval.

    side: selection of completions: ``all``, only the ``passed`` ones, or only the ``failed`` ones.
    groups: number of prompts, over which the interval is computed, because completions of one
    prompt are not independent.
    """

    source: str
    first_step: int | None
    last_step: int | None
    side: str
    completions: int
    groups: int
    shares: Mapping[str, float]
    intervals: Mapping[str, Interval]

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        names = ("source", "first_step", "last_step", "side", "completions", "groups")
        parts = {"shares": dict(self.shares), "intervals": dict(self.intervals)}
        return {name: getattr(self, name) for name in names} | parts


@dataclass(frozen=True)
class BehaviorRates:
    """Rates of behaviors in the completions of a run or of a file.

    of: number of recorded completions. read: number of completions that the detectors read.
    not_english: number of read completions that are not English. detectors: hash of each detector's
    definition, by the detector's label.
    columns: rates for each column of the printed table, by column title. steps: rates in each
    training step, for all, passed and failed completions. errors: precision and recall of each
    detector on its labelled set.
    """

    name: str
    of: int
    read: int
    not_english: int
    detectors: Mapping[str, str]
    columns: Mapping[str, Rates]
    steps: Sequence[Rates]
    errors: Mapping[str, DetectorError] = field(default_factory=dict[str, DetectorError])

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        counts = {name: getattr(self, name) for name in ("name", "of", "read", "not_english")}
        return plain(
            {
                **counts,
                "detectors": self.detectors,
                "columns": {title: one.as_dict() for title, one in self.columns.items()},
                "steps": [one.as_dict() for one in self.steps],
                "errors": {name: one.as_dict() for name, one in self.errors.items()},
            }
        )

    def __str__(self) -> str:
        labels = ", ".join(f"{name} ({hash})" for name, hash in self.detectors.items())
        unread = f", {self.not_english} of them not English and not counted"
        head = [
            f"{self.name}: {self.read} of {self.of} completions read"
            f"{unread if self.not_english else ''}; detectors: {labels}"
        ]
        titles = ["", *self.columns, "precision", "recall"]
        counts = [f"{one.completions} completions" for one in self.columns.values()]
        table = [titles, ["", *counts, "(held-out set)", "(held-out set)"]]
        for name in self.errors:
            cells = [_share_words(one, name) for one in self.columns.values()]
            error = self.errors[name]
            measured = (
                _error_words(error.precision, error.precision_interval),
                _error_words(error.recall, error.recall_interval),
            )
            table.append([name, *cells, *measured])
        return lined([*head, *aligned(table)])


def _share_words(rates: Rates, name: str) -> str:
    if not rates.completions:
        return "-"
    low, high = rates.intervals[name]
    return f"{rates.shares[name]:.1%} ({100 * low:.0f} to {100 * high:.0f})"


def _error_words(share: float | None, interval: Interval | None) -> str:
    if share is None or interval is None:
        return "-"
    return f"{share:.0%} ({100 * interval[0]:.0f} to {100 * interval[1]:.0f})"


def behavior_rates(
    source: Path | str,
    *,
    among: int = 5000,
    seed: int = 0,
    say: Callable[[str], None] | None = None,
) -> BehaviorRates:
    """Measure behaviors in the rollouts and evaluations of a run, or in a file of completions.

    among: approximate number of completions to read, from training steps at even distances and from
    random groups within a step. The result for a run is written to ``RUN/behaviors/``. say: reports
    progress.

    Raises RunError for a run without completions, DataError for an unreadable row.
    """
    path = Path(source)
    if path.is_dir():
        config_of(path)
        check_folder(path / FOLDER, str(path))
        of, found = _read_run(path, among, seed, say)
        if not found:
            raise RunError(
                f"{path}: holds no rollouts and no recorded evaluations; name a run that has "
                "sampled, or a file of completions"
            )
    else:
        found = list(_read_file(path))
        of = len(found)
    result = _summary(str(source), of, found)
    if path.is_dir():
        _write(path / FOLDER, result, found)
    return result


def _read_run(
    run: Path, among: int, seed: int, say: Callable[[str], None] | None
) -> tuple[int, list[Read]]:
    """Return the number of recorded completions, and the sample of completions for the
    detectors."""
    logs = {TRAINING: RolloutLog(run / "rollouts")}
    for folder in sorted((run / EVALUATIONS).glob("*/")):
        logs[folder.name] = RolloutLog(folder)
    of, found = 0, list[Read]()
    for source, log in logs.items():
        # Rows are counted in one small column of the log, so that counting reads no texts.
        sizes = {step: len(read_columns(log.path(step), ["step"]) or ()) for step in log.steps()}
        of += sum(sizes.values())
        # Each source gets an equal share: otherwise, training rollouts would crowd out evaluations.
        share = max(1, among // len(logs))
        steps = thinned_steps(sizes, share)
        total = sum(sizes[step] for step in steps)
        for step in steps:
            most = sizes[step] if total <= share else -(-share * sizes[step] // total)
            rows = drawn_groups(
                read_columns(log.path(step), _COLUMNS) or [], most, f"{seed} {step}"
            )
            found += [_read(source, step, row) for row in rows]
            if say is not None:
                say(f"{source} step {step}: {len(found)} completions read")
    return of, found


def thinned_steps(sizes: Mapping[int, int], among: int) -> list[int]:
    """Return training steps at even distances, including the first step and the last step."""
    steps = sorted(sizes)
    mean = sum(sizes.values()) / len(steps) if steps else 1
    # For a curve, many steps matter more than precise values, so few rollouts per step are read.
    count = min(len(steps), max(2, int(among / min(max(1.0, mean), _LEAST))))
    if count >= len(steps):
        return steps
    return [steps[round(place * (len(steps) - 1) / (count - 1))] for place in range(count)]


def drawn_groups(rows: Sequence[dict[str, Any]], most: int, seed: str) -> list[dict[str, Any]]:
    """Return all rows, or random whole groups that have at least ``most`` rows in total."""
    if len(rows) <= most:
        return list(rows)
    # Whole groups are drawn, because votes and pass@k need all completions of a prompt.
    groups = sorted({row["group_id"] for row in rows})
    random.Random(seed).shuffle(groups)
    taken: list[dict[str, Any]] = []
    while groups and len(taken) < most:
        name = groups.pop()
        taken += [row for row in rows if row["group_id"] == name]
    return taken


def _read(source: str, step: int, row: Mapping[str, Any]) -> Read:
    think = row["think"] or {}
    said = tuple((start, end) for start, end in row["said"] or ())
    completion = Completion.from_text(row["text"] or "", think=ThinkFormat(**think), said=said)
    return Read(
        source,
        step,
        row["completion_id"],
        row["group_id"],
        row["status"],
        _shown_by(completion),
    )


def _read_file(path: Path) -> Iterator[Read]:
    for record in read_completions(path):
        problem, completion = record.to_judge()
        step, verdict = record.keys.get("step"), record.verdict
        yield Read(
            path.name,
            step if type(step) is int else None,
            record.id,
            record.problem_id if problem.id else record.id,
            None if verdict is None else verdict.status,
            _shown_by(completion),
        )


def _shown_by(completion: Completion) -> frozenset[str] | None:
    found, findings = find_behaviors(completion), find_in_trace(completion)
    # The detectors read only English, so the result is None for a text in another language.
    # An empty set instead of None would count the text as free of the behaviors.
    if not found.measured or findings is None:
        return None
    return frozenset([*found.behaviors, *findings])


def _summary(name: str, of: int, found: Sequence[Read]) -> BehaviorRates:
    # groupby joins only adjacent items, so the items are sorted first.
    by_moment = {
        moment: list(some)
        for moment, some in groupby(
            sorted(found, key=lambda one: (one.source != TRAINING, one.source, one.step or 0)),
            key=lambda one: (one.source, one.step),
        )
    }
    steps = [
        rates_of(some, side)
        for some in by_moment.values()
        for side in (ALL, PASSED, FAILED)
        if _of_side(some, side)
    ]
    verifiers = [resolve(name) for name in ("behaviors", "trace_monitor")]
    errors = {**detector_errors("behaviors", "behavior")}
    errors |= detector_errors("trace_monitor", "finding")
    return BehaviorRates(
        name=name,
        of=of,
        read=len(found),
        not_english=sum(one.shows is None for one in found),
        detectors={verifier.label: verifier.hash for verifier in verifiers},
        columns=_columns(by_moment),
        steps=steps,
        errors={name: errors[name] for name in NAMES},
    )


def _columns(by_moment: Mapping[tuple[str, int | None], Sequence[Read]]) -> dict[str, Rates]:
    """Return the rates for each column of the table: untrained model, first and last steps, passed,
    failed.
    """
    columns: dict[str, Rates] = {}
    # Step 0 is the untrained model, whose rates are the baseline of the trained model.
    for (source, step), some in by_moment.items():
        if source != TRAINING and step == 0:
            columns[f"{source}, step 0"] = rates_of(some)
    training = {step: some for (source, step), some in by_moment.items() if source == TRAINING}
    sides = [one for some in training.values() for one in some]
    if len(training) > 1:
        size = max(1, int(_WINDOW * len(training)))
        steps = list(training)
        for part in (steps[:size], steps[-size:]):
            title = f"step {part[0]}" if size == 1 else f"steps {part[0]} to {part[-1]}"
            columns[title] = rates_of([one for step in part for one in training[step]])
    if not training:
        others = {moment: some for moment, some in by_moment.items() if moment[1] != 0}
        for (source, step), some in list(others.items())[-1:]:
            columns[source if step is None else f"{source}, step {step}"] = rates_of(some)
        sides = [one for some in by_moment.values() for one in some]
    for side in (PASSED, FAILED):
        if _of_side(sides, side):
            columns[side] = rates_of(sides, side)
    return columns


def _of_side(found: Iterable[Read], side: str) -> list[Read]:
    return [one for one in found if side == ALL or one.status == side]


def rates_of(found: Sequence[Read], side: str = ALL) -> Rates:
    """Return the rates in all, passed or failed completions; the intervals treat a group as a
    cluster.
    """
    some = [one for one in _of_side(found, side) if one.shows is not None]
    # `clustered_stderr` expects the values of a cluster next to each other, so they are sorted.
    some.sort(key=lambda one: (one.step or 0, one.group))
    sizes = [len([*group]) for _, group in groupby(some, key=lambda one: (one.step, one.group))]
    shares: dict[str, float] = {}
    intervals: dict[str, Interval] = {}
    for name in NAMES if some else ():
        values = np.array([float(name in (one.shows or ())) for one in some])
        shares[name] = float(values.mean())
        error = clustered_stderr(values, sizes)
        intervals[name] = share_interval(shares[name], len(sizes), error)
    steps = [one.step for one in some if one.step is not None]
    return Rates(
        source=found[0].source if found else "",
        first_step=min(steps, default=None),
        last_step=max(steps, default=None),
        side=side,
        completions=len(some),
        groups=len(sizes),
        shares=shares,
        intervals=intervals,
    )


def _write(folder: Path, result: BehaviorRates, found: Sequence[Read]) -> None:
    folder.mkdir(exist_ok=True)
    write_json(folder / RATES, result.as_dict())
    rows = [
        {"source": one.source, "step": one.step, "id": one.id, "shows": sorted(one.shows)}
        for one in found
        if one.shows
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    write_atomic(folder / COMPLETIONS, text.encode("utf-8", "backslashreplace"))
