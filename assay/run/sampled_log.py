"""Completions of the step in progress, saved so that a killed run does not lose them.

rollouts/sampled-000012.parquet    Finished completions of step 12. The file of finished completions
                                   is removed once the shard of the step contains them. With
                                   sampling ahead, the file also has completions of later steps,
                                   which then move to the next step's file.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from assay.host.removal import remove_file
from assay.types import Completion, Group, Problem, Prompt, Verdict

SECONDS_BETWEEN_WRITES = 20.0
"""Maximum sampling time that a kill loses. Steps that sample for less time write no file."""
_PENDING = Verdict.not_judged("unavailable", "pending@1")

Write = Callable[[Path, Sequence[Group], Sequence[Sequence[Verdict]]], None]
Read = Callable[[Path], Sequence[Group] | None]


@dataclass
class _Begun:
    """A group in progress. done: the finished completions, by completion id."""

    problem: Problem
    prompt: Prompt
    done: dict[str, Completion] = field(default_factory=dict[str, Completion])


class SampledLog:
    """Finished completions of one step, in memory and in a file that is written at most every 20
    seconds.

    write, read: functions that write and read a file with the columns of the rollout log. `turn_to`
    sets the step. has_later_steps: whether completions are sampled ahead of their step, from
    several policy versions.
    """

    def __init__(self, folder: Path, write: Write, read: Read) -> None:
        self.folder = folder
        self._write, self._read = write, read
        self.has_later_steps = False
        self._step = 0
        self._groups: dict[str, _Begun] = {}
        self._num_unwritten = 0
        self._written = time.monotonic()

    def path(self, step: int) -> Path:
        """Return the path of the file that has a step's finished completions."""
        return self.folder / f"sampled-{step:06d}.parquet"

    def turn_to(self, step: int, policy_version: int) -> None:
        """Begin a step, and load the completions that were finished before the run was killed.

        policy_version: version of the policy that samples in this step. Completions of other policy
        versions are ignored, unless completions are sampled ahead.
        """
        # Within a step, the generator may be called several times.
        if step == self._step:
            return
        if self.has_later_steps:
            self._turn_ahead(step)
            return
        self._step, self._groups, self._num_unwritten = step, {}, 0
        self._written = time.monotonic()
        for group in self._read(self.path(step)) or ():
            for one in group.completions:
                # After an update, another policy samples the step: old completions are invalid.
                if one.policy_version == policy_version:
                    self._take(group.problem, group.prompt, one)

    def _turn_ahead(self, step: int) -> None:
        """Begin a step; at the first step after a start, load the completions of all later
        steps."""
        if not self._step:
            # Steps up to the newest shard are repeated from the log, with the same updates.
            # The policies that sampled the loaded completions are therefore policies of this run.
            paths = sorted(self.folder.glob("sampled-*.parquet"))
            for group in [group for path in paths for group in self._read(path) or ()]:
                for one in group.completions:
                    self._take(group.problem, group.prompt, one)
        self._step = step

    def find(self, problem: Problem, completion_id: str) -> Completion | None:
        """Return the finished completion with a given id; None if there is none."""
        begun = self._groups.get(problem.group_id)
        return None if begun is None else begun.done.get(completion_id)

    def whole(self, problem: Problem, siblings: range) -> Group | None:
        """Return a group if all of its completions are finished; otherwise return None.

        siblings: numbers of the group's completions.
        """
        names = [f"{problem.group_id}/{number}" for number in siblings]
        begun = self._groups.get(problem.group_id)
        if begun is None or any(name not in begun.done for name in names):
            return None
        return Group(problem, begun.prompt, tuple(begun.done[name] for name in names))

    def add(self, problem: Problem, prompt: Prompt, completion: Completion) -> None:
        """Add a finished completion. Write all finished completions to disk if the last write was
        at least 20 s ago.
        """
        if self.find(problem, completion.id) is not None:
            return
        self._take(problem, prompt, completion)
        self._num_unwritten += 1
        if time.monotonic() - self._written >= SECONDS_BETWEEN_WRITES:
            self.flush()

    def flush(self) -> None:
        """Write the completions that are not yet on disk."""
        if not self._num_unwritten:
            return
        groups = [
            Group(one.problem, one.prompt, tuple(one.done.values()))
            for one in self._groups.values()
        ]
        pending = [[_PENDING] * len(group.completions) for group in groups]
        # Parquet files cannot be appended to, so the whole file is replaced atomically.
        self._write(self.path(self._step), groups, pending)
        self._num_unwritten, self._written = 0, time.monotonic()

    def recorded(self, step: int, groups: Iterable[str] = ()) -> None:
        """Remove the completions of all steps up to this step, because these steps have shards.

        groups: ids of the groups that a shard contains. With sampling ahead, the completions of all
        other groups stay.
        """
        if self.has_later_steps:
            for name in groups:
                self._groups.pop(name, None)
            self._step = step + 1
            if self._groups and self.path(step).exists():
                self._num_unwritten = len(self._groups)
                self.flush()
        else:
            self._groups, self._num_unwritten = {}, 0
        self._remove(lambda number: number <= step)

    def discard_after(self, step: int) -> None:
        """Remove the finished completions of all steps after ``step``."""
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
