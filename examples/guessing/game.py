"""A game of several turns: a number is guessed, and the reply to each guess is too low or high."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from assay import source
from assay.generate.turns.environment import Environment
from assay.types import Message, Problem


@source
def numbers(size: int = 500, most: int = 20, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Yield games: a number from 1 to ``most``, and how many guesses there are."""
    for game in range(size):
        number = (game * 7919 + seed * 104729) % most + 1
        name = f"Game {seed}-{game}"
        yield {"id": name, "prompt": name, "number": number, "most": most, "guesses": 5}


@Environment
class GuessingGame:
    """Score 1 for the number, in however many guesses; a part says how many were left."""

    def start(self, problem: Problem) -> str:
        """Return what the policy sees first."""
        self.number, self.left = problem.spec["number"], problem.spec["guesses"]
        return (
            f"I think of a number from 1 to {problem.spec['most']}. You have {self.left} guesses."
            " Reply with one number, and nothing else."
        )

    def respond(self, messages: Sequence[Message]) -> str | dict[str, float]:
        """Return a hint; at the end, the reward and its parts."""
        self.left -= 1
        found = re.search(r"\d{1,9}", messages[-1]["content"])
        if found and int(found[0]) == self.number:
            return {"score": 1.0, "guesses_left": self.left}
        if not self.left:
            return {"score": 0.0, "guesses_left": 0}
        if not found:
            return "That is no number."
        return "It is higher." if int(found[0]) < self.number else "It is lower."
