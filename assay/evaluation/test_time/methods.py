"""The methods of search, each of which spends a budget of tokens on one problem.

A method is a generator: it yields what it wants drawn, and reads the children when it goes on.
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
    """How a tree grows. expand: children of a node. ahead: steps that lookahead goes on greedily.
    exploration: the constant of PUCT."""

    expand: int = 4
    ahead: int = 1
    exploration: float = 1.0


@dataclass(eq=False)
class Search:
    """One method on one problem with one budget: what is spent, and what was found.

    longest: tokens of the longest completion; the budget holds one at least. found: whole
    completions, in the order of their drawing. spent: each token that the policy chose for it,
    counted once: a prefix that is gone on from was paid for when it was drawn. visits, values: of
    the nodes of a tree search that has them.
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
        """Return how many draws the budget holds behind these nodes, were each the longest.

        reserves: as long as no completion is there, the tokens of one are kept back.
        """
        room = self.longest - min(len(node.tokens) for node in open_nodes)
        kept = self.longest if reserves and not self.found else 0
        return max(0, (self.budget - self.spent - kept) // room)

    def draw(self, asked: Sequence[tuple[Node, int]], kind: Kind = "step") -> Found:
        """Ask for so many new children of each node, pay for them, and return those of each."""
        draws: list[Draw] = []
        for node, count in asked:
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
    """Sample whole completions while the budget holds another one."""
    while count := search.affords([search.root]):
        yield from search.draw([(search.root, count)], "whole")


def beam(search: Search, apart: bool = False, ahead: bool = False) -> Asking:
    """Keep the best beginnings at each step, and go on from them; begin again while budget is left.

    With so many paths as whole completions fit, ``paths / expand`` beginnings are kept (Snell et
    al. 2024, arXiv:2408.03314, section 5.1). apart: in trees of their own, the best of each
    (diverse verifier tree search, Beeching et al. 2024). ahead: by what some greedy steps lead to.
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
            ranked = [sorted(each, key=partial(_value, values), reverse=True) for each in children]
            trees = [[child for child in each[:kept] if not child.finished] for each in ranked]
            count = expand
    if not search.found:
        best_open = next((node for tree in trees for node in tree), search.root)
        yield from search.draw([(best_open, 1)], "whole")


def mcts(search: Search) -> Asking:
    """Grow one tree where prior and value promise most (PUCT, Silver et al. 2017).

    A node's value is the mean score of the nodes below it, its prior the chance of its step among
    its siblings. A leaf is expanded by some steps, and the score of each is passed up. A whole
    completion is not visited again; where nothing is left to visit, the root gets more children.
    """
    below: dict[Node, list[Node]] = {}
    closed: set[Node] = set()
    leaf = search.root
    while room := search.affords([leaf], reserves=True):
        ((*drawn,),) = yield from search.draw([(leaf, min(search.shape.expand, room))])
        known = below.setdefault(leaf, [])
        new = _distinct([*known, *drawn])[len(known) :]
        known += new
        for child in new:
            for node in (*child.lineage(), search.root):
                search.visits[node] += 1
                search.values[node] += child.score or 0.0
        closed.update(child for child in new if child.finished)
        for node in leaf.lineage():
            if all(child in closed for child in below[node]):
                closed.add(node)
        leaf = _leaf(search, below, closed)
    if not search.found:
        best = max(search.visits, key=lambda node: node.score or 0.0, default=search.root)
        yield from search.draw([(best, 1)], "whole")


def _leaf(search: Search, below: Mapping[Node, list[Node]], closed: set[Node]) -> Node:
    """Return the node to expand: from the root down by the largest upper bound."""
    node = search.root
    while node in below:
        likeliest = max(child.logprob for child in below[node])
        total = sum(exp(child.logprob - likeliest) for child in below[node])
        spread = search.shape.exploration * sqrt(search.visits[node])

        def bound(
            child: Node, total: float = total, spread: float = spread, top: float = likeliest
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
    """Return the score of where some greedy steps from each node lead."""
    tips = {node: node for node in nodes}
    for _ in range(search.shape.ahead):
        going = [node for node in nodes if not tips[node].finished]
        found = yield from search.draw([(tips[node], 1) for node in going], "greedy_step")
        tips.update((node, child) for node, (child,) in zip(going, found, strict=True))
    return {node: tip.reward for node, tip in tips.items()}


def _distinct(nodes: Iterable[Node]) -> list[Node]:
    """Return the first of those that say the same."""
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
"""What each method draws; `assay.evaluation.test_time.choice` says how it chooses."""
SAMPLED = tuple(name for name, draws in METHODS.items() if draws is sampled)
"""Methods that draw whole completions only."""
