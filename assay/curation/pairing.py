"""Which completions of a problem become preferences: of a verified group, or of a ranking."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from random import Random


def pairs_of_group(
    passed: Sequence[int], failed: Sequence[int], lengths: Sequence[int], most: int, rng: Random
) -> list[tuple[int, int]]:
    """Return up to ``most`` (chosen, rejected) of completions that passed and that failed.

    The pair goes first whose two are in the fewest pairs so far. lengths: of the completions; of
    equals the pair goes first that differs least in length. Empty: one of them, by chance.
    """
    good, bad = rng.sample(passed, len(passed)), rng.sample(failed, len(failed))
    used = dict.fromkeys([*good, *bad], 0)
    open_pairs = [(chosen, rejected) for chosen in good for rejected in bad]

    def cost(pair: tuple[int, int]) -> tuple[int, int]:
        chosen, rejected = pair
        gap = abs(lengths[chosen] - lengths[rejected]) if lengths else 0
        return used[chosen] + used[rejected], gap

    taken: list[tuple[int, int]] = []
    while open_pairs and len(taken) < most:
        pair = min(open_pairs, key=cost)
        open_pairs.remove(pair)
        taken.append(pair)
        for one in pair:
            used[one] += 1
    return taken


def pairs_of_ranking(ranks: Sequence[int], most: int, rng: Random) -> list[tuple[int, int]]:
    """Return up to ``most`` (chosen, rejected) of ranked completions; 1 is the best, equal ranks
    are ties, which give no pair."""
    found = [
        (one, other) if ranks[one] < ranks[other] else (other, one)
        for one, other in combinations(range(len(ranks)), 2)
        if ranks[one] != ranks[other]
    ]
    return found if len(found) <= most else sorted(rng.sample(found, most))
