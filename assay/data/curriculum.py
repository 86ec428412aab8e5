"""Which problems come next: every problem once an epoch, in an order that the seed fixes."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from assay.errors import ConfigError, RunError, message
from assay.types import Group, Problem, Verdict

STATE_FILE = "curriculum.json"


class Curriculum:
    """Draws problems without replacement, epoch after epoch, and remembers how they went.

    A problem's `draw` is the number of the epoch, so that each draw of it names its own group.
    """

    def __init__(self, problems: Sequence[Problem], seed: int) -> None:
        if not len(problems):
            raise ConfigError(message("data.train", "no problems", "at least one problem"))
        self._problems = problems
        self._seed = seed
        self._epoch = 0
        self._position = 0
        self._order = self._shuffle()
        self._outcomes: dict[str, tuple[int, int]] = {}

    @property
    def epoch(self) -> int:
        """How many times all problems have been drawn."""
        return self._epoch

    def draw(self, num_prompts: int) -> list[Problem]:
        """Return the next problems; one batch may run from the end of an epoch into the next."""
        return [self._draw_one() for _ in range(num_prompts)]

    def observe(self, groups: Sequence[Group], verdicts: Sequence[Sequence[Verdict]]) -> None:
        """Count how many completions of each problem were judged, and how many passed."""
        for group, siblings in zip(groups, verdicts, strict=True):
            num_passed = sum(verdict.correct for verdict in siblings)
            num_judged = sum(verdict.judged for verdict in siblings)
            before_passed, before_judged = self._outcomes.get(group.problem.id, (0, 0))
            self._outcomes[group.problem.id] = (
                before_passed + num_passed,
                before_judged + num_judged,
            )

    def pass_rate(self, problem_id: str) -> float | None:
        """Return the share of a problem's judged completions that passed; None if there is none."""
        num_passed, num_judged = self._outcomes.get(problem_id, (0, 0))
        return num_passed / num_judged if num_judged else None

    def save_state(self, folder: Path | str) -> None:
        """Write where the curriculum stands to ``folder/curriculum.json``."""
        state = {
            "seed": self._seed,
            "epoch": self._epoch,
            "position": self._position,
            "num_problems": len(self._problems),
            "fingerprint": self._fingerprint(),
            "outcomes": self._outcomes,
        }
        (Path(folder) / STATE_FILE).write_text(json.dumps(state), encoding="utf-8")

    def load_state(self, folder: Path | str) -> None:
        """Go on where a saved curriculum stood; RunError where its problems or seed were others."""
        path = Path(folder) / STATE_FILE
        try:
            state = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise RunError(
                f"{path}: cannot be read ({error}); choose another checkpoint"
            ) from error
        here = {
            "seed": self._seed,
            "num_problems": len(self._problems),
            "fingerprint": self._fingerprint(),
        }
        saved = state if isinstance(state, dict) else {}
        for name, value in here.items():
            if saved.get(name) != value:
                remedy = "resume with the data and the seed that the run began with"
                raise RunError(message(f"{path} {name}", value, str(saved.get(name)), remedy))
        self._epoch, self._position = state["epoch"], state["position"]
        self._order = self._shuffle()
        self._outcomes = {key: (passed, n) for key, (passed, n) in state["outcomes"].items()}

    def _draw_one(self) -> Problem:
        if self._position == len(self._order):
            self._epoch += 1
            self._position = 0
            self._order = self._shuffle()
        problem = self._problems[int(self._order[self._position])]
        self._position += 1
        return dataclasses.replace(problem, draw=self._epoch)

    def _shuffle(self) -> NDArray[np.int64]:
        generator = np.random.default_rng([self._seed % 2**64, self._epoch])
        return generator.permutation(len(self._problems))

    def _fingerprint(self) -> str:
        """Return a digest of up to 64 problems of the set: enough to tell two sets apart."""
        digest = hashlib.blake2b(digest_size=8)
        num_problems = len(self._problems)
        for n in range(min(64, num_problems)):
            problem = self._problems[n * num_problems // min(64, num_problems)]
            digest.update(repr((problem.id, problem.question)).encode("utf-8", "backslashreplace"))
        return digest.hexdigest()
