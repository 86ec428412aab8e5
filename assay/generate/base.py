"""The generator protocol: problems in, groups of completions out, sampled from the newest
policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from assay.config import SamplingConfig
from assay.generate.oversampling import OversamplingCutoff
from assay.model.weights import Weights
from assay.types import Completion, Group, Problem, Prompt, Tokens


@dataclass(frozen=True, slots=True)
class SoFar:
    """An unfinished completion, as a turn controller sees it.

    newest: the newest token; None before the first. ends: whether the newest token is an end token
    or completes a stop string. read: returns a copy of all tokens; call it only inside the
    controller. injected: whether the newest token was injected, not sampled.
    """

    num_tokens: int
    newest: int | None
    ends: bool
    read: Callable[[], Tokens]
    injected: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class InjectedTokens:
    """Injected tokens that continue a completion; they are masked from the loss.

    replaces: number of newest tokens that are removed first. begins_turn: the tokens reply to the
    policy, as a tool's result does, and start a turn of the conversation.
    """

    tokens: Sequence[int]
    replaces: int = 0
    begins_turn: bool = False


Promise: TypeAlias = Future[InjectedTokens | None]
"""A turn controller's pending result; its completion pauses while others continue."""


class TurnController(Protocol):
    """A turn controller: observes one completion and may inject tokens into it.

    It is called before the first token, after each sampled token, and after the last injected
    token. Its result may depend only on the completion, so that a completion does not depend on its
    neighbors. Injected tokens keep a completion from ending. A controller that needs time, such as
    for a tool, returns a future. Until the result arrives, the completion pauses. The delay does
    not change its tokens.
    """

    def __call__(self, so_far: SoFar) -> InjectedTokens | Promise | None:
        """Return the tokens to inject, a future of them, or None to continue sampling."""
        ...


def first_of(*controllers: TurnController) -> TurnController:
    """Combine turn controllers: the first result that is not None is used."""

    def ask(so_far: SoFar) -> InjectedTokens | Promise | None:
        answers = (controller(so_far) for controller in controllers)
        return next((answer for answer in answers if answer is not None), None)

    return ask


class CompletionLog(Protocol):
    """A log of the current step's finished completions, which are not sampled again on resume."""

    def find(self, problem: Problem, completion_id: str) -> Completion | None:
        """Return a logged completion, or None."""
        ...

    def add(self, problem: Problem, prompt: Prompt, completion: Completion) -> None:
        """Log a completion that has just finished."""
        ...


class Generator(Protocol):
    """Samples completions: the built-in engine, vLLM, or a fake in a test."""

    @property
    def policy_version(self) -> int:
        """The version of the sampled policy."""
        ...

    @property
    def gives_model_logprobs(self) -> bool:
        """Whether completions include log-probabilities without temperature and truncation."""
        ...

    @property
    def exact(self) -> bool:
        """Whether the log-probabilities equal the learner's up to rounding; if not, the learner
        applies importance weights to tokens."""
        ...

    def generate(
        self,
        problems: Sequence[Problem],
        sampling: SamplingConfig,
        group_size: int,
        first_sibling: int = 0,
        on_group: Callable[[Group], None] | None = None,
        cutoff: OversamplingCutoff | None = None,
    ) -> list[Group]:
        """Sample one group of ``group_size`` completions per problem, in the order of the problems.

        first_sibling: index of each group's first completion; above 0 if an earlier call has
        sampled the siblings before it. on_group: called with each group when it is finished, while
        others are still sampled. cutoff: groups outside it may be canceled and are not returned. It
        is passed only if more problems than needed are sampled.
        """
        ...

    def sleep(self) -> None:
        """Free the memory that only sampling needs, before an update. `generate` allocates it
        again."""
        ...

    def load_policy(self, weights: Weights) -> None:
        """Load weights for all further sampling; completions record their version.

        A generator that shares the learner's memory copies nothing. Any other generator copies the
        tensors and can check the copy against the fingerprint.
        """
        ...
