"""Problems of later steps, drawn before their step so that their groups can be sampled ahead."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from assay.data.mixture import Draws
from assay.errors import RunError
from assay.types import Group, Problem, Verdict

STATE_FILE = "ahead.json"


class DrawsAhead:
    """Draws the problems of the next steps in advance, in the order in which steps use them.

    Before step s, the queue is filled with the problems of the steps s to s + ``steps_ahead``. A
    problem of the last of these steps is learned from ``steps_ahead`` steps later, which is the
    maximum age. A step never skips a problem, however long its completions are. Refills of dynamic
    sampling take problems of the next step from the queue, so these are used earlier.

    A draw cannot depend on verdicts of the steps whose problems are already drawn. begin: called
    with (problems, group sizes, index of their step) of newly drawn problems.
    """

    def __init__(
        self,
        draws: Draws,
        steps_ahead: int,
        num_prompts: int,
        group_size: int,
        num_steps: int | None = None,
    ) -> None:
        """num_prompts, group_size: of a step. num_steps: number of steps of the run."""
        self._draws = draws
        self._steps_ahead, self._num_prompts = steps_ahead, num_prompts
        self._group_size, self._num_steps = group_size, num_steps
        # Number of steps that have drawn their problems.
        self._step = 0
        self._queue: list[Problem] = []
        # Group size of each problem in the queue or in the current step, by group id.
        self._sizes: dict[str, int] = {}
        self.begin: Callable[[Sequence[Problem], Sequence[int], int], None] = lambda *_: None
        # Restored problems of the queue, for which `begin` has not been called yet.
        self._num_restored = 0

    def draw(self, num_prompts: int, refill: bool = False) -> list[Problem]:
        """Return the next problems of the queue, after the queue has been filled."""
        if not refill:
            self._begin_restored()
            self._fill()
            self._step += 1
        drawn, self._queue = self._queue[:num_prompts], self._queue[num_prompts:]
        # At the end of a run the queue may be shorter than a refill.
        if missing := num_prompts - len(drawn):
            drawn += self._draw_now(missing)
        return drawn

    def group_sizes(self, problems: Sequence[Problem], usual: int) -> list[int]:
        """Return the group size of each drawn problem, which was chosen when it was drawn."""
        return [self._sizes[problem.group_id] for problem in problems]

    def observe(self, groups: Sequence[Group], verdicts: Sequence[Sequence[Verdict]]) -> None:
        """Record the verdicts of drawn problems."""
        for group in groups:
            self._sizes.pop(group.id, None)
        self._draws.observe(groups, verdicts)

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the current step."""
        return dict(self._draws.metrics())

    def _draw_now(self, number: int, is_refill: bool = False) -> list[Problem]:
        # A refill continues the draw of a step, so that the step does not repeat a problem.
        problems = self._draws.draw(number, is_refill)
        sizes = self._draws.group_sizes(problems, self._group_size)
        self._sizes |= {p.group_id: size for p, size in zip(problems, sizes, strict=True)}
        return problems

    def _fill(self) -> None:
        """Draw the problems of the current step and of the steps ahead that are missing."""
        last = self._step + self._steps_ahead
        if self._num_steps is not None:
            last = min(last, self._num_steps - 1)
        wanted = (last - self._step + 1) * self._num_prompts
        while len(self._queue) < wanted:
            # One step at a time, because a step does not repeat a problem.
            step, begun = divmod(len(self._queue), self._num_prompts)
            problems = self._draw_now(self._num_prompts - begun, begun > 0)
            self._queue += problems
            self._begin(problems, self._step + step)

    def _begin(self, problems: Sequence[Problem], step: int) -> None:
        self.begin(problems, [self._sizes[one.group_id] for one in problems], step)

    def _begin_restored(self) -> None:
        restored, self._num_restored = self._queue[: self._num_restored], 0
        for first in range(0, len(restored), self._num_prompts):
            step = self._step + first // self._num_prompts
            self._begin(restored[first : first + self._num_prompts], step)

    def continue_at(self, step: int) -> None:
        """Set the number of finished steps of the run, which draws next.

        A state that was saved without sampling ahead has no step. If the run now has fewer steps,
        problems of the queue that no step needs are removed.
        """
        self._step = step
        if self._num_steps is not None:
            self._queue = self._queue[: max(0, self._num_steps - step) * self._num_prompts]
            self._num_restored = min(self._num_restored, len(self._queue))

    def draw_again(self, name: str) -> Problem | None:
        """Return a problem that was drawn before the state was saved."""
        return self._draws.draw_again(name)

    def state_copy(self) -> DrawsAhead:
        """Return a copy of the current state, for `save_state`."""
        other = copy.copy(self)
        other._draws = self._draws.state_copy()
        other._queue, other._sizes = [*self._queue], dict(self._sizes)
        return other

    def save_state(self, folder: Path | str) -> None:
        """Write the state, with the order of the queue, to a folder."""
        self._draws.save_state(folder)
        queue = [[one.group_id, self._sizes[one.group_id]] for one in self._queue]
        state = {"step": self._step, "group_size": self._group_size, "queue": queue}
        (Path(folder) / STATE_FILE).write_text(json.dumps(state), encoding="utf-8")

    def load_state(self, folder: Path | str) -> None:
        """Restore a saved state. Raises RunError if the saved problems differ.

        The state may have been saved without sampling ahead. Its queue is then empty.
        """
        self._draws.load_state(folder)
        path = Path(folder) / STATE_FILE
        self._queue, self._sizes = [], {}
        if not path.exists():
            return
        try:
            state = json.loads(path.read_text(encoding="utf-8"))
            for name, size in state["queue"]:
                problem = self._draws.draw_again(name)
                if problem is None:
                    raise ValueError(f"unknown group {name}")
                self._queue.append(problem)
                self._sizes[name] = size
            self._step = state["step"]
            if state.get("group_size") != self._group_size:
                sizes = self._draws.group_sizes(self._queue, self._group_size)
                self._sizes = {p.group_id: n for p, n in zip(self._queue, sizes, strict=True)}
        except (OSError, ValueError, KeyError, TypeError) as error:
            remedy = "choose another checkpoint"
            raise RunError(f"{path}: cannot be read ({error}); {remedy}") from error
        self._num_restored = len(self._queue)
