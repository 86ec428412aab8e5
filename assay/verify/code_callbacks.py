"""A call during which the submission uses functions of the test: two processes take turns.

The tests' process waits for its answer while the submission's process asks it something, so the call
goes on in a thread of its own, and one of the two always waits for the other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from typing import Any, TypeAlias, cast

from assay.verify.sandbox import Handle, Outcome, SubmissionError

Question: TypeAlias = tuple[Any, tuple[Any, ...], dict[str, Any]]
"""What the submission asks of a test's object: (the object or an operation, args, kwargs)."""

MAX_NESTED = 100_000  # values that are searched for objects of the test


class Abandoned(BaseException):
    """The test ended while the submission waited for it."""


class Conversation:
    """One call of the submission, with the questions that it asks meanwhile."""

    def __init__(self, call: Callable[[], Outcome]) -> None:
        self._call = call
        self._turns: SimpleQueue[Question | Outcome | BaseException] = SimpleQueue()
        self._answers: SimpleQueue[Any] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def start(self) -> Question | Outcome:
        """Begin the call: its outcome, or the first question."""
        self._thread.start()
        return self._next()

    def resume(self, answer: Any) -> Question | Outcome:
        """Give the answer to the last question: the outcome of the call, or the next question."""
        self._answers.put(answer)
        return self._next()

    def abandon(self) -> None:
        """End a call that nobody waits for any more; its session is closed by that."""
        self._answers.put(None)
        self._thread.join()

    def ask(self, question: Question) -> Any:
        """Ask the test, in the thread of the call. Raises SubmissionError for an error there."""
        self._turns.put(question)
        answer = self._answers.get()
        if answer is None:
            raise Abandoned
        kind, *rest = answer
        if kind == "raise":
            name, text = rest
            raise SubmissionError(name, f"{name}: {text}")
        return rest[0]

    def _work(self) -> None:
        try:
            self._turns.put(self._call())
        except BaseException as error:  # it is raised again in the thread that waits
            self._turns.put(error)

    def _next(self) -> Question | Outcome:
        turn = self._turns.get()
        if isinstance(turn, BaseException):
            self._thread.join()
            raise turn
        if isinstance(turn, Outcome):
            self._thread.join()
        return turn


def holds_objects_of(origin: int, value: Any) -> bool:
    """Whether a value holds an object of the session with this number."""
    waiting = [value]
    for _ in range(MAX_NESTED):
        if not waiting:
            return False
        each = waiting.pop()
        if isinstance(each, Handle):
            if each.origin == origin:
                return True
        elif isinstance(each, Mapping):
            mapping = cast("Mapping[Any, Any]", each)
            waiting += [*mapping.keys(), *mapping.values()]
        elif isinstance(each, (list, tuple, set, frozenset)):
            waiting += cast("list[Any]", each)
    return False
