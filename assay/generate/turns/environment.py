"""Environments: what speaks with the policy over several turns, and says what that was worth.

An environment is a class. One object of it lives for one completion:

    @Environment
    class GuessingGame:
        def start(self, problem): ...     # the messages that the policy sees first
        def respond(self, messages): ...  # more messages, and what the turn earned; at the end,
                                          # what a reward function returns

Its name stands in ``tools.environment`` and in ``data.verifier``. The verdict of a completion is
found by playing it again with what the policy said, so it needs nothing but the completion.
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
"""Messages; a text is one of the user."""
MESSAGES = 'messages: a text, or a list of {"role", "content"}'


class Play(Protocol):
    """One completion's side of an environment.

    What it says may depend on the problem and on what the policy said, and on nothing else.
    """

    def start(self, problem: Problem) -> Messages:
        """Return what the policy sees first."""
        ...

    def respond(self, messages: Sequence[Message]) -> Any:
        """Return what the policy is told next; or, to end, what a reward function returns.

        ``{"messages": ..., "reward": 0.5}`` tells it, too, and says what its turn has earned.
        messages: the conversation so far; the last one is the policy's, without its reasoning.
        """
        ...


class Environment:
    """A class of plays, as ``tools.environment`` names it. Called as a verifier, it judges."""

    def __init__(self, play: Callable[[], Play]) -> None:
        self.play = play
        self.__doc__ = play.__doc__

    def begun(self, problem: Problem) -> Problem:
        """Return the problem as the policy sees it first."""
        return replace(problem, prompt=tuple(_started(self.play(), problem)))

    def respondent(self, problem: Problem, think: ThinkFormat) -> Conversation:
        """Return what answers the policy in one completion."""
        return Conversation(self.play(), problem, think)

    def __call__(self, problem: Problem, completion: Completion) -> Any:
        """Return what the environment said at the end; 0 where it was cut off before.

        What turns have earned is added, and stands in the step scores, where the turns end.
        """
        conversation = self.respondent(problem, completion.think)
        turns = completion.turn_texts
        for said in turns[:-1] if completion.truncated else turns:
            conversation.hear(said)
        if conversation.is_over:
            return conversation.total(completion.turn_ends)
        if completion.truncated:
            conversation.reward = {"score": 0.0}
            return conversation.total(completion.turn_ends)
        if not completion.said and not len(
            completion.tokens
        ):  # as a row's answer, tried before a run
            return Part.not_judged("unavailable", "the environment goes on behind this one text")
        raise VerifierError("the environment ends elsewhere than it did: it is not deterministic")


class Conversation:
    """One completion with its environment."""

    def __init__(self, play: Play, problem: Problem, think: ThinkFormat) -> None:
        self.play, self.think = play, think
        self.messages = _started(play, problem)
        self.is_over = False
        self.reward: Any = None
        self.earned: list[float] = []  # in each turn that was answered

    def hears(self, said: str, ended: bool) -> bool:
        """Return whether the policy has ended its turn."""
        return ended

    def respond(self, said: str) -> Sequence[Message] | None:
        """Return what the policy is told next; None at the end, and where the environment fails.

        What it raises is raised again when the completion is judged: it is not judged then.
        """
        try:
            return self.hear(said)
        except FAILURES:  # of a user's class
            return None

    def hear(self, said: str) -> Sequence[Message] | None:
        """Return what the policy is told next, and keep the reward at the end."""
        if self.is_over:
            raise VerifierError("the policy went on behind the end of the environment")
        content = self.think.split(said)[1]
        self.think = replace(self.think, mode="free")  # what opens a block opened it once
        self.messages.append({"role": "assistant", "content": content})
        answer = self.play.respond([*self.messages])
        reward = 0.0
        if isinstance(answer, Mapping) and "messages" in answer:
            answer, reward = _with_reward(answer)
        if isinstance(answer, str | list | tuple) or is_message(answer):
            told = _messages(answer, "respond")
            self.messages += told
            self.earned.append(reward)
            return told
        self.is_over, self.reward = True, answer
        return None

    def total(self, turn_ends: Sequence[int]) -> Any:
        """Return the reward, with what turns have earned; turn_ends: as in `Completion`."""
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
    """Return an environment's first messages; raises DataError where it cannot start."""
    try:
        return _messages(play.start(problem), "start")
    except AssayError:
        raise
    except FAILURES as error:
        found = f"a row with which it cannot start ({cause(error)})"
        remedy = "mend the row or its start"
        raise DataError(message(f"{problem.place} environment", found, MESSAGES, remedy)) from error


def _with_reward(answer: Mapping[str, Any]) -> tuple[Any, float]:
    """Return messages and the reward beside them; raises VerifierError for anything else."""
    reward = answer.get("reward", 0.0)
    is_number = isinstance(reward, int | float) and math.isfinite(reward)
    if {*answer} - {"messages", "reward"} or not is_number:
        accepted = '{"messages": ..., "reward": a number}, or the end: a dict with "score"'
        raise VerifierError(message("environment respond", f"{dict(answer)!r:.80}", accepted))
    return answer["messages"], float(reward)


def is_message(value: Any) -> bool:
    """Whether a value is one message."""
    return isinstance(value, Mapping) and "role" in value


def _messages(value: Any, where: str) -> list[Message]:
    """Return messages; raises VerifierError where a value is none."""
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    found: list[Any] = [value] if is_message(value) else value
    if not isinstance(found, list | tuple) or not found:
        raise VerifierError(message(f"environment {where}", f"{value!r:.80}", MESSAGES))
    for one in found:
        if not is_message(one) or not isinstance(one.get("content"), str):
            raise VerifierError(message(f"environment {where}", f"{one!r:.80}", MESSAGES))
    return [*found]
