"""An environment that tiny untrained models play, for tests of features that meet one another.

Actors and workers import this module, so that it imports little.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from assay.generate.turns.environment import Environment
from assay.types import Message, Problem

TURNS = 3


@Environment
class Echo:
    """It says the row's answer after each of two turns; a turn of an even length earns something."""

    def start(self, problem: Problem) -> str:
        self.turns, self.answer = 0, str(problem.spec["answer"])
        return problem.question

    def respond(self, messages: Sequence[Message]) -> Any:
        self.turns += 1
        said = messages[-1]["content"]
        if self.turns == TURNS:
            return {"score": float(len(said) % 2)}
        return {"messages": f"[{self.answer}]", "reward": 0.25 * (len(said) % 2)}


class _Lost:
    """The same; nothing passes."""

    def __init__(self) -> None:
        self.play = Echo.play()

    def start(self, problem: Problem) -> Any:
        return self.play.start(problem)

    def respond(self, messages: Sequence[Message]) -> Any:
        answer = self.play.respond(messages)
        return {"score": 0.0, "form": answer["score"]} if "score" in answer else answer


Lost = Environment(_Lost)
