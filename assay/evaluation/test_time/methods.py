"""Search methods. Each search method spends a budget of tokens on one problem.

A search method is a Python generator: it yields requests for children, and reads the sampled
children when it continues.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import exp, inf, sqrt

from assay.evaluation.test_time.drawing import Asking
from assay.evaluation.test_time.tree import Draw, Kind, Node

Found = Generator[Sequence[Draw], None, list[list[Node]]]


@dataclass(frozen=True)
class Shape:
    """Shape of a tree.

    expand: children per node. ahead: number of steps that are sampled greedily after a prefix
    before the prefix is scored. exploration: constant of PUCT.
    """

    expand: int = 4
    ahead: int = 1
    exploration: float = 1.0


@dataclass(eq=False)
class Search:
    """State of one search method on one problem with one budget.

    longest: maximum length of a completion in tokens, which is at most ``budget``. found: whole
    completions in the order in which they were sampled. spent: number of tokens that the policy
    sampled for this search; a prefix that several completions share counts once. visits, values:
    visit counts and summed scores of the nodes, for Monte-Carlo tree search.
    """

    root: Node
    budget: int
    longest: int
    shape: Shape
    found: list[Node] = field(default_factory=list[Node])
    spent: int = 0
    visits: Counter[Node] = field(default_factory=Counter[Node])
    values: dict[Node, float] = field(default_factory=lambda: defaultdict[Node, float](float))
    _taken: Counter[tuple[Node, Kind]] = field(default_factory=Counter[tuple[Node, Kind]])

    def affords(self, open_nodes: Iterable[Node], reserves: bool = False) -> int:
        """Return how many continuations of these nodes, of maximum length, the budget allows.

        reserves: whether to reserve the tokens of one whole completion until a whole completion is
        found.
        """
        # A continuation may reach the maximum length, so the budget must cover this length.
        room = self.longest - min(len(node.tokens) for node in open_nodes)
        kept = self.longest if reserves and not self.found else 0
        return max(0, (self.budget - self.spent - kept) // room)

    def draw(self, asked: Sequence[tuple[Node, int]], kind: Kind = "step") -> Found:
        """Sample new children of each node, and charge their tokens to the search; return one list
        per node."""
        draws: list[Draw] = []
        for node, count in asked:
            # Each search numbers the children of a node from 0, so all searches share the children.
            draws.append(Draw(node, kind, self._taken[node, kind], count))
            self._taken[node, kind] += count
        yield draws
        found = [one.children() for one in draws]
        for child in (each for children in found for each in children):
            self.spent += child.cost
            if child.finished:
                self.found.append(child)
        return found


def sampled(search: Search) -> Asking:
    """Sample whole completions until the budget of tokens is spent."""
    while count := search.affords([search.root]):
        yield from search.draw([(search.root, count)], "whole")


def beam(search: Search, apart: bool = False, ahead: bool = False) -> Asking:
    """Beam search: keep the best prefixes at each step, and start again while budget is left.

    If the budget allows ``paths`` whole completions, the search keeps ``paths / expand`` prefixes
    (Snell et al., 2024, arXiv:2408.03314, section 5.1). apart: whether each kept prefix grows its
    own tree, of which only the best prefix is kept (diverse verifier tree search, Beeching et al.,
    2024). ahead: number of further greedy steps after which a prefix is scored.
    """
    trees = [[search.root]]
    while paths := search.affords([search.root], ahead):
        expand = min(search.shape.expand, paths)
        width = paths // expand
        trees = [[search.root]] * width if apart else [[search.root]]
        count, kept = (expand, 1) if apart else (expand * width, width)
        while any(trees):
            nodes = [node for tree in trees for node in tree]
            room = search.affords(nodes, ahead)
            if not room:
                break
            # Near the end of the budget, nodes get fewer children, and the last nodes none.
            asked = [(node, min(count, max(1, room // len(nodes)))) for node in nodes[:room]]
            found = iter((yield from search.draw(asked)))
            children = [
                _distinct(child for _ in tree for child in next(found, [])) for tree in trees
            ]
            values: Mapping[Node, float | None] = {
                child: child.reward for each in children for child in each
            }
            if ahead:
                values = yield from _ahead(search, list(values))
            # sorted() is stable, so of two equally good prefixes the earlier prefix wins.
            ranked = [sorted(each, key=partial(_value, values), reverse=True) for each in children]
            trees = [[child for child in each[:kept] if not child.finished] for each in ranked]
            count = expand
    if not search.found:
        # Every search must give an answer, so the best unfinished prefix is completed.
        best_open = next((node for tree in trees for node in tree), search.root)
        yield from search.draw([(best_open, 1)], "whole")


def mcts(search: Search) -> Asking:
    """Monte-Carlo tree search with PUCT (Silver et al., 2017).

    In the tree search, the value of a node is the mean score of its descendants. The prior of a
    node is the probability of its step, relative to the other children of its parent. Expanding a
    leaf samples a few steps, whose scores are added to all nodes up to the root. The tree search
    does not visit nodes again that are whole completions. If no node can be expanded, the tree
    search samples more children of the root.
    """
    below: dict[Node, list[Node]] = {}
    closed: set[Node] = set()
    leaf = search.root
    while room := search.affords([leaf], reserves=True):
        ((*drawn,),) = yield from search.draw([(leaf, min(search.shape.expand, room))])
        known = below.setdefault(leaf, [])
        # Children with equal steps are merged: two nodes would divide the prior of the step.
        new = _distinct([*known, *drawn])[len(known) :]
        known += new
        for child in new:
            for node in (*child.lineage(), search.root):
                search.visits[node] += 1
                search.values[node] += child.score or 0.0
        # Visits of a finished completion cost no tokens, so they could loop forever.
        closed.update(child for child in new if child.finished)
        for node in leaf.lineage():
            if all(child in closed for child in below[node]):
                closed.add(node)
        leaf = _leaf(search, below, closed)
    if not search.found:
        best = max(search.visits, key=lambda node: node.score or 0.0, default=search.root)
        yield from search.draw([(best, 1)], "whole")


def _leaf(search: Search, below: Mapping[Node, list[Node]], closed: set[Node]) -> Node:
    """Return the node to expand, following the largest upper bound from the root on."""
    node = search.root
    while node in below:
        # The maximum is subtracted before exp(), because exp() underflows to 0 for a long step.
        best = max(child.logprob for child in below[node])
        total = sum(exp(child.logprob - best) for child in below[node])
        spread = search.shape.exploration * sqrt(search.visits[node])

        # Parameter defaults store the loop variables, whose later values a closure would read.
        def bound(
            child: Node, total: float = total, spread: float = spread, top: float = best
        ) -> float:
            prior, visits = exp(child.logprob - top) / total, search.visits[child]
            return search.values[child] / visits + spread * prior / (1 + visits)

        options = [child for child in below[node] if child not in closed]
        if not options:
            return search.root
        node = max(options, key=bound)
    return node


def _ahead(
    search: Search, nodes: Sequence[Node]
) -> Generator[Sequence[Draw], None, dict[Node, float | None]]:
    """Return the score that each node has after further greedy steps."""
    tips = {node: node for node in nodes}
    for _ in range(search.shape.ahead):
        going = [node for node in nodes if not tips[node].finished]
        found = yield from search.draw([(tips[node], 1) for node in going], "greedy_step")
        tips.update((node, child) for node, (child,) in zip(going, found, strict=True))
    return {node: tip.reward for node, tip in tips.items()}


def _distinct(nodes: Iterable[Node]) -> list[Node]:
    """Return the nodes in order; of several nodes with equal tokens, only the first is returned."""
    found: dict[bytes, Node] = {}
    for node in nodes:
        found.setdefault(node.tokens.tobytes(), node)
    return list(found.values())


def _value(values: Mapping[Node, float | None], node: Node) -> float:
    value = values[node]
    return -inf if value is None else value


METHODS: Mapping[str, Callable[[Search], Asking]] = {
    "best_of_n": sampled,
    "self_consistency": sampled,
    "weighted_vote": sampled,
    "beam": beam,
    "dvts": partial(beam, apart=True),
    "lookahead": partial(beam, ahead=True),
    "mcts": mcts,
}
"""Sampling of each method. `assay.evaluation.test_time.choice` holds the choice of an answer."""
SAMPLED = tuple(name for name, draws in METHODS.items() if draws is sampled)
"""Methods that draw only whole completions."""
