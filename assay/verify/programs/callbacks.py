"""A call during which the submission uses functions of the test: two processes take turns.

The tests' process waits for its answer while the submission's process asks it something, so the call
goes on in a thread of its own, and one of the two always waits for the other.
"""

from __future__ import annotations

import operator
import threading
from collections import deque
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from typing import Any, TypeAlias, cast

from assay.errors import VerifierError, message
from assay.verify.sandbox import Handle, Iterator, Outcome, SubmissionError

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
    """Whether a value holds an object of the session with this number.

    Raises VerifierError where a set or a key is one: hashing it would ask its process while that
    waits for this value.
    """
    waiting = [(value, False)]
    found = False
    for _ in range(MAX_NESTED):
        if not waiting:
            break
        each, hashed = waiting.pop()
        if isinstance(each, Handle):
            if each.origin == origin:
                found = True
                if hashed:
                    said = "a set, or keys, of objects of the test"
                    raise VerifierError(message("spec tests", said, "lists of them"))
        elif isinstance(each, Mapping):
            mapping = cast("Mapping[Any, Any]", each)
            waiting += [(key, True) for key in mapping]
            waiting += [(inside, hashed) for inside in mapping.values()]
        elif isinstance(each, (list, tuple)):
            waiting += [(inside, hashed) for inside in cast("list[Any]", each)]
        elif isinstance(each, (set, frozenset)):
            waiting += [(inside, True) for inside in cast("set[Any]", each)]
    return found


def unhashed(value: Any) -> Any:
    """Return a value for the tests' process, with sets and dicts of objects as slices of their items.

    A process that reads a set hashes its members, and to hash an object of another process is to
    ask for it, which nobody may do while a message is being read.
    """
    items: list[Any]
    if isinstance(value, (set, frozenset)):
        olds = list(cast("set[Any]", value))
        items = [unhashed(each) for each in olds]
        return slice(type(value).__name__, items, None) if _asks(olds, items) else value
    if isinstance(value, dict):
        mapping = cast("dict[Any, Any]", value)
        keys = [unhashed(each) for each in mapping]
        items = [unhashed(each) for each in mapping.values()]
        if _asks(list(mapping), keys):
            return slice("dict", list(zip(keys, items, strict=True)), None)
        same = all(map(operator.is_, items, mapping.values()))
        return mapping if same else dict(zip(keys, items, strict=True))
    if isinstance(value, slice):
        return slice(*map(unhashed, (value.start, value.stop, value.step)))
    if isinstance(value, Iterator):
        return Iterator(value.kind, [unhashed(each) for each in value.items], value.complete)
    if isinstance(value, (list, tuple, deque, *_VIEWS)):
        olds = list(cast("list[Any]", value))
        items = [unhashed(each) for each in olds]
        if all(map(operator.is_, items, olds)) and not (
            isinstance(value, _VIEWS) and _asks(olds, items)
        ):
            return cast("Any", value)
        return tuple(items) if isinstance(value, tuple) else items
    return value


def _asks(olds: list[Any], items: list[Any]) -> bool:
    """Whether hashing some members would ask another process."""
    return any(map(_has_object, olds)) or not all(map(operator.is_, items, olds))


_VIEWS = (type({}.keys()), type({}.values()), type({}.items()))


def _has_object(key: Any) -> bool:
    if isinstance(key, (tuple, frozenset)):
        return any(map(_has_object, cast("tuple[Any, ...]", key)))
    return isinstance(key, Handle)


def rehashed(value: Any) -> Any:
    """Return arguments from the tests' process with such slices as the sets and dicts that they are."""
    if isinstance(value, slice):
        kind, items = cast("tuple[Any, Any]", (value.start, value.stop))
        if kind in ("set", "frozenset"):
            return (set if kind == "set" else frozenset)(map(rehashed, items))
        if kind == "dict":
            return {rehashed(key): rehashed(each) for key, each in items}
        return cast("Any", value)
    if type(value) in (list, tuple):
        items = [rehashed(each) for each in value]
        return value if all(map(operator.is_, items, value)) else type(value)(items)
    if type(value) is dict:
        return {key: rehashed(each) for key, each in cast("dict[Any, Any]", value).items()}
    return value
