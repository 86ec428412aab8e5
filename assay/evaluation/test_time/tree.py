"""The search tree of a problem: nodes are prefixes of completions, and children their
continuations.

All search methods and budgets share the tree of a problem. A child depends only on its parent and
on its index, so two searches that reach a node see the same children.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from assay.session.prefixes import PREFIX
from assay.types import Completion, FinishReason, Group, Problem, Prompt, Tokens, Verdict

Kind = Literal["step", "whole", "greedy_step", "greedy"]
"""Kind of a draw: one step or the rest of the completion, sampled or greedy."""
STEPS: tuple[Kind, ...] = ("step", "greedy_step")


@dataclass(frozen=True)
class StepLimits:
    """Limits of completions in a search: maximum number of tokens, and stop strings. ``decode``
    turns tokens to text.
    """

    longest: int
    stop: tuple[str, ...]
    decode: Callable[[Tokens], str]

    def goes_on(self, kind: Kind, text: str) -> bool:
        """Whether a text that ended at a stop string is a reasoning step, so that sampling
        continues."""
        # A stop string may begin in one step and end in the next, so the whole text is searched.
        return kind in STEPS and not any(stop in text for stop in self.stop)


# Nodes are compared by identity (eq=False), because nodes are keys of dictionaries.
@dataclass(eq=False)
class Node:
    """A prefix of a completion: the parent's tokens and the tokens drawn after them.

    path: indices of the children on the way from the root to this node. The random numbers of a
    node are keyed by the problem and the path. own: tokens of this node alone, which follow the
    tokens of its parent. cost: number of this node's own tokens that the policy sampled, without
    injected tokens. logprob: log-probability of the node's own tokens under the sampling
    distribution. finish_reason: reason why the completion ended; None if sampling can continue.
    score, reward: results of the scorer for this node; None without a scorer, or if the scorer did
    not judge it. verdict: verdict of the verifier, if the node is a whole completion.
    """

    problem: Problem
    prompt: Prompt
    path: str = ""
    parent: Node | None = None
    own: Tokens = field(default_factory=lambda: np.zeros(0, np.int32))
    tokens: Tokens = field(default_factory=lambda: np.zeros(0, np.int32))
    text: str = ""
    cost: int = 0
    logprob: float = 0.0
    finish_reason: FinishReason | None = None
    score: float | None = None
    reward: float | None = None
    verdict: Verdict | None = None
    drawn: dict[Kind, list[Node]] = field(default_factory=dict[Kind, "list[Node]"])

    @property
    def finished(self) -> bool:
        """Whether the node is a whole completion."""
        return self.finish_reason is not None

    @property
    def problem_to_draw(self) -> Problem:
        """The problem whose completions continue from this node; its id includes the node's
        path."""
        if not self.path:
            return replace(self.problem, draw=0)
        # The problem's id seeds the sampling, so the id gives every node its own random numbers.
        spec = {**self.problem.spec, PREFIX: self.tokens}
        return replace(self.problem, id=f"{self.problem.id}|{self.path}", spec=spec, draw=0)

    def lineage(self) -> Iterator[Node]:
        """Yield this node and all its ancestors, nearest first, without the root."""
        node: Node | None = self
        while node is not None and node.parent is not None:
            yield node
            node = node.parent

    def add(self, kind: Kind, completion: Completion, limits: StepLimits) -> Node:
        """Add a sampled continuation as the next child, and cut it at the maximum completion
        length.
        """
        room = limits.longest - len(self.tokens)
        # One generator call samples for short and long nodes: a child may exceed the maximum.
        own = completion.tokens[:room]
        tokens = np.concatenate([self.tokens, own]).astype(np.int32)
        reason: FinishReason | None = completion.finish_reason
        if len(own) < len(completion.tokens):
            reason = "length"
        # All tokens are decoded together, because the bytes of a character may span two nodes.
        text = limits.decode(tokens[: len(tokens) - (reason == "eos")])
        if reason == "stop_string" and limits.goes_on(kind, text):
            reason = None if len(tokens) < limits.longest else "length"
        siblings = self.drawn.setdefault(kind, [])
        # A greedy and a sampled child may have the same index, so their names must differ.
        number = f"{'g' * kind.startswith('greedy')}{len(siblings)}"
        child = Node(
            problem=self.problem,
            prompt=self.prompt,
            path=f"{self.path}.{number}" if self.path else number,
            parent=self,
            own=own,
            tokens=tokens,
            text=text,
            cost=int(completion.sampled[:room].sum()),
            logprob=float(completion.behavior_logprobs[:room].sum()),
            finish_reason=reason,
        )
        siblings.append(child)
        return child

    def completion(self) -> Completion:
        """Convert the tree node to a completion that a verifier can judge."""
        return Completion(
            id=f"{self.problem.group_id}/{self.path or 'root'}",
            text=self.text,
            tokens=self.tokens,
            behavior_logprobs=np.zeros(len(self.tokens), np.float32),
            sampled=np.ones(len(self.tokens), np.bool_),
            finish_reason=self.finish_reason or "stop_string",
            think=self.prompt.think,
        )


def group_of(nodes: Sequence[Node], by_row: bool = True) -> Group:
    """Return nodes of one problem as a group, which a verifier can judge.

    by_row: whether to judge with the verifier that the row names.
    """
    problem, prompt = nodes[0].problem, nodes[0].prompt
    problem = problem if by_row else replace(problem, verifier=None)
    return Group(problem, prompt, tuple(node.completion() for node in nodes))


@dataclass(frozen=True)
class Draw:
    """Request for the children of a node with the indices ``first`` to ``first + count - 1``."""

    node: Node
    kind: Kind
    first: int
    count: int

    def children(self) -> list[Node]:
        """Return the requested children of a node; they must have been sampled before."""
        return self.node.drawn[self.kind][self.first : self.first + self.count]
