"""Draw the problems of later steps early, so that the generator can sample their groups ahead."""

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

    When step s begins, the queue is filled with the problems of steps s to s + ``steps_ahead``.
    Step s + ``steps_ahead`` therefore trains on completions that are at most ``steps_ahead`` steps
    old. No problem is skipped, however long its completions are. Refills of dynamic sampling use up
    problems of the next step, which are in the queue.

    A draw cannot depend on verdicts of steps whose problems were drawn before these verdicts.
    begin: function that is called with newly drawn problems, their group sizes and the index of
    their step.
    """

    def __init__(
        self,
        draws: Draws,
        steps_ahead: int,
        num_prompts: int,
        group_size: int,
        num_steps: int | None = None,
    ) -> None:
        """num_prompts, group_size: of a step. num_steps: number of steps in the run."""
        self._draws = draws
        self._steps_ahead, self._num_prompts = steps_ahead, num_prompts
        self._group_size, self._num_steps = group_size, num_steps
        # Number of steps whose problems have been drawn.
        self._step = 0
        self._queue: list[Problem] = []
        # Group size by group id, for each problem in the queue or in the current step.
        self._sizes: dict[str, int] = {}
        self.begin: Callable[[Sequence[Problem], Sequence[int], int], None] = lambda *_: None
        # Number of restored problems at the start of the queue that `begin` has not announced yet.
        self._num_restored = 0

    def draw(self, num_prompts: int, refill: bool = False) -> list[Problem]:
        """Fill the queue, and return its next problems."""
        if not refill:
            self._begin_restored()
            self._fill()
            self._step += 1
        drawn, self._queue = self._queue[:num_prompts], self._queue[num_prompts:]
        # At the end of a run, the queue may have fewer problems than a refill requests.
        if missing := num_prompts - len(drawn):
            drawn += self._draw_now(missing)
        return drawn

    def group_sizes(self, problems: Sequence[Problem], usual: int) -> list[int]:
        """Return the group size of each problem, as chosen when the problem was drawn."""
        return [self._sizes[problem.group_id] for problem in problems]

    def observe(self, groups: Sequence[Group], verdicts: Sequence[Sequence[Verdict]]) -> None:
        """Record the verdicts of all completions of drawn problems."""
        for group in groups:
            self._sizes.pop(group.id, None)
        self._draws.observe(groups, verdicts)

    def metrics(self) -> dict[str, float]:
        """Return the curriculum's metrics of the current step."""
        return dict(self._draws.metrics())

    def _draw_now(self, number: int, is_refill: bool = False) -> list[Problem]:
        # A refill counts as part of the same step, so that the step does not repeat a problem.
        problems = self._draws.draw(number, is_refill)
        sizes = self._draws.group_sizes(problems, self._group_size)
        self._sizes |= {p.group_id: size for p, size in zip(problems, sizes, strict=True)}
        return problems

    def _fill(self) -> None:
        """Draw the missing problems of the current step and of the steps ahead."""
        last = self._step + self._steps_ahead
        if self._num_steps is not None:
            last = min(last, self._num_steps - 1)
        wanted = (last - self._step + 1) * self._num_prompts
        while len(self._queue) < wanted:
            # The loop draws one step at a time, because problems must not repeat within a step.
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
        """Set the number of finished steps; the next step of the run draws next.

        The step is an argument, because a state that was saved without sampling ahead has no step.
        If the configured number of steps became smaller, problems that no step needs leave the
        queue.
        """
        self._step = step
        if self._num_steps is not None:
            self._queue = self._queue[: max(0, self._num_steps - step) * self._num_prompts]
            self._num_restored = min(self._num_restored, len(self._queue))

    def draw_again(self, name: str) -> Problem | None:
        """Return a problem by its group id, if it was drawn before the state was saved."""
        return self._draws.draw_again(name)

    def state_copy(self) -> DrawsAhead:
        """Return a copy of the current state, which `save_state` writes."""
        other = copy.copy(self)
        other._draws = self._draws.state_copy()
        other._queue, other._sizes = [*self._queue], dict(self._sizes)
        return other

    def save_state(self, folder: Path | str) -> None:
        """Write the state of the curriculum and the queue's order to a folder."""
        self._draws.save_state(folder)
        queue = [[one.group_id, self._sizes[one.group_id]] for one in self._queue]
        state = {"step": self._step, "group_size": self._group_size, "queue": queue}
        (Path(folder) / STATE_FILE).write_text(json.dumps(state), encoding="utf-8")

    def load_state(self, folder: Path | str) -> None:
        """Restore a saved state. Raises RunError if the saved state belongs to other problems.

        The saved state may come from a run without sampling ahead. Its queue is then empty.
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
