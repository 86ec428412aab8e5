"""Environments of tests: one that a tiny model can play, and some with faults."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import count
from typing import Any

from assay.generate.turns.environment import Environment
from assay.types import Message, Problem

TRIES = 3
_numbers = count(1)


@Environment
class Digit:
    """A digit is looked for in at most three tries."""

    def start(self, problem: Problem) -> str:
        self.tries, self.digit = 0, str(problem.spec["digit"])
        return f"{problem.question}"

    def respond(self, messages: Sequence[Message]) -> str | dict[str, float]:
        self.tries += 1
        if messages[-1]["content"].strip() == self.digit:
            return {"score": 1.0, "tries": self.tries}
        return "no" if self.tries < TRIES else {"score": 0.0, "tries": self.tries}


@Environment
class Warmer:
    """The same; a try that is near earns something at once."""

    def start(self, problem: Problem) -> str:
        self.play, self.digit = Digit.play(), problem.spec["digit"]
        return str(self.play.start(problem))

    def respond(self, messages: Sequence[Message]) -> Any:
        answer, said = self.play.respond(messages), messages[-1]["content"].strip()
        if isinstance(answer, dict):
            return answer
        near = said.isdigit() and abs(int(said) - self.digit) < 3
        return {"messages": answer, "reward": 0.25 * near}


class _Killed:
    """The same, in a process that ends at one of its answers, where the environment says so."""

    def __init__(self) -> None:
        self.play = Digit.play()

    def start(self, problem: Problem) -> Any:
        return self.play.start(problem)

    def respond(self, messages: Sequence[Message]) -> Any:
        if os.environ.get("GAME_ENDS_AT") == str(next(_numbers)):
            os._exit(9)
        return self.play.respond(messages)


Killed = Environment(_Killed)


@Environment
class Faulty:
    """It fails at its first answer."""

    def start(self, problem: Problem) -> list[Message]:
        return [{"role": "user", "content": problem.question}]

    def respond(self, messages: Sequence[Message]) -> Any:
        raise RuntimeError(f"cannot answer {messages[-1]['content'].strip()}")


@Environment
class Wordless:
    """It starts with what is no message."""

    def start(self, problem: Problem) -> Any:
        return [{"role": "user"}]

    def respond(self, messages: Sequence[Message]) -> Any:
        return 0.0


@Environment
class Silent:
    """It answers with no message."""

    def start(self, problem: Problem) -> str:
        return "?"

    def respond(self, messages: Sequence[Message]) -> list[Message]:
        return []


not_an_environment = dict


@Environment
class Exits:
    """It cannot start without a key, and exits at its first answer."""

    def start(self, problem: Problem) -> str:
        return str(problem.spec["digit"])

    def respond(self, messages: Sequence[Message]) -> Any:
        raise SystemExit("bye")
