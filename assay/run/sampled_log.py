"""Completions of the step being sampled, saved so that a kill does not lose them.

rollouts/sampled-000012.parquet    finished completions of step 12; removed once they are in
                                   the step's shard
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from assay.host.removal import remove_file
from assay.types import Completion, Group, Problem, Prompt, Verdict

SECONDS_BETWEEN_WRITES = 20.0
"""Maximum sampling time that a kill loses, in seconds. Faster steps write no file."""
_PENDING = Verdict.not_judged("unavailable", "pending@1")

Write = Callable[[Path, Sequence[Group], Sequence[Sequence[Verdict]]], None]
Read = Callable[[Path], Sequence[Group] | None]


@dataclass
class _Begun:
    """A group with some finished completions, by id."""

    problem: Problem
    prompt: Prompt
    done: dict[str, Completion] = field(default_factory=dict[str, Completion])


class SampledLog:
    """Finished completions of one step, in memory and in a file that is written at intervals.

    write, read: functions for a file with the columns of the rollout log. `turn_to` sets the step.
    """

    def __init__(self, folder: Path, write: Write, read: Read) -> None:
        self.folder = folder
        self._write, self._read = write, read
        self._step = 0
        self._groups: dict[str, _Begun] = {}
        self._num_unwritten = 0
        self._written = time.monotonic()

    def path(self, step: int) -> Path:
        """Return the path of a step's sampled completions."""
        return self.folder / f"sampled-{step:06d}.parquet"

    def turn_to(self, step: int, policy_version: int) -> None:
        """Load completions sampled before a kill, if this is a new step.

        policy_version: version of the sampling policy. Completions of other versions are ignored.
        """
        if step == self._step:
            return
        self._step, self._groups, self._num_unwritten = step, {}, 0
        self._written = time.monotonic()
        for group in self._read(self.path(step)) or ():
            for one in group.completions:
                # After an update the same step would be sampled by another policy, so old
                # completions do not count.
                if one.policy_version == policy_version:
                    self._take(group.problem, group.prompt, one)

    def find(self, problem: Problem, completion_id: str) -> Completion | None:
        """Return a completion that was finished before; None without one."""
        begun = self._groups.get(problem.group_id)
        return None if begun is None else begun.done.get(completion_id)

    def whole(self, problem: Problem, siblings: range) -> Group | None:
        """Return the group of these siblings if all are finished."""
        names = [f"{problem.group_id}/{number}" for number in siblings]
        begun = self._groups.get(problem.group_id)
        if begun is None or any(name not in begun.done for name in names):
            return None
        return Group(problem, begun.prompt, tuple(begun.done[name] for name in names))

    def add(self, problem: Problem, prompt: Prompt, completion: Completion) -> None:
        """Add a finished completion, to be written to disk soon."""
        if self.find(problem, completion.id) is not None:
            return
        self._take(problem, prompt, completion)
        self._num_unwritten += 1
        if time.monotonic() - self._written >= SECONDS_BETWEEN_WRITES:
            self.flush()

    def flush(self) -> None:
        """Write unsaved completions."""
        if not self._num_unwritten:
            return
        groups = [
            Group(one.problem, one.prompt, tuple(one.done.values()))
            for one in self._groups.values()
        ]
        pending = [[_PENDING] * len(group.completions) for group in groups]
        # The file is rewritten as a whole: Parquet cannot be appended to, and a kill must leave the
        # old file.
        self._write(self.path(self._step), groups, pending)
        self._num_unwritten, self._written = 0, time.monotonic()

    def recorded(self, step: int) -> None:
        """Remove completions that the shards up to this step contain."""
        self._groups, self._num_unwritten = {}, 0
        self._remove(lambda number: number <= step)

    def discard_after(self, step: int) -> None:
        """Remove sampled completions of later steps."""
        self._step, self._groups, self._num_unwritten = 0, {}, 0
        self._remove(lambda number: number > step)

    def _take(self, problem: Problem, prompt: Prompt, completion: Completion) -> None:
        begun = self._groups.setdefault(problem.group_id, _Begun(problem, prompt))
        begun.done[completion.id] = completion

    def _remove(self, wanted: Callable[[int], bool]) -> None:
        for path in self.folder.glob("sampled-*.parquet"):
            number = path.stem.removeprefix("sampled-")
            if number.isdecimal() and wanted(int(number)):
                remove_file(path)
