"""The interfaces of tools, and of the environment that replies to the policy in a completion."""

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
    """A failed call; its message is shown to the policy."""


@dataclass(frozen=True)
class Tool:
    """A tool that the policy can call.

    parameters: JSON schema of the arguments, as in chat templates. open: called once per completion
    that uses the tool; returns the function that runs the completion's calls and may keep state.
    Calls of one completion run in order, in one thread. stateless: whether the calls of one turn
    run concurrently, in any threads. A tool must limit its own run time. Exceptions are shown to
    the policy: the message of a `ToolError`, the type and message of any other exception.
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

    A completion is a chain of turns. A reply follows each assistant turn except the last. The reply
    may depend only on the problem and the assistant turns, not on time or other completions.
    Completions are therefore reproducible to the bit, and a resumed run continues with the same
    tokens.
    """

    def is_addressed(self, said: str, ended: bool) -> bool:
        """Return whether a turn ends here, so that `respond` must be called. Must return fast.

        said: the text of this assistant turn, without its end token. ended: the policy ended the
        turn here, by an end token or a stop string.
        """
        ...

    def respond(self, said: str) -> Sequence[Message] | None:
        """Return the reply as messages; None ends the completion.

        This method may be slow, because it runs in another thread. It must not raise exceptions.
        """
        ...
