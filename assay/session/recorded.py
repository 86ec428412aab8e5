"""Recorded groups of a run, with their problems read again from the run's sources."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from assay.config import TrainConfig
from assay.config.mixture import tags_of_sources
from assay.data.problems import load_problems
from assay.run.rollout_log import RolloutLog, read_columns
from assay.types import Group, Problem, Verdict

Judged = tuple[Group, Sequence[Verdict]]
"""A group with its recorded verdicts."""


def recorded_groups(
    config: TrainConfig, log: RolloutLog, steps: Sequence[int] | None = None
) -> Iterator[tuple[int, list[Judged] | None]]:
    """Yield (step, groups with verdicts) of a run; for an unreadable shard, None replaces the
    groups.

    steps: training steps to read; None means all. If the sources no longer contain the problem of a
    group, the problem in the group has an empty id.
    """
    # The log has no answers, so the problems are read again from the run's sources.
    wanted: set[str] = set()
    steps = log.steps() if steps is None else steps
    for step in steps:
        wanted |= {row["problem_id"] for row in read_columns(log.path(step), ["problem_id"]) or ()}
    tags = tags_of_sources(config.data.mixture, "train")
    problems = load_problems(config.data.train, on_bad_row=config.data.on_bad_row, tags=tags)
    rows = (problems[number] for number in range(len(problems)))
    known = {problem.id: problem for problem in rows if problem.id in wanted}
    gone = Problem("", "")

    def read() -> Iterator[tuple[int, list[Judged] | None]]:
        for step in steps:
            found = log.read(step, lambda id: known.get(id, gone))
            yield step, found and list(zip(*found, strict=True))

    return read()
