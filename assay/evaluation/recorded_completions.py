"""Recorded completions of a file, which replace the sampled completions of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from assay.config import SamplingConfig
from assay.data.completions import Record, read_completions
from assay.data.source import Source
from assay.data.sources import ObjectRows
from assay.errors import DataError, message
from assay.types import Completion, Group, Problem, Prompt, Verdict


class RecordedCompletions:
    """Completions and verdicts that ``--out`` wrote, with the interfaces `Generator` and `Judge`.

    side: ``A`` or ``B``, because a file of ``assay compare`` contains completions of both models.
    """

    policy_version = 0
    exact = gives_model_logprobs = False

    def __init__(self, path: Path, side: str) -> None:
        self.path, self._set = path, ""
        self._rows: dict[tuple[str, str], list[Record]] = {}
        for row in read_completions(path):
            if row.keys.get("side", side) == side:
                key = str(row.keys.get("set", "")), row.problem_id
                self._rows.setdefault(key, []).append(row)

    @property
    def has_verdicts(self) -> bool:
        """Whether every recorded completion has a verdict."""
        return all(row.verdict is not None for rows in self._rows.values() for row in rows)

    def problems(self) -> list[Source]:
        """Return the problems in the file, one source for each problem set."""
        sets: dict[str, list[dict[str, Any]]] = {}
        for (name, id), rows in self._rows.items():
            row = {**rows[0].problem_keys, "id": id}
            # These keys describe a completion, so they are removed from the problem's spec.
            row = {key: row[key] for key in row if key not in ("think_tags", "token_ids")}
            sets.setdefault(name or str(self.path), []).append(row)
        return [ObjectRows(name, rows) for name, rows in sets.items()]

    def of(self, name: str, every: Sequence[Problem]) -> tuple[Sequence[Problem], int]:
        """Select a problem set; return the problems that have recorded completions, and the largest
        group size.

        Raises DataError if the file has no completion of a problem in the set.
        """
        self._set = name
        problems = [problem for problem in every if self._found(problem)]
        if not problems:
            ids = ", ".join(id for _, id in list(self._rows)[:3]) or "none"
            found = f"no completion of its problems ({every[0].id}, ...) but of {ids}"
            accepted = "completions of the same problems, by their ids"
            raise DataError(message(f"{self.path}: {name}", found, accepted))
        return problems, max(len(self._found(problem)) for problem in problems)

    def _found(self, problem: Problem) -> list[Record]:
        unnamed = self._rows.get(("", problem.id), [])
        return self._rows.get((self._set, problem.id), unnamed)

    def generate(
        self,
        problems: Sequence[Problem],
        sampling: SamplingConfig,
        group_size: int,
        first_sibling: int = 0,
        on_group: Callable[[Group], None] | None = None,
        cutoff: object = None,
    ) -> list[Group]:
        """Return the recorded completions of each problem."""
        groups: list[Group] = []
        for problem in problems:
            # Completions get new ids, because two files may number completions differently.
            completions: tuple[Completion, ...] = tuple(
                replace(row.to_judge()[1], id=f"{problem.group_id}/{n}")
                for n, row in enumerate(self._found(problem))
            )
            prompt = Prompt(problem.question, np.zeros(0, np.int32), completions[0].think)
            groups.append(Group(problem, prompt, completions))
            if on_group is not None:
                on_group(groups[-1])
        return groups

    def sleep(self) -> None:
        """Do nothing, because recorded completions use no device memory that could be freed."""

    def load_policy(self, weights: Any) -> None:
        """Do nothing, because recorded completions do not depend on the policy."""

    @contextmanager
    def judging(self) -> Iterator[RecordedCompletions]:
        """Return the recorded verdicts of a group instead of judging again."""
        yield self

    def add(self, group: Group) -> None:
        """Do nothing, because the verdicts of the group are already recorded."""

    def verdicts(self, groups: Sequence[Group]) -> list[tuple[Verdict, ...]]:
        """Return the recorded verdicts of each group. Requires `has_verdicts`."""
        return [
            tuple(one for row in self._found(group.problem) if (one := row.verdict) is not None)
            for group in groups
        ]
