"""What a tool is, and what answers a policy inside its completion."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from assay.types import Message, ThinkFormat

RunCall: TypeAlias = Callable[[Mapping[str, Any]], str]
"""Runs one call with arguments that fit the tool's parameters, and returns its result as text."""


FREE = ThinkFormat()
"""How a turn thinks where nothing is asked of it: as it likes."""


class ToolError(Exception):
    """What went wrong in a call, in words for the policy."""


@dataclass(frozen=True)
class Tool:
    """Something that the policy can call.

    parameters: a JSON schema of the arguments, as chat templates show it. open: is called once for
    each completion that calls the tool, and returns what runs its calls; so a tool can keep a state
    for one completion. Calls of one completion run one after another, in one thread. stateless:
    those of one turn run at once, each in any thread. They bound their own time. What they raise is
    told to the policy: a `ToolError` as it stands, any other error with its type.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    open: Callable[[], RunCall]
    stateless: bool = False

    @property
    def schema(self) -> dict[str, Any]:
        """The tool as chat templates want it."""
        names = {"name": self.name, "description": self.description}
        return {"type": "function", "function": {**names, "parameters": dict(self.parameters)}}


class Respondent(Protocol):
    """Answers the policy in one completion: its tools do, or an environment. One is made for each.

    A completion is a chain of turns. In each the policy says something, and is told something
    behind it; in the last it is told nothing. What the respondent says may depend on the problem
    and on what the policy said, and on nothing else: neither time nor other completions. Then a
    completion can be repeated to the bit, and a run that was killed goes on with the same tokens.
    """

    def hears(self, said: str, ended: bool) -> bool:
        """Return whether a turn ends here, and `respond` is to be asked. It has to be quick.

        said: what the policy has said in this turn, without its end token. ended: whether it ended
        its turn here, by an end token or a stop string.
        """
        ...

    def respond(self, said: str) -> Sequence[Message] | None:
        """Return what the policy is told next, as messages; None: nothing, the completion ends.

        It may take its time, and runs in another thread. It must not raise.
        """
        ...
