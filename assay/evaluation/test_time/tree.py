"""A problem's tree: beginnings of completions, and what was drawn behind each.

One tree serves all methods and budgets. What is drawn behind a node depends on the node and on the
number of the draw alone, so that two searches that come to the same place see the same steps there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from assay.evaluation.step_labels import PREFIX
from assay.types import Completion, FinishReason, Group, Problem, Prompt, Tokens, Verdict

Kind = Literal["step", "whole", "greedy_step", "greedy"]
"""What is drawn: up to the end of a step or of the completion; by chance, or greedily."""
STEPS: tuple[Kind, ...] = ("step", "greedy_step")


@dataclass(frozen=True)
class StepLimits:
    """Where completions end. longest: tokens. stop: strings that end them. decode: to text."""

    longest: int
    stop: tuple[str, ...]
    decode: Callable[[Tokens], str]

    def goes_on(self, kind: Kind, text: str) -> bool:
        """Whether what a stop string ended is a step, and its completion may go on."""
        return kind in STEPS and not any(stop in text for stop in self.stop)


@dataclass(eq=False)
class Node:
    """The beginning of a completion: its parent's, and the tokens that were drawn behind it.

    path: the number of each draw from the root on; with the problem it is the key of what is drawn
    here. own: its tokens behind its parent's; cost: how many of them the policy chose; logprob:
    theirs, as they were sampled. finish_reason: None where it can go on.
    score, reward: the scorer's; None where there is none, or it did not judge. verdict: the
    verifier's, of a finished completion that a search chose among.
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
        """Whether it is a whole completion."""
        return self.finish_reason is not None

    @property
    def problem_to_draw(self) -> Problem:
        """The problem whose completions go on from here, under an id of its own."""
        if not self.path:
            return replace(self.problem, draw=0)
        spec = {**self.problem.spec, PREFIX: self.tokens}
        return replace(self.problem, id=f"{self.problem.id}|{self.path}", spec=spec, draw=0)

    def lineage(self) -> Iterator[Node]:
        """Yield the node, its parent and so on, without the root."""
        node: Node | None = self
        while node is not None and node.parent is not None:
            yield node
            node = node.parent

    def add(self, kind: Kind, completion: Completion, limits: StepLimits) -> Node:
        """Add what was drawn, cut to the longest completion, as the next child of a kind."""
        room = limits.longest - len(self.tokens)
        own = completion.tokens[:room]
        tokens = np.concatenate([self.tokens, own]).astype(np.int32)
        reason: FinishReason | None = completion.finish_reason
        if len(own) < len(completion.tokens):
            reason = "length"
        text = limits.decode(tokens[: len(tokens) - (reason == "eos")])
        if reason == "stop_string" and limits.goes_on(kind, text):
            reason = None if len(tokens) < limits.longest else "length"
        siblings = self.drawn.setdefault(kind, [])
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
        """Return it as a completion, to be judged."""
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
    """Return nodes of one problem as a group, to be judged; by_row: by the row's own verifier."""
    problem, prompt = nodes[0].problem, nodes[0].prompt
    problem = problem if by_row else replace(problem, verifier=None)
    return Group(problem, prompt, tuple(node.completion() for node in nodes))


@dataclass(frozen=True)
class Draw:
    """Children that a search asks for: those of a kind with the numbers first to first + count."""

    node: Node
    kind: Kind
    first: int
    count: int

    def children(self) -> list[Node]:
        """Return them, once they were drawn."""
        return self.node.drawn[self.kind][self.first : self.first + self.count]
