"""Groups that end first, against sampling them all to their ends and looking who was shortest."""

from __future__ import annotations

import random
from concurrent.futures import Future
from typing import Any

import pytest
from generate_fakes import bits_of, completions_of, engine_of, problem_of

from assay.config import EngineConfig, SamplingConfig
from assay.generate.base import SoFar
from assay.generate.oversampling import OversamplingCutoff
from assay.types import Group

STOPS = tuple(chr(one) for one in range(33, 70))  # about one byte in seven: lengths differ
SAMPLING = SamplingConfig(max_tokens=24, stop=STOPS)


def longest(group: Group) -> int:
    return max(len(one.tokens) for one in group.completions)


def wanted_of(groups: list[Group], enough: int) -> list[Group]:
    """The slow and obvious way: all groups are sampled, and the shortest are taken."""
    order = sorted(range(len(groups)), key=lambda n: (longest(groups[n]), n))
    return [groups[n] for n in sorted(order[:enough])]


@pytest.mark.parametrize("num_slots", [1, 3, 8, 40])
def test_the_shortest_groups_are_wanted_whatever_the_slots(num_slots: int) -> None:
    chance = random.Random(num_slots)
    engine = engine_of(settings=EngineConfig(num_slots=num_slots))
    num_given_up = 0
    for enough in (1, 3, 6):
        problems = [problem_of(chance.randint(1, 60), f"{enough}-{n}") for n in range(8)]
        whole = engine.generate(problems, SAMPLING, 4)
        assert len({longest(group) for group in whole}) > 3
        cutoff, heard = OversamplingCutoff(enough), list[Group]()
        ended = engine.generate(problems, SAMPLING, 4, 0, heard.append, cutoff)
        groups = cutoff.first(ended)
        assert [one.id for one in groups] == [one.id for one in wanted_of(whole, enough)]
        mine, its = completions_of(groups), completions_of(whole)
        assert all(bits_of(mine[name]) == bits_of(its[name]) for name in mine)
        assert {*heard} == {*ended} >= {*groups}
        assert cutoff.limit == max(map(longest, groups))
        assert cutoff.first(groups) == groups
        late = [one for one in whole if one.id not in {each.id for each in groups}]
        if num_slots == 40:  # all begin at once, so that all are given up at once
            counts = [
                min(len(one.tokens), cutoff.limit or 0) for g in late for one in g.completions
            ]
            assert cutoff.tokens == sum(counts)
        assert 0 < cutoff.tokens <= sum(len(one.tokens) for g in late for one in g.completions)
        num_given_up += len(whole) - len(ended)
    assert num_given_up > 5, "not sampled to their ends"


def test_a_limit_from_elsewhere_holds_too() -> None:
    """As an actor hears of groups that others have sampled."""
    engine = engine_of(settings=EngineConfig(num_slots=40))
    problems = [problem_of(9 + n) for n in range(8)]
    whole = engine.generate(problems, SAMPLING, 4)
    limit = sorted(map(longest, whole))[2]
    cutoff = OversamplingCutoff(8)
    cutoff.lower(limit)
    ended = engine.generate(problems, SAMPLING, 4, cutoff=cutoff)
    assert [one.id for one in ended] == [one.id for one in whole if longest(one) <= limit]
    cutoff.lower(limit + 1)
    assert cutoff.limit == limit, "it only falls"


def test_a_completion_that_waits_is_given_up_and_its_slot_serves_again() -> None:
    """Its controller's promise is never kept. Prompts of 60 tokens and more leave room for fewer
    than 11 tokens, one of 40 for 30."""
    never: Future[Any] = Future()

    def controller(problem: Any, prompt: Any) -> Any:
        waits = len(prompt.tokens) == 40

        def ask(so_far: SoFar) -> Any:
            return never if waits and so_far.num_tokens == 12 else None

        return ask

    settings = EngineConfig(num_slots=2)
    engine = engine_of(settings=settings, eos_ids=(), context_length=70)
    engine.make_controller = controller
    cutoff = OversamplingCutoff(2)
    problems = [problem_of(n) for n in (40, 60, 61, 62)]
    groups = engine.generate(problems, SamplingConfig(), 1, cutoff=cutoff)
    assert [longest(one) for one in groups] == [10, 9, 8] and cutoff.limit == 9
    assert [longest(one) for one in cutoff.first(groups)] == [9, 8]
    assert cutoff.tokens == 12 + 10
