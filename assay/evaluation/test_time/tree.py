"""The tree of a problem: prefixes of completions, and their drawn continuations.

All methods and budgets share the tree of a problem. A child depends only on its parent and on the
index of the draw, so two searches that reach the same node see the same children.
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
    """Limits of completions: maximum tokens and stop strings. ``decode`` turns tokens to text."""

    longest: int
    stop: tuple[str, ...]
    decode: Callable[[Tokens], str]

    def goes_on(self, kind: Kind, text: str) -> bool:
        """Whether a text that ended at a stop string is a reasoning step, after which sampling
        continues."""
        # A stop string may begin in one step and end in the next, so the whole text is searched.
        return kind in STEPS and not any(stop in text for stop in self.stop)


# Nodes are compared by identity (eq=False), because nodes are keys of dictionaries.
@dataclass(eq=False)
class Node:
    """A prefix of a completion: the parent's tokens and the tokens drawn after them.

    path: indices of the draws on the way from the root. Random numbers are keyed by the problem and
    the path. own: tokens of this node, which follow the tokens of the parent. cost: number of own
    tokens that the policy sampled, without injected tokens. logprob: log-probability of the node's
    own tokens under the sampling distribution. finish_reason: reason why the completion ended; None
    if the completion can continue. score, reward: results of the scorer; None without a scorer, or
    if the scorer did not judge the node. verdict: the verifier's verdict, only for a whole
    completion.
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
        """A problem whose completions continue from this node; its id includes the node's path."""
        if not self.path:
            return replace(self.problem, draw=0)
        # The problem's id seeds the sampling, so every node has its own random numbers.
        spec = {**self.problem.spec, PREFIX: self.tokens}
        return replace(self.problem, id=f"{self.problem.id}|{self.path}", spec=spec, draw=0)

    def lineage(self) -> Iterator[Node]:
        """Yield the node and all its ancestors, nearest first, without the root."""
        node: Node | None = self
        while node is not None and node.parent is not None:
            yield node
            node = node.parent

    def add(self, kind: Kind, completion: Completion, limits: StepLimits) -> Node:
        """Add a drawn continuation as the next child of a kind, cut to the longest completion."""
        room = limits.longest - len(self.tokens)
        # One generator call draws children of short and long nodes, so a child may exceed the
        # maximum length.
        own = completion.tokens[:room]
        tokens = np.concatenate([self.tokens, own]).astype(np.int32)
        reason: FinishReason | None = completion.finish_reason
        if len(own) < len(completion.tokens):
            reason = "length"
        # All tokens are decoded together, because the bytes of one character may span two draws.
        text = limits.decode(tokens[: len(tokens) - (reason == "eos")])
        if reason == "stop_string" and limits.goes_on(kind, text):
            reason = None if len(tokens) < limits.longest else "length"
        siblings = self.drawn.setdefault(kind, [])
        # A greedy child and a sampled child may have the same index, so their names differ.
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
    """Return nodes of one problem as a group to judge.

    by_row: whether to judge with the verifier that the row names.
    """
    problem, prompt = nodes[0].problem, nodes[0].prompt
    problem = problem if by_row else replace(problem, verifier=None)
    return Group(problem, prompt, tuple(node.completion() for node in nodes))


@dataclass(frozen=True)
class Draw:
    """A request for the children of a node with the indices first to first + count - 1."""

    node: Node
    kind: Kind
    first: int
    count: int

    def children(self) -> list[Node]:
        """Return the requested children of a node; the children must have been drawn before."""
        return self.node.drawn[self.kind][self.first : self.first + self.count]
