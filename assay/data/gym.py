"""Problems of the reasoning-gym library, generated with their answers when a run draws them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from assay.data.source import UNREAD, Source, split_settings
from assay.errors import DataError, cause, did_you_mean, message, nearest


class GymRows(Source):
    """Problems of one reasoning-gym task; reading all rows generates only the first problem."""

    def __init__(self, label: str, task: str, problems: Any) -> None:
        super().__init__(label, problems)
        self._task = task

    def scan(self) -> Iterator[tuple[int, int, Any]]:
        """Yield (index, index, row) for each row; rows after the first are the placeholder
        `UNREAD`.
        """
        # Generating every problem would delay the start of a run.
        # The first problem already shows whether the reasoning-gym task accepts the settings.
        for index in range(len(self._rows)):
            yield index, index, UNREAD if index else self.fetch(0)

    def fetch(self, position: int) -> dict[str, Any]:
        """Generate the row at an index of the data set."""
        try:
            made = self._rows[position]
        except Exception as error:  # Tasks of reasoning-gym may raise any exception.
            raise DataError(f"{self.label}:{position}: raised {cause(error)}") from error
        return {
            "prompt": made["question"],
            "answer": made.get("answer"),
            "task": self._task,
            "metadata": made.get("metadata"),
            "tags": (self._task,),
        }


def open_gym(text: str) -> GymRows:
    """Open ``gym:TASK[?setting=value&size=1000&seed=0]``.

    Problem n of a source with seed s equals problem 0 of a source with seed s + n. Training and
    held-out sets are disjoint only if their seeds differ by at least ``size``.
    """
    task, settings = split_settings(text.removeprefix("gym:"))
    # Importing reasoning_gym takes over a second, so only gym sources import the package.
    import reasoning_gym
    from reasoning_gym.factory import DATASETS

    if task not in DATASETS:
        near = nearest(task, DATASETS, 0.4, most=3) or sorted(DATASETS)
        raise DataError(
            message(text, f"no task {task!r}", f"a reasoning-gym task, as {', '.join(near)}")
        )
    known = [field.name for field in dataclasses.fields(DATASETS[task][1])]
    for key in settings:
        if key not in known:
            where, remedy = f"{text} {key}", did_you_mean(key, known)
            raise DataError(message(where, "an unknown setting", ", ".join(known), remedy))
    settings = {"size": 1000, "seed": 0, **settings}
    try:
        problems = reasoning_gym.create_dataset(task, **settings)
    except Exception as error:  # not all tasks validate settings, some by assert
        raise DataError(f"{text}: settings refused ({cause(error)})") from error
    return GymRows(text, task, problems)
