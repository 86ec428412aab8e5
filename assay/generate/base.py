"""What every generator is: problems in, groups of completions out, always under the newest
policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from assay.config import SamplingConfig
from assay.generate.race import Race
from assay.model.weights import Weights
from assay.types import Completion, Group, Problem, Prompt, Tokens


@dataclass(frozen=True, slots=True)
class SoFar:
    """A completion on its way.

    newest: its newest token; None before the first. ends: whether the completion would end here, by
    an end token or a stop string. read: returns all of its tokens, in a copy, while the guide is
    asked. given: whether the newest token was given, and not chosen by the policy.
    """

    num_tokens: int
    newest: int | None
    ends: bool
    read: Callable[[], Tokens]
    given: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class GivenTokens:
    """Tokens that a completion goes on with, which the policy does not choose.

    replaces: how many of its newest tokens are taken out before. begins_turn: whether they answer
    what the policy said, as a tool does, and so begin a turn of the conversation.
    """

    tokens: Sequence[int]
    replaces: int = 0
    begins_turn: bool = False


Promise: TypeAlias = Future[GivenTokens | None]
"""What a guide will answer: its completion waits, while others go on."""


class Guide(Protocol):
    """Watches one completion grow, and may give it tokens.

    It is asked before the first token, after each sampled one, and after the last one that it gave.
    What it answers may depend on the completion alone, so that a completion stays the same whatever
    is sampled beside it. A completion that is given tokens does not end where it would have.
    A guide that needs time, as for a tool, answers with a promise. Its completion waits, and
    nothing is sampled for it. How long it takes changes no token.
    """

    def __call__(self, so_far: SoFar) -> GivenTokens | Promise | None:
        """Return what the completion goes on with; None: with what the policy chooses."""
        ...


def first_of(*guides: Guide) -> Guide:
    """Return a guide that answers what the first of these has to say."""

    def ask(so_far: SoFar) -> GivenTokens | Promise | None:
        answers = (guide(so_far) for guide in guides)
        return next((answer for answer in answers if answer is not None), None)

    return ask


class CompletionLog(Protocol):
    """Holds completions of the step at hand that have ended, so that they are not sampled again."""

    def find(self, problem: Problem, completion_id: str) -> Completion | None:
        """Return a completion that has ended before; None where there is none."""
        ...

    def add(self, problem: Problem, prompt: Prompt, completion: Completion) -> None:
        """Keep a completion that has just ended."""
        ...


class Generator(Protocol):
    """Anything that samples completions: the built-in engine, a server, a script in a test."""

    @property
    def policy_version(self) -> int:
        """The version of the policy that is sampled from."""
        ...

    @property
    def gives_model_logprobs(self) -> bool:
        """Whether completions have the log-probabilities of the untempered model too."""
        ...

    @property
    def exact(self) -> bool:
        """Whether its log-probabilities are the learner's up to rounding; where not, tokens are
        weighed."""
        ...

    def generate(
        self,
        problems: Sequence[Problem],
        sampling: SamplingConfig,
        group_size: int,
        first_sibling: int = 0,
        on_group: Callable[[Group], None] | None = None,
        race: Race | None = None,
    ) -> list[Group]:
        """Sample and return one group of ``group_size`` completions a problem, in the problems'
        order.

        first_sibling: the number of the first completion of each, so that groups can be sampled on.
        on_group: is given each group as soon as it is finished, while others are still sampled.
        race: says which groups are wanted; one that cannot be among them may be given up, and is
        not returned then. It is given only where more problems are asked for than are wanted.
        """
        ...

    def sleep(self) -> None:
        """Give back the memory that only sampling needs, before an update; `generate` takes it
        again."""
        ...

    def load_policy(self, weights: Weights) -> None:
        """Sample from these weights from now on; completions carry their version.

        They are named tensors: a generator that shares the learner's memory has nothing to copy,
        any other copies them, and can hold its own against their fingerprint.
        """
        ...
