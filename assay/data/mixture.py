"""Mixtures of training problems: balanced draws from one curriculum per mixture part."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from assay.config import CurriculumConfig, MixturePart
from assay.config.mixture import part_of
from assay.data.curriculum import Curriculum
from assay.data.row_facts import FactReader
from assay.errors import RunError, message
from assay.types import Group, Problem, Verdict

STATE_FILE = "mixture.json"
NUM_RECENT = 64
"""Number of a part's newest groups whose mean pass rate is compared with
`MixturePart.stop_above`."""


class Draws(Protocol):
    """A source of training problems: a `Curriculum`, or the `MixedCurriculum` of a mixture."""

    def draw(self, num_prompts: int, refill: bool = False) -> list[Problem]:
        """Return the next problems."""
        ...

    def group_sizes(self, problems: Sequence[Problem], usual: int) -> list[int]:
        """Return the group size (number of completions) of each drawn problem."""
        ...

    def observe(self, groups: Sequence[Group], verdicts: Sequence[Sequence[Verdict]]) -> None:
        """Record the verdicts of the completions of drawn problems."""
        ...

    def draw_again(self, name: str) -> Problem | None:
        """Return a problem that was drawn before the state was saved, by its group id."""
        ...

    def state_copy(self) -> Any:
        """Return a copy of the current drawing state."""
        ...

    def save_state(self, folder: Path | str) -> None:
        """Write the drawing state to a folder."""
        ...

    def load_state(self, folder: Path | str) -> None:
        """Restore a saved state."""
        ...

    def metrics(self) -> dict[str, float]:
        """Return the drawing metrics of the current step."""
        ...


class MixedCurriculum:
    """Draws problems from the curricula of a mixture's parts, in proportion to the parts' weights.

    Parts are chosen by smooth weighted round robin. With each drawn prompt, every part's credit
    rises by its share of the mixture. The prompt comes from the part with the highest credit, whose
    credit then falls by one. After any number of prompts, the prompts of a part differ from its
    share of them by less than the number of parts. Random choice of parts would let this difference
    grow with the square root of the number of prompts. The next draw depends only on the credits
    and the states of the parts, so a resumed run draws the same problems.
    """

    def __init__(
        self, parts: Mapping[str, Curriculum], settings: Mapping[str, MixturePart]
    ) -> None:
        self._parts = dict(parts)
        self._settings = settings
        self._credits = dict.fromkeys(self._parts, 0.0)
        self._of_step = dict.fromkeys(self._parts, 0)
        self._recent: dict[str, list[float]] = {name: [] for name in self._parts}
        self._stopped: set[str] = set()

    def draw(self, num_prompts: int, refill: bool = False) -> list[Problem]:
        """Return the next training problems, in the order in which their parts were chosen."""
        order = [self._next_part() for _ in range(num_prompts)]
        if not refill:
            self._of_step = dict.fromkeys(self._parts, 0)
        drawn: dict[str, list[Problem]] = {}
        for name, part in self._parts.items():
            # A part without prompts is called, too, so that its curriculum starts a new step.
            drawn[name] = part.draw(order.count(name), refill)[::-1]
            self._of_step[name] += len(drawn[name])
        return [drawn[name].pop() for name in order]

    def _next_part(self) -> str:
        active = [name for name in self._parts if name not in self._stopped] or [*self._parts]
        total = sum(self._settings[name].weight for name in active)
        for name in active:
            self._credits[name] += self._settings[name].weight / total
        chosen = max(active, key=self._credits.__getitem__)
        self._credits[chosen] -= 1.0
        return chosen

    def group_sizes(self, problems: Sequence[Problem], usual: int) -> list[int]:
        """Return the group size of each drawn problem, which the problem's mixture part
        determines."""
        sizes: list[int] = []
        for problem in problems:
            name = self._name_of(problem)
            own = self._settings[name].group_size or usual
            sizes += self._parts[name].group_sizes([problem], own)
        return sizes

    def observe(self, groups: Sequence[Group], verdicts: Sequence[Sequence[Verdict]]) -> None:
        """Record the verdicts of drawn problems in the curricula of their mixture parts."""
        pairs = list(zip(groups, verdicts, strict=True))
        for name, part in self._parts.items():
            own = [pair for pair in pairs if self._name_of(pair[0].problem) == name]
            part.observe([group for group, _ in own], [judged for _, judged in own])
            self._look_at(name, [judged for _, judged in own])

    def _look_at(self, name: str, verdicts: Sequence[Sequence[Verdict]]) -> None:
        """Record the pass rates of a part's new groups, and stop the part if its limit `stop_above`
        is reached.
        """
        for judged in verdicts:
            known = [verdict.correct for verdict in judged if verdict.judged]
            if known:
                self._recent[name].append(sum(known) / len(known))
        # A part that once reached its limit `stop_above` stays stopped, even at lower rates.
        # If every part of the mixture is stopped, problems of all parts are drawn again.
        self._recent[name] = self._recent[name][-NUM_RECENT:]
        if self._is_solved(name):
            self._stopped.add(name)

    def _is_solved(self, name: str) -> bool:
        recent, limit = self._recent[name], self._settings[name].stop_above
        return limit is not None and len(recent) == NUM_RECENT and sum(recent) >= NUM_RECENT * limit

    def draw_again(self, name: str) -> Problem | None:
        """Return a waiting problem of a mixture part by its group id; None if unknown."""
        found = (part.draw_again(name) for part in self._parts.values())
        return next((problem for problem in found if problem is not None), None)

    def _name_of(self, problem: Problem) -> str:
        name = part_of(self._settings, problem.tags)
        assert name is not None, problem.id
        return name

    def state_copy(self) -> MixedCurriculum:
        """Return a copy of the mixture's current state, which later draws do not change."""
        other = copy.copy(self)
        other._parts = {name: part.state_copy() for name, part in self._parts.items()}
        other._credits = dict(self._credits)
        other._of_step = dict(self._of_step)
        other._recent = {name: [*recent] for name, recent in self._recent.items()}
        other._stopped = set(self._stopped)
        return other

    def metrics(self) -> dict[str, float]:
        """Return metrics: each part's share of the step's prompts, and the part's epochs so far.

        Metrics ``curriculum/...`` are means over the parts, weighted by the number of problems.
        """
        total = max(1, sum(self._of_step.values()))
        found: dict[str, float] = {}
        of_parts = {name: part.metrics() for name, part in self._parts.items()}
        for name, own in of_parts.items():
            found[f"mixture/{name}.share"] = self._of_step[name] / total
            if self._settings[name].stop_above is not None:
                found[f"mixture/{name}.stopped"] = float(name in self._stopped)
            found[f"mixture/{name}.effective_epochs"] = own["curriculum/effective_epochs"]
        for key in dict.fromkeys(key for own in of_parts.values() for key in own):
            with_key = [name for name, own in of_parts.items() if key in own]
            sizes = [self._parts[name].num_problems for name in with_key]
            values = [of_parts[name][key] for name in with_key]
            found[key] = float(np.average(values, weights=sizes))
        return found

    def save_state(self, folder: Path | str) -> None:
        """Write the state of the mixture to a folder, and each part's state to a subfolder."""
        folder = Path(folder)
        state = {
            "credits": self._credits,
            "recent": self._recent,
            "stopped": sorted(self._stopped),
        }
        (folder / STATE_FILE).write_text(json.dumps(state), encoding="utf-8")
        for name, part in self._parts.items():
            (folder / name).mkdir()
            part.save_state(folder / name)

    def load_state(self, folder: Path | str) -> None:
        """Restore a saved state; raises RunError if the state has other parts or problems.

        Weights may change on resume. Saved credits are restored, so changed weights take effect
        only from the resumed step on.
        """
        folder = Path(folder)
        path = folder / STATE_FILE
        try:
            state: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            remedy = "choose another checkpoint"
            raise RunError(f"{path}: cannot be read ({error}); {remedy}") from error
        if state["credits"].keys() != self._parts.keys():
            found, saved = ", ".join(self._parts), ", ".join(state["credits"])
            remedy = "resume with the parts that the run began with"
            raise RunError(message(f"{path} parts", found, saved, remedy))
        # The credits are restored in the order in which this run's configuration lists the parts.
        # If two parts have equal credits, the part that comes first in this order is drawn first.
        self._credits = {name: state["credits"][name] for name in self._parts}
        self._recent = {name: [*state["recent"][name]] for name in self._parts}
        # If a resumed run has no limit for a stopped part, the part is drawn again.
        limited = {name for name in self._parts if self._settings[name].stop_above is not None}
        self._stopped = limited & {*state["stopped"]}
        self._of_step = dict.fromkeys(self._parts, 0)
        for name, part in self._parts.items():
            part.load_state(folder / name)


def mixed_curriculum(
    problems: Any,
    seed: int,
    settings: Mapping[str, MixturePart],
    usual: CurriculumConfig,
    most_drawn: int,
    draws_ahead: bool = False,
) -> MixedCurriculum:
    """Return the curriculum of a mixture, in its state before the first draw.

    problems: all training problems, each of which belongs to one mixture part. usual: the
    configuration ``[curriculum]``, for parts without their own curriculum table. most_drawn:
    expected number of draws in the run. draws_ahead: see `Curriculum`.
    """
    rows: dict[str, list[int]] = {name: [] for name, part in settings.items() if part.weight}
    for index in range(len(problems)):
        name = part_of(settings, problems[index].tags)
        assert name is not None, index
        rows[name].append(index)
    total = sum(settings[name].weight for name in rows)
    parts: dict[str, Curriculum] = {}
    for name, indices in rows.items():
        own = problems.select(np.array(indices))
        order = settings[name].curriculum or usual
        share = int(most_drawn * settings[name].weight / total) + 1
        facts = FactReader(order).read(own, check_names=order is not usual)
        rest = (min(share, most_drawn), 0, draws_ahead)
        parts[name] = Curriculum(own, seed, order, facts, *rest)
    return MixedCurriculum(parts, settings)
