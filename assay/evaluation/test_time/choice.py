"""Choose the answer of a search from the completions that the search sampled."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from math import inf

from assay.evaluation.test_time.methods import Search
from assay.evaluation.test_time.tree import Node, group_of
from assay.session.evaluate import Judge, same_answers
from assay.types import Verdict

Weigh = Callable[[Node], float]
VOTES: Mapping[str, Weigh] = {
    "self_consistency": lambda node: 1.0,
    "weighted_vote": lambda node: node.score or 0.0,
}
"""Vote weight of a node, for methods that vote. Other methods take the highest reward."""


def choose(method: str, searches: Sequence[Search], verifiers: Judge) -> list[Node]:
    """For each search of a method, choose the completion that gives the answer.

    In a tie, the completion that was sampled first is chosen. The completions must already have
    verdicts, because verdicts contain the extracted answers. The verifier decides which extracted
    answers count as equal. A completion's vote has the weight 1 (Wang et al., 2023,
    arXiv:2203.11171) or the completion's score (Li et al., 2023, arXiv:2206.02336). If no answer
    could be extracted, the first completion is chosen.
    """
    weigh = VOTES.get(method)
    if weigh is None:
        # max() returns the first maximum, so of two tied completions the earlier one wins.
        return [max(search.found, key=_reward) for search in searches]
    verdicts = [[_verdict(node) for node in search.found] for search in searches]
    weights = [[weigh(node) for node in search.found] for search in searches]
    groups = [group_of(search.found) for search in searches]
    same = same_answers(verifiers, groups, verdicts, weights)
    return [
        search.found[elected(judged, counts, names)]
        for search, judged, counts, names in zip(searches, verdicts, weights, same, strict=True)
    ]


def elected(verdicts: Sequence[Verdict], weights: Sequence[float], names: Mapping[str, str]) -> int:
    """Return the index of the first completion that gives the answer with the most votes.

    names: map from an answer to a representative of equal answers; answers without an entry are
        compared as text.
    """
    said = {
        n: names.get(one.extracted, one.extracted)
        for n, one in enumerate(verdicts)
        if one.judged and one.extracted is not None
    }
    votes = defaultdict[str, float](float)
    for n, name in said.items():
        votes[name] += weights[n]
    winner = max(votes, key=lambda name: votes[name], default="")
    return next((n for n, name in said.items() if name == winner), 0)


def _reward(node: Node) -> float:
    # An unjudged completion ranks last, so it wins only if no completion was judged.
    return -inf if node.reward is None else node.reward


def _verdict(node: Node) -> Verdict:
    assert node.verdict is not None, "completions must be judged before the choice"
    return node.verdict
