"""Environments, which reply to the policy over several turns and return the reward.

An environment is a class. One instance serves one completion:

    @Environment
    class GuessingGame:
        def start(self, problem): ...     # returns the first messages for the policy
        def respond(self, messages): ...  # returns more messages, optionally with the turn's
                                          # reward; at the end, the result of a reward function

The settings ``tools.environment`` and ``data.verifier`` name the environment. To judge a
completion, the environment is replayed with the assistant turns, so the completion is the only
input.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeAlias

from assay.errors import FAILURES, AssayError, DataError, VerifierError, cause, message
from assay.types import Completion, Message, Problem, StepScore, ThinkFormat
from assay.verify.base import Part, as_part

Messages: TypeAlias = "str | Message | Sequence[Message]"
"""Messages; a string is one user message."""
MESSAGES = 'messages: a text, or a list of {"role", "content"}'


class Play(Protocol):
    """The environment's state for one completion.

    An environment's messages may depend only on the problem and the assistant turns.
    """

    def start(self, problem: Problem) -> Messages:
        """Return the environment's first messages to the policy."""
        ...

    def respond(self, messages: Sequence[Message]) -> Any:
        """Return the next messages for the policy, or at the end the result of a reward function.

        ``{"messages": ..., "reward": 0.5}`` returns messages and the reward of the last turn.
        messages: the conversation so far. The last of ``messages`` is the policy's reply, without
        its reasoning.
        """
        ...


class Environment:
    """Wrapper of an environment class, for ``tools.environment``. Callable as a verifier."""

    def __init__(self, play: Callable[[], Play]) -> None:
        self.play = play
        self.__doc__ = play.__doc__

    def begun(self, problem: Problem) -> Problem:
        """Return the problem with the environment's first messages as its prompt."""
        return replace(problem, prompt=tuple(_started(self.play(), problem)))

    def open_conversation(self, problem: Problem, think: ThinkFormat) -> Conversation:
        """Create the conversation of one completion."""
        return Conversation(self.play(), problem, think)

    def __call__(self, problem: Problem, completion: Completion) -> Any:
        """Return the environment's final result, with the rewards of turns added.

        The score is 0 if the completion was truncated before the environment's end. Rewards of
        turns are recorded as step scores at the ends of the turns.
        """
        conversation = self.open_conversation(problem, completion.think)
        turns = completion.turn_texts
        for said in turns[:-1] if completion.truncated else turns:
            conversation.step(said)
        if conversation.is_over:
            return conversation.total(completion.turn_ends)
        if completion.truncated:
            conversation.reward = {"score": 0.0}
            return conversation.total(completion.turn_ends)
        # A row's reference answer, judged before the run, has text but neither turns nor tokens.
        if not completion.said and not len(completion.tokens):
            return Part.not_judged(
                "unavailable", "the environment continues after this single text"
            )
        raise VerifierError(
            "the environment ended at another turn than before: it is not deterministic"
        )


class Conversation:
    """One completion's conversation with its environment."""

    def __init__(self, play: Play, problem: Problem, think: ThinkFormat) -> None:
        self.play, self.think = play, think
        self.messages = _started(play, problem)
        self.is_over = False
        self.reward: Any = None
        # Reward of each answered turn.
        self.earned: list[float] = []

    def is_addressed(self, said: str, ended: bool) -> bool:
        """Return whether the policy has ended its turn."""
        return ended

    def respond(self, said: str) -> Sequence[Message] | None:
        """Return the environment's next messages; None at the end or if the environment raises an
        exception.

        After an exception of the environment the completion is not judged, because the replay
        raises the same exception again.
        """
        try:
            return self.step(said)
        except FAILURES:
            # A user's environment may raise any exception.
            return None

    def step(self, said: str) -> Sequence[Message] | None:
        """Return the environment's next messages; at the end, record the environment's reward."""
        if self.is_over:
            raise VerifierError("the policy continued after the environment ended")
        content = self.think.split(said)[1]
        # Only the first turn starts in a think block that the prompt opened.
        self.think = replace(self.think, mode="free")
        self.messages.append({"role": "assistant", "content": content})
        answer = self.play.respond([*self.messages])
        reward = 0.0
        if isinstance(answer, Mapping) and "messages" in answer:
            answer, reward = _with_reward(answer)
        if isinstance(answer, str | list | tuple) or is_message(answer):
            replies = _messages(answer, "respond")
            self.messages += replies
            self.earned.append(reward)
            return replies
        self.is_over, self.reward = True, answer
        return None

    def total(self, turn_ends: Sequence[int]) -> Any:
        """Return the environment's final reward plus the rewards of the turns. turn_ends: see
        `Completion`."""
        if not any(self.earned):
            return self.reward
        part = as_part(self.reward)
        if part.value is None:
            return part
        earned = math.fsum(self.earned)
        ends = [end - 1 for end in turn_ends]
        return replace(
            part,
            value=part.value + earned,
            score=part.correctness,
            components={**part.components, "turns": earned},
            step_scores=tuple(map(StepScore, self.earned, ends)),
        )


def _started(play: Play, problem: Problem) -> list[Message]:
    """Return an environment's first messages. Raises DataError if the environment fails."""
    try:
        return _messages(play.start(problem), "start")
    except AssayError:
        raise
    except FAILURES as error:
        found = f"a row with which it cannot start ({cause(error)})"
        remedy = "fix the row or the environment's start"
        raise DataError(message(f"{problem.place} environment", found, MESSAGES, remedy)) from error


def _with_reward(answer: Mapping[str, Any]) -> tuple[Any, float]:
    """Return messages and their reward. Raises VerifierError if the environment's answer has other
    keys, or a reward that is not a finite number."""
    reward = answer.get("reward", 0.0)
    is_number = isinstance(reward, int | float) and math.isfinite(reward)
    if {*answer} - {"messages", "reward"} or not is_number:
        accepted = '{"messages": ..., "reward": a number}, or the end: a dict with "score"'
        raise VerifierError(message("environment respond", f"{dict(answer)!r:.80}", accepted))
    return answer["messages"], float(reward)


def is_message(value: Any) -> bool:
    """Return whether a value is a chat message: a mapping with a role."""
    return isinstance(value, Mapping) and "role" in value


def _messages(value: Any, where: str) -> list[Message]:
    """Validate and return messages. Raises VerifierError."""
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    found: list[Any] = [value] if is_message(value) else value
    if not isinstance(found, list | tuple) or not found:
        raise VerifierError(message(f"environment {where}", f"{value!r:.80}", MESSAGES))
    for one in found:
        if not is_message(one) or not isinstance(one.get("content"), str):
            raise VerifierError(message(f"environment {where}", f"{one!r:.80}", MESSAGES))
    return [*found]
