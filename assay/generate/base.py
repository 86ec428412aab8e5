"""Generator protocol: sample a group of completions per problem from the newest policy."""

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

    newest: the newest token; None before the first token. ends: whether the newest token is an end
    token or completes a stop string. read: function that returns a copy of the completion's tokens;
    valid only while the turn controller is called. injected: whether the newest token was injected,
    not sampled.
    """

    num_tokens: int
    newest: int | None
    ends: bool
    read: Callable[[], Tokens]
    injected: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class InjectedTokens:
    """Tokens that a turn controller injects into a completion, masked from the loss.

    replaces: number of the completion's newest tokens that are removed before the injection.
    begins_turn: whether the tokens are a reply to the policy, such as a tool's result, and start a
    new turn.
    """

    tokens: Sequence[int]
    replaces: int = 0
    begins_turn: bool = False


Promise: TypeAlias = Future[InjectedTokens | None]
"""A turn controller's pending result; its completion pauses while others continue."""


class TurnController(Protocol):
    """Observes one completion, and may inject tokens into the completion.

    The generator calls a turn controller before the first token, after each sampled token, and
    after the last injected token. The controller's result may depend only on this completion, not
    on other completions of the batch. In no case do injected tokens end a completion. A controller
    that needs time, such as for a tool, returns a future. The completion pauses until the
    controller's future has a result. Pausing does not change the completion's tokens.
    """

    def __call__(self, so_far: SoFar) -> InjectedTokens | Promise | None:
        """Return the tokens to inject, a future of these tokens, or None to continue sampling."""
        ...


def first_of(*controllers: TurnController) -> TurnController:
    """Combine several turn controllers into one, which returns the first controller's result that
    is not None."""

    def ask(so_far: SoFar) -> InjectedTokens | Promise | None:
        answers = (controller(so_far) for controller in controllers)
        return next((answer for answer in answers if answer is not None), None)

    return ask


class CompletionLog(Protocol):
    """A log of the current step's finished completions, which are not sampled again on resume."""

    def find(self, problem: Problem, completion_id: str) -> Completion | None:
        """Return the completion from the log, or None if the log lacks the completion."""
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
        """Whether completions include the model's log-probabilities, computed without temperature
        and truncation, beside the sampling log-probabilities."""
        ...

    @property
    def exact(self) -> bool:
        """Whether the generator's log-probabilities equal the learner's up to rounding.

        A learner applies importance weights to the tokens of an inexact generator.
        """
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

        first_sibling: index of each group's first completion; above 0 if an earlier call sampled
        the first siblings. on_group: called with each finished group, while other groups are still
        sampled. cutoff: oversampling cutoff, if more problems than needed are sampled; groups that
        the cutoff does not select may be canceled and are not returned.
        """
        ...

    def sleep(self) -> None:
        """Free the memory that is needed only for sampling.

        `generate` allocates the memory again.
        """
        ...

    def load_policy(self, weights: Weights) -> None:
        """Load weights for all further sampling. Completions record the weights' version.

        A generator that shares the learner's memory copies nothing. Any other generator copies the
        tensors and can check the copy against the fingerprint.
        """
        ...


class GeneratorWrapper:
    """A generator around another one. A subclass defines `generate`."""

    def __init__(self, generator: Generator) -> None:
        self.generator = generator

    @property
    def policy_version(self) -> int:
        """Version of the sampled policy."""
        return self.generator.policy_version

    @property
    def gives_model_logprobs(self) -> bool:
        """Whether the wrapped generator returns the model's log-probabilities."""
        return self.generator.gives_model_logprobs

    @property
    def exact(self) -> bool:
        """Whether the wrapped generator's log-probabilities equal the learner's."""
        return self.generator.exact

    def sleep(self) -> None:
        """Free the memory that is needed only for sampling."""
        self.generator.sleep()

    def load_policy(self, weights: Weights) -> None:
        """Load weights for all further sampling."""
        self.generator.load_policy(weights)
