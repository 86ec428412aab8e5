"""A completion that is sampled by a chain of requests, with its turn controller.

`Slots` implements the same rules for the built-in engine, with arrays over all slots. Tests check
that `OpenCompletion` and `Slots` give the same tokens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container
from concurrent.futures import Future

import numpy as np

from assay.generate.base import InjectedTokens, Promise, SoFar, TurnController
from assay.generate.finish import TextEnds
from assay.generate.slots import Waiting
from assay.types import FinishReason, Tokens


class OpenCompletion:
    """An unfinished completion of a request-based generator, such as vLLM.

    A request continues the prompt and the tokens so far, until the turn controller injects tokens
    or returns a future. After an injection, a pause or an interruption, a new request continues the
    completion. controller: the turn controller. policy_version: version that samples the next
    tokens. text_ends: searches for stop strings; None: the request itself stops at stop strings.
    num_undone: number of removed tokens. needs_request: whether a new request must continue the
    completion. promise: future of the turn controller while the completion is paused. reason:
    finish reason; None while the completion is unfinished.
    """

    def __init__(
        self,
        group: Waiting,
        sibling: int,
        key: int,
        controller: TurnController | None = None,
        text_ends: TextEnds | None = None,
        eos_ids: Container[int] = (),
        policy_version: int = 0,
    ) -> None:
        self.group, self.sibling, self.key = group, sibling, key
        self.policy_version = policy_version
        self.controller = controller
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.sampled: list[bool] = []
        self.versions: list[int] = []
        self.turns: list[tuple[int, int]] = []
        self.num_undone = 0
        self.needs_request = True
        self.promise: Promise | None = None
        self.reason: FinishReason | None = None
        self.text_ends, self._eos_ids = text_ends, eos_ids
        # Finish reason that applies if the future of the paused controller injects nothing.
        self._ends: FinishReason | None = None
        self._ask(None)

    @property
    def draw(self) -> int:
        """Index of the completion's next random draw.

        The random draw of a removed token is never repeated.
        """
        return len(self.tokens) + self.num_undone

    @property
    def is_off(self) -> bool:
        """Whether the current request must end, because the completion ended, paused, or got
        injected tokens."""
        return self.needs_request or self.reason is not None

    def add(self, token: int, logprob: float, stopped: bool = False) -> None:
        """Append a sampled token and call the turn controller.

        stopped: whether the request ended at a stop string with this token.
        """
        self._append(token, logprob, True)
        ends: FinishReason | None = None
        if token in self._eos_ids:
            ends = "eos"
        elif stopped or (self.text_ends is not None and self.text_ends.ends(self._tail())):
            ends = "stop_string"
        self._ask(ends)

    def resume(self) -> None:
        """Continue the paused completion with the result of its future, which must be finished."""
        promise, self.promise = self.promise, None
        assert promise is not None, "the completion is not paused"
        self._ask(self._ends, promise)

    def _ask(self, ends: FinishReason | None, answer: Promise | None = None) -> None:
        """Call the turn controller for the newest token, and inject the returned tokens."""
        limit, queue = self.group.limit, deque[int]()
        while True:
            given = self._answer(ends, answer)
            if self.promise is not None:
                self._ends = ends
                return
            if given is not None:
                self._undo(given.replaces)
                queue.extend(given.tokens)
                if given.begins_turn:
                    start = len(self.tokens)
                    self.turns.append((start, start + len(queue)))
            if not queue:
                break
            # Injected tokens never end a completion, even if they contain an end token.
            ends, answer = None, None
            while queue and len(self.tokens) < limit:
                self._append(queue.popleft(), 0.0, False)
            if queue:
                break
        if ends is not None:
            self.reason = ends
        elif len(self.tokens) >= limit:
            self.reason = "length"

    def _answer(self, ends: FinishReason | None, answer: Promise | None) -> InjectedTokens | None:
        """Return the tokens to inject. If the controller returns an unfinished future, ``promise``
        is set to that future."""
        found = answer
        if found is None and self.controller is not None:
            found = self.controller(self._so_far(ends))
        if found is None:
            return None
        # A new request uses a new seed.
        # Whether a new request starts must not depend on a tool's speed, because a new request has
        # a new seed.
        self.needs_request = True
        if not isinstance(found, Future):
            return found
        if found.done():
            return found.result()
        self.promise = found
        return None

    def _so_far(self, ends: FinishReason | None) -> SoFar:
        newest = self.tokens[-1] if self.tokens else None
        given = bool(self.tokens) and not self.sampled[-1]
        return SoFar(len(self.tokens), newest, ends is not None, self._read, given)

    def _read(self) -> Tokens:
        return np.array(self.tokens, np.int32)

    def _append(self, token: int, logprob: float, sampled: bool) -> None:
        self.tokens.append(token)
        self.logprobs.append(logprob)
        self.sampled.append(sampled)
        self.versions.append(self.policy_version)

    def _undo(self, num_tokens: int) -> None:
        for values in (self.tokens, self.logprobs, self.sampled, self.versions):
            del values[len(values) - num_tokens :]
        self.num_undone += num_tokens

    def _tail(self) -> list[int]:
        """Return the sampled tokens after the last injected token, at most as many as the search
        for stop strings needs."""
        assert self.text_ends is not None
        first = len(self.tokens)
        least = max(0, first - self.text_ends.num_tail)
        while first > least and self.sampled[first - 1]:
            first -= 1
        return self.tokens[first:]
