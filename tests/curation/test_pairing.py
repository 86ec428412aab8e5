"""Pairs of a group: passed over failed, each completion as seldom as can be; of a ranking: by rank."""

from __future__ import annotations

from collections import Counter
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from assay.curation.pairs import pairs_of_group, pairs_of_ranking


@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 40), st.integers(0, 99))
def test_completions_in_the_fewest_pairs_go_first(
    good: int, bad: int, most: int, seed: int
) -> None:
    passed, failed = list(range(good)), list(range(good, good + bad))
    found = pairs_of_group(passed, failed, (), most, Random(seed))
    assert len({*found}) == len(found) == min(most, good * bad)
    assert all(one in passed and other in failed for one, other in found)
    for side, members in ((0, passed), (1, failed)):
        once = found[: min(good, bad)]
        assert len({pair[side] for pair in once}) == len(once)
        uses = Counter(pair[side] for pair in found)
        counts = [uses[member] for member in members]
        assert max(counts) - min(counts) <= 2
    assert found == pairs_of_group(passed, failed, (), most, Random(seed))


def test_the_choice_depends_on_the_seed() -> None:
    first = {pairs_of_group([0, 1], [2, 3], (), 1, Random(seed))[0] for seed in range(40)}
    assert first == {(0, 2), (0, 3), (1, 2), (1, 3)}


def test_pairs_close_in_length_go_first() -> None:
    lengths = [100, 10, 500, 90, 12]
    found = pairs_of_group([0, 1], [2, 3, 4], lengths, 2, Random(0))
    assert found == [(1, 4), (0, 3)]


@given(st.lists(st.integers(1, 4), min_size=2, max_size=6), st.integers(1, 20))
def test_a_ranking_gives_a_pair_for_each_two_that_differ(ranks: list[int], most: int) -> None:
    found = pairs_of_ranking(ranks, most, Random(0))
    assert all(ranks[chosen] < ranks[rejected] for chosen, rejected in found)
    num = sum(one < other for one in ranks for other in ranks)
    assert len({*found}) == len(found) == min(most, num)
