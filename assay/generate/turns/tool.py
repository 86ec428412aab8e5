"""The interface of tools, and the interface of environments, which reply to the policy within a
completion."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from assay.types import Message, ThinkFormat

RunCall: TypeAlias = Callable[[Mapping[str, Any]], str]
"""Runs one call with arguments that match the tool's parameters, and returns the result as text."""


FREE = ThinkFormat()
"""Think format of a turn in which the model may think or not."""


class ToolError(Exception):
    """Raised by a tool for a failed call; the policy sees the error's message."""


@dataclass(frozen=True)
class Tool:
    """A tool that the policy can call.

    parameters: JSON schema of the arguments, as in chat templates. open: called once per completion
    that uses the tool; returns the function that runs the completion's calls and may keep state.
    The calls of one completion run in order, in one thread. stateless: whether the calls of one
    turn may run concurrently, in any threads. Each tool must limit its own run time. Exceptions are
    shown to the policy: the message of a `ToolError`, the type and message of any other exception.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    open: Callable[[], RunCall]
    stateless: bool = False

    @property
    def schema(self) -> dict[str, Any]:
        """The tool's schema for chat templates."""
        names = {"name": self.name, "description": self.description}
        return {"type": "function", "function": {**names, "parameters": dict(self.parameters)}}


class TurnEnvironment(Protocol):
    """Environment of one completion: replies to the policy's turns, by tools or a user's class.

    A completion is a chain of turns. A reply of the environment follows each assistant turn except
    the last. The reply may depend only on the problem and the assistant turns, not on time or other
    completions. Completions with tools are therefore reproducible to the bit, and a resumed run
    samples the same tokens.
    """

    def is_addressed(self, said: str, ended: bool) -> bool:
        """Return whether an assistant turn ends here, so that `respond` must be called.

        Must return fast.

        said: the text of this assistant turn, without its end token. ended: whether the policy
        ended the turn here, by an end token or a stop string.
        """
        ...

    def respond(self, said: str) -> Sequence[Message] | None:
        """Return the reply to the policy as messages; None ends the completion.

        The method `respond` runs in a thread of its own, so a slow tool does not stop other
        completions. It must not raise exceptions.
        """
        ...
