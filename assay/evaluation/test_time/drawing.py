"""Sample the nodes that searches request, with one generator call for the searches of all
problems."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator as Yields
from collections.abc import Sequence
from dataclasses import dataclass, replace

from assay.config import SamplingConfig
from assay.evaluation.test_time.tree import STEPS, Draw, Kind, Node, StepLimits, group_of
from assay.generate.base import Generator
from assay.session.evaluate import Judge, judge_groups
from assay.types import Verdict

Asking = Yields[Sequence[Draw], None, None]
"""A running search: a generator that yields requested draws and resumes when they exist."""


@dataclass(frozen=True)
class Drawer:
    """Samples children of search-tree nodes, and scores them.

    sampling: sampling settings for whole completions. step: text that ends a reasoning step. block:
    number of children of a node that one generator call samples. The random numbers of a child
    depend on the problem, the node and the index of the block. scorer: function that scores the
    sampled nodes; None means that nodes have no scores.
    """

    generator: Generator
    sampling: SamplingConfig
    limits: StepLimits
    step: str
    block: int
    scorer: Judge | None = None

    def run(self, searches: Sequence[Asking]) -> None:
        """Advance all searches together until all have ended; each search has one open request at a
        time.
        """
        # One generator call samples the requests of all searches, which fills the engine's slots.
        asking = [(one, asked) for one in searches if (asked := next(one, None)) is not None]
        while asking:
            self.draw([each for _, asked in asking for each in asked])
            asking = [(one, asked) for one, _ in asking if (asked := next(one, None)) is not None]

    def draw(self, asked: Sequence[Draw]) -> None:
        """Sample those requested children of nodes that no earlier request has sampled."""
        wanted: dict[Kind, dict[Node, int]] = defaultdict(dict)
        for each in asked:
            last = each.first + each.count
            if len(each.node.drawn.get(each.kind, ())) < last:
                of_kind = wanted[each.kind]
                of_kind[each.node] = max(last, of_kind.get(each.node, 0))
        for kind, nodes in wanted.items():
            self._score(self._drawn(kind, nodes))

    def _drawn(self, kind: Kind, nodes: dict[Node, int]) -> list[Node]:
        """Sample children of nodes in whole blocks; return the new nodes."""
        # Continuations of a node are sampled in blocks of fixed size,
        # so that its n-th child never changes.
        # All search methods and budgets therefore see the same continuations of a node.
        size = self.block if kind in ("step", "whole") else 1
        blocks = [
            (node, number)
            for node, last in nodes.items()
            for number in range(len(node.drawn.get(kind, ())) // size, -(-last // size))
        ]
        problems = [replace(node.problem_to_draw, draw=number) for node, number in blocks]
        groups = self.generator.generate(problems, self._sampling(kind, list(nodes)), size)
        return [
            node.add(kind, completion, self.limits)
            for (node, _), group in zip(blocks, groups, strict=True)
            for completion in group.completions
        ]

    def _sampling(self, kind: Kind, nodes: Sequence[Node]) -> SamplingConfig:
        """Return the sampling settings for one type of request.

        The token limit suits the node with the fewest tokens; children of longer nodes are cut
        afterwards.
        """
        shortest = min(len(node.tokens) for node in nodes)
        changes: dict[str, object] = {"max_tokens": self.limits.longest - shortest}
        if kind in STEPS:
            # A reasoning step ends with its separator, so the separator is a stop string.
            changes["stop"] = (*self.sampling.stop, self.step)
        if kind.startswith("greedy"):
            changes["temperature"] = 0.0
        return self.sampling.model_copy(update=changes)

    def _score(self, nodes: Sequence[Node]) -> None:
        """Score the nodes. A node that was not judged has no score."""
        if self.scorer is None:
            return
        for node, verdict in judged(self.scorer, nodes, by_row=False):
            node.score, node.reward = verdict.score, verdict.reward


def judged(judge: Judge, nodes: Sequence[Node], by_row: bool = True) -> list[tuple[Node, Verdict]]:
    """Return nodes with their verdicts. The nodes of one problem form one group for the verifier.

    by_row: whether to judge with the verifier that a row names, if any.
    """
    of_problem: dict[str, list[Node]] = defaultdict(list)
    for node in nodes:
        of_problem[node.problem.id].append(node)
    verdicts = judge_groups(judge, [group_of(own, by_row) for own in of_problem.values()])
    return [
        pair
        for own, found in zip(of_problem.values(), verdicts, strict=True)
        for pair in zip(own, found, strict=True)
    ]
