"""The curriculum: what each order draws, that draws repeat, and that a resumed one is exact."""

from __future__ import annotations

import math
import tracemalloc
from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.config import CurriculumConfig
from assay.data.curriculum import Curriculum
from assay.data.outcomes import chance_within
from assay.data.row_facts import RowFacts
from assay.errors import ConfigError, RunError
from assay.types import Completion, Group, Problem, Prompt, Verdict

PROBLEMS = [Problem(f"p{n}", f"q{n}") for n in range(10)]
PASSED, FAILED = Verdict.of_score(1.0, "v@1"), Verdict.of_score(0.0, "v@1")
MISSING = Verdict.not_judged("timeout", "v@1")


def names(problems: list[Problem]) -> list[str]:
    return [problem.group_id for problem in problems]


def ids(problems: list[Problem]) -> list[str]:
    return [problem.id for problem in problems]


def group(problem: Problem, size: int) -> Group:
    completions = tuple(Completion.from_text("x") for _ in range(size))
    return Group(problem, Prompt("q", np.zeros(1, np.int32)), completions)


def tell(curriculum: Curriculum, drawn: Sequence[Problem], passes: Callable[[str], int]) -> None:
    """Let the curriculum observe eight completions of each, of which so many passed."""
    verdicts = [[PASSED] * passes(one.id) + [FAILED] * (8 - passes(one.id)) for one in drawn]
    curriculum.observe([group(one, 8) for one in drawn], verdicts)


def known(counts: Sequence[tuple[int, int]]) -> RowFacts:
    """What rows say of themselves: passed and judged."""
    return RowFacts(counts=np.array(counts, np.float32).T)


# uniform: as it always was


def test_every_epoch_holds_every_problem_once_in_another_order() -> None:
    drawn = Curriculum(PROBLEMS, seed=0).draw(30)
    epochs = [drawn[start : start + 10] for start in (0, 10, 20)]
    for number, epoch in enumerate(epochs):
        assert sorted(ids(epoch)) == sorted(p.id for p in PROBLEMS)
        assert {problem.draw for problem in epoch} == {number}
    assert len({tuple(ids(epoch)) for epoch in epochs}) == 3
    assert len(set(names(drawn))) == 30, "two draws share a group's name"


def test_the_seed_fixes_the_order_and_the_size_of_a_draw_does_not_change_it() -> None:
    whole = names(Curriculum(PROBLEMS, seed=3).draw(24))
    parts = Curriculum(PROBLEMS, seed=3)
    assert [name for size in (7, 1, 0, 16) for name in names(parts.draw(size))] == whole
    assert parts.epoch == 2
    assert names(Curriculum(PROBLEMS, seed=4).draw(24)) != whole
    assert len(Curriculum(PROBLEMS, seed=-1).draw(3)) == 3


def test_uniform_draws_what_it_drew_before_there_were_other_orders() -> None:
    before = (
        "p9#0 p6#0 p0#0 p2#0 p1#0 p4#0 p7#0 p5#0 p3#0 p8#0 p4#1 p1#1 p2#1 p8#1 p5#1 p0#1 p7#1 p9#1"
        " p6#1 p3#1 p7#2 p4#2 p1#2 p8#2"
    )
    assert names(Curriculum(PROBLEMS, seed=3).draw(24)) == before.split()
    curriculum = Curriculum(PROBLEMS[:7], seed=12, settings=CurriculumConfig(forgetting=0.5))
    for epoch in range(5):
        order = np.random.default_rng([12, epoch]).permutation(7)
        drawn = curriculum.draw(7)
        assert names(drawn) == [f"p{n}#{epoch}" for n in order]
        tell(curriculum, drawn, lambda name: int(name[1]))


def test_a_draw_larger_than_the_set_names_distinct_groups() -> None:
    assert len(set(names(Curriculum(PROBLEMS[:2], seed=0).draw(7)))) == 7


def test_pass_rates_leave_out_what_was_not_judged() -> None:
    curriculum = Curriculum(PROBLEMS[:2], seed=0)
    one, other = curriculum.draw(2)
    curriculum.observe([group(one, 3), group(other, 2)], [[PASSED, FAILED, MISSING], [MISSING] * 2])
    first, second = int(one.id[1]), int(other.id[1])
    assert curriculum.outcomes.judged[[first, second]].tolist() == [2, 0]
    assert curriculum.outcomes.passed[[first, second]].tolist() == [1, 0]
    assert curriculum.metrics() == {
        "curriculum/effective_epochs": 1.0,
        "curriculum/drawn": 1.0,
        "curriculum/pass_rate_0_20": 0.0,
        "curriculum/pass_rate_20_40": 0.0,
        "curriculum/pass_rate_40_60": 1.0,
        "curriculum/pass_rate_60_80": 0.0,
        "curriculum/pass_rate_80_100": 0.0,
    }


def test_every_problem_comes_first_equally_often() -> None:
    """Over many seeds each problem comes first about equally often."""
    firsts = Counter(Curriculum(PROBLEMS, seed).draw(1)[0].id for seed in range(1000))
    assert len(firsts) == 10
    assert 60 < min(firsts.values()) <= max(firsts.values()) < 145


def test_no_problems_are_refused() -> None:
    with pytest.raises(ConfigError):
        Curriculum([], seed=0)


# orders that draw at random


def exact_chance(passed: int, judged: int, low: Fraction, high: Fraction) -> float:
    """The posterior's probability of a band, by the sum that equals the incomplete beta function."""

    def below(rate: Fraction) -> Fraction:
        n = judged + 1
        terms = (
            math.comb(n, j) * rate**j * (1 - rate) ** (n - j) for j in range(passed + 1, n + 1)
        )
        return sum(terms, Fraction(0))

    return float(below(high) - below(low))


def test_the_probability_of_a_band_is_that_of_the_posterior() -> None:
    pairs = [(k, n) for n in (0, 1, 8, 21, 100) for k in {0, n // 3, n}]
    passed, judged = np.array(pairs, np.float32).T
    for low, high in (("1/5", "4/5"), ("0", "1/10"), ("9/10", "1"), ("0", "1"), ("1/2", "51/100")):
        bounds = Fraction(low), Fraction(high)
        expected = [exact_chance(*pair, *bounds) for pair in pairs]
        found = chance_within(passed, judged, *map(float, bounds))
        assert found == pytest.approx(expected, abs=2e-5)
        alone = [
            chance_within(passed[n : n + 1], judged[n : n + 1], *map(float, bounds))[0]
            for n in range(len(pairs))
        ]
        assert found.tolist() == alone, "to the bit: what is updated one by one equals the whole"


def test_many_judged_are_no_trouble_to_the_posterior() -> None:
    passed, judged = np.array([[1e6, 0, 5e5], [1e6, 1e6, 1e6]], np.float32)
    assert chance_within(passed, judged, 0.2, 0.8) == pytest.approx([0, 0, 1], abs=1e-6)


def orders_of_two(chances: Sequence[float]) -> dict[tuple[int, int], float]:
    """The probability of each pair: the second is drawn among those that are left."""
    total = sum(chances)
    return {
        (a, b): chances[a] / total * chances[b] / (total - chances[a])
        for a, b in permutations(range(len(chances)), 2)
    }


COUNTS = [(0, 8), (4, 8), (8, 8), (0, 0), (30, 40)]


@pytest.mark.parametrize("weights", [None, [1.0, 2.0, 1.0, 0.5, 0.0]])
@pytest.mark.parametrize("order", ["prioritized", "band"])
def test_draws_follow_their_probabilities(order: Any, weights: list[float] | None) -> None:
    if order == "prioritized":
        chances = [1 - (k + 1) / (n + 2) for k, n in COUNTS]
    else:
        chances = [exact_chance(k, n, Fraction(1, 4), Fraction(3, 4)) for k, n in COUNTS]
    settings = CurriculumConfig(order=order, band=(0.25, 0.75), forgetting=0.0)
    facts = known(COUNTS)
    if weights is not None:
        facts = RowFacts(None, facts.counts, np.array(weights, np.float32))
        chances = [one * weight for one, weight in zip(chances, weights, strict=True)]
    curriculum = Curriculum(PROBLEMS[:5], 7, settings, facts)
    num_draws = 6000
    pairs = (curriculum.draw(2) for _ in range(num_draws))
    found = Counter((int(a.id[1]), int(b.id[1])) for a, b in pairs)
    expected = {pair: num_draws * one for pair, one in orders_of_two(chances).items() if one}
    assert found.keys() <= expected.keys(), "what has no weight is never drawn"
    chi_square = sum((found[pair] - one) ** 2 / one for pair, one in expected.items())
    degrees = len(expected) - 1
    assert chi_square < degrees + 4 * math.sqrt(2 * degrees)


def test_what_is_observed_changes_what_is_drawn() -> None:
    curriculum = Curriculum(PROBLEMS, 0, CurriculumConfig(order="prioritized", forgetting=0.0))
    tell(curriculum, curriculum.draw(10), lambda name: 0 if name == "p3" else 8)
    counts = Counter(ids([one for _ in range(500) for one in curriculum.draw(1)]))
    assert counts["p3"] / 500 == pytest.approx(0.9 / (0.9 + 9 * 0.1), abs=0.07)


def test_a_step_draws_no_problem_twice_and_no_refill_draws_it_again() -> None:
    curriculum = Curriculum(PROBLEMS, 0, CurriculumConfig(order="prioritized"))
    for _ in range(20):
        step = ids(curriculum.draw(4)) + ids(curriculum.draw(3, refill=True))
        step += ids(curriculum.draw(3, refill=True))
        assert sorted(step) == sorted(p.id for p in PROBLEMS)
    more = curriculum.draw(23)
    assert len(set(names(more))) == 23 and set(Counter(ids(more)).values()) == {2, 3}


def test_what_was_observed_fades_with_the_epochs() -> None:
    curriculum = Curriculum(PROBLEMS[:4], 0, CurriculumConfig(forgetting=0.25))
    tell(curriculum, curriculum.draw(4), lambda name: 4)
    assert curriculum.outcomes.judged.tolist() == [8.0] * 4
    tell(curriculum, curriculum.draw(4), lambda name: 8)
    assert curriculum.outcomes.judged.tolist() == [14.0] * 4
    assert curriculum.outcomes.passed.tolist() == [11.0] * 4


# easy to hard


def test_easy_problems_come_first_by_label() -> None:
    hardness = np.array([3, 1, 2, 9, 8, 7, 6, 5, 4, 0], np.float32)
    settings = CurriculumConfig(order="easy_to_hard", label="level")
    curriculum = Curriculum(PROBLEMS, 0, settings, RowFacts(hardness))
    by_hand = [f"p{n}" for n in np.argsort(hardness)]
    assert ids(curriculum.draw(10)) == by_hand == ids(curriculum.draw(10))


def test_a_run_that_draws_fewer_problems_comes_to_hard_ones() -> None:
    problems = [Problem(f"p{n}", "q") for n in range(1000)]
    settings = CurriculumConfig(order="easy_to_hard", label="level")
    facts = RowFacts(np.arange(1000, dtype=np.float32))
    levels = [int(one.id[1:]) for one in Curriculum(problems, 0, settings, facts, 100).draw(100)]
    assert levels == sorted(set(levels))
    assert levels[0] < 60 and levels[-1] > 940 and 400 < np.median(levels) < 600


def test_easy_problems_come_first_by_observed_pass_rates() -> None:
    curriculum = Curriculum(PROBLEMS[:8], 1, CurriculumConfig(order="easy_to_hard"))
    first = curriculum.draw(8)
    assert names(first) == names(Curriculum(PROBLEMS[:8], 1).draw(8)), "nothing is known yet"
    tell(curriculum, first, lambda name: int(name[1]))
    second = ids(curriculum.draw(5))
    assert second == ["p7", "p6", "p5", "p4", "p3"]


def test_equally_easy_problems_come_in_another_order_each_epoch() -> None:
    settings = CurriculumConfig(order="easy_to_hard", label="level")
    curriculum = Curriculum(PROBLEMS, 0, settings, RowFacts(np.zeros(10, np.float32)))
    assert ids(curriculum.draw(10)) != ids(curriculum.draw(10))


# retirement and weights


def test_solved_and_hopeless_problems_are_retired_and_return() -> None:
    settings = CurriculumConfig(
        retire_above=0.75, retire_below=0.2, confidence=0.85, return_after=2.0, forgetting=0.0
    )
    curriculum = Curriculum(PROBLEMS, 0, settings)
    epochs: list[list[str]] = []
    for _ in range(8):
        drawn = curriculum.draw(5)
        epochs.append(ids(drawn))
        tell(curriculum, drawn, lambda name: {"p0": 8, "p1": 0}.get(name, 4))
    first_draws = [*epochs[0], *epochs[1]]
    assert sorted(first_draws) == sorted(p.id for p in PROBLEMS)
    away = [name for part in epochs[2:5] for name in part]
    assert "p0" not in away and "p1" not in away
    later = [name for part in epochs[4:] for name in part]
    assert "p0" in later and "p1" in later


def test_few_completions_retire_nothing() -> None:
    settings = CurriculumConfig(retire_above=0.75, confidence=0.95, forgetting=0.0)
    curriculum = Curriculum(PROBLEMS[:2], 0, settings)
    tell(curriculum, curriculum.draw(2), lambda name: 8)
    assert curriculum.metrics()["curriculum/retired"] == 0.0, "1 - 0.75^9 = 0.925"
    tell(curriculum, curriculum.draw(1), lambda name: 8)
    assert curriculum.metrics()["curriculum/retired"] == 0.5


@pytest.mark.parametrize("order", ["uniform", "easy_to_hard", "prioritized", "band"])
def test_if_no_problem_is_left_all_of_them_return(order: Any) -> None:
    settings = CurriculumConfig(order=order, retire_above=0.75, return_after=None, forgetting=0.0)
    curriculum = Curriculum(PROBLEMS, 0, settings)
    for _ in range(5):
        tell(curriculum, curriculum.draw(2), lambda name: 8)
    retired = curriculum.metrics()["curriculum/retired"]
    drawn = curriculum.draw(4)
    assert len(drawn) == len(set(ids(drawn))) == 4
    assert retired == 1.0 and curriculum.metrics()["curriculum/retired"] == 0.0


@pytest.mark.parametrize("order", ["prioritized", "band"])
def test_what_is_retired_is_not_drawn_at_random(order: Any) -> None:
    settings = CurriculumConfig(order=order, retire_above=0.75, return_after=None)
    curriculum = Curriculum(PROBLEMS, 0, settings)
    tell(curriculum, curriculum.draw(10), lambda name: 8 if name in ("p2", "p5") else 0)
    later = [name for _ in range(20) for name in ids(curriculum.draw(8))]
    assert set(later) == {p.id for p in PROBLEMS} - {"p2", "p5"}


def test_weights_say_how_often_an_epoch_holds_a_problem() -> None:
    weights = np.array([2, 1, 0.5, 0, 1, 1, 1, 1, 1, 1], np.float32)
    curriculum = Curriculum(PROBLEMS, 0, CurriculumConfig(), RowFacts(weights=weights))
    counts = Counter[str]()
    while curriculum.epoch < 400:
        counts.update(ids(curriculum.draw(1)))
    assert counts["p3"] == 0
    assert counts["p0"] == pytest.approx(800, abs=2)
    assert counts["p1"] == pytest.approx(400, abs=1)
    assert counts["p2"] == pytest.approx(200, abs=40)
    with pytest.raises(ConfigError, match=r"curriculum\.weights: found 0 for every problem"):
        Curriculum(PROBLEMS, 0, CurriculumConfig(), RowFacts(weights=weights * 0))


class ManyProblems(Sequence[Problem]):
    """Problems that are made when they are asked for, and counted."""

    def __init__(self, size: int) -> None:
        self.size, self.num_read = size, 0

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: Any) -> Any:
        self.num_read += 1
        return Problem(f"p{index}", "q")


@pytest.mark.parametrize("order", ["uniform", "easy_to_hard", "prioritized", "band"])
def test_a_draw_among_many_problems_reads_those_that_it_draws(order: Any) -> None:
    problems = ManyProblems(300_000)
    tracemalloc.start()
    try:
        curriculum = Curriculum(problems, 0, CurriculumConfig(order=order, retire_above=0.75))
        for _ in range(3):
            tell(curriculum, curriculum.draw(32), lambda name: 8)
        curriculum.metrics()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert problems.num_read == 96
    assert peak < 160 * len(problems), "bytes: some arrays, and no object of each problem"


# state

MANY = {
    "uniform": CurriculumConfig(),
    "retiring": CurriculumConfig(
        retire_above=0.6, retire_below=0.3, confidence=0.6, return_after=1.5, forgetting=0.1
    ),
    "easy_to_hard": CurriculumConfig(order="easy_to_hard"),
    "prioritized": CurriculumConfig(order="prioritized"),
    "band": CurriculumConfig(order="band", band=(0.3, 0.9), retire_below=0.2, confidence=0.7),
}


@pytest.mark.parametrize("kind", MANY)
def test_a_resumed_curriculum_equals_one_that_never_stopped(tmp_path: Path, kind: str) -> None:
    weights = np.array([1, 1, 2, 1, 0.5, 1, 1, 3, 1, 1], np.float32)

    def new() -> Curriculum:
        return Curriculum(PROBLEMS, 5, MANY[kind], RowFacts(weights=weights))

    def passes(name: str) -> int:
        return {"p0": 0, "p9": 8}.get(name, (int(name[1]) * 7 + step) % 9)

    whole, stopped, retired = new(), new(), 0.0
    for step in range(24):
        folder = tmp_path / str(step)
        again = tmp_path / f"{step} again"
        folder.mkdir()
        again.mkdir()
        stopped.save_state(folder)
        stopped = new()
        stopped.load_state(folder)
        stopped.save_state(again)
        for file in folder.iterdir():
            assert file.read_bytes() == (again / file.name).read_bytes()
        for refill in (False, True):
            drawn, resumed = whole.draw(3, refill), stopped.draw(3, refill)
            assert names(drawn) == names(resumed)
            for one in (whole, stopped):
                tell(one, drawn, passes)
        assert whole.metrics() == stopped.metrics()
        retired = max(retired, whole.metrics().get("curriculum/retired", 0.0))
    assert (retired > 0) == MANY[kind].retires


@pytest.mark.parametrize("before", MANY)
@pytest.mark.parametrize("after", MANY)
def test_other_settings_go_on_with_what_was_observed(
    tmp_path: Path, before: str, after: str
) -> None:
    curriculum = Curriculum(PROBLEMS, 5, MANY[before])
    given = set[str]()
    for _ in range(5):
        drawn = curriculum.draw(5)
        given |= {*names(drawn)}
        tell(curriculum, drawn, lambda name: int(name[1]) % 9)
    curriculum.save_state(tmp_path)
    other = Curriculum(PROBLEMS, 5, MANY[after])
    other.load_state(tmp_path)
    assert other.outcomes.judged.tolist() == curriculum.outcomes.judged.tolist()
    assert not given & {*names(other.draw(30))}, "a draw's name comes once in a run"


def test_a_state_of_other_problems_or_another_seed_is_refused(tmp_path: Path) -> None:
    Curriculum(PROBLEMS, seed=5).save_state(tmp_path)
    others = [*PROBLEMS[:-1], Problem("p9", "a new text")]
    for problems, seed, named in (
        (PROBLEMS, 6, "seed: found 6; accepted: 5"),
        (PROBLEMS[:9], 5, "num_problems: found 9; accepted: 10"),
        (others, 5, "fingerprint: found"),
    ):
        with pytest.raises(RunError, match=named):
            Curriculum(problems, seed).load_state(tmp_path)


@pytest.mark.parametrize("content", [None, "{", "{}", '{"seed": 5}'])
def test_a_state_that_cannot_be_read_is_refused(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "curriculum.json").write_text(content)
    with pytest.raises(RunError, match=r"curriculum\.json"):
        Curriculum(PROBLEMS, seed=5).load_state(tmp_path)


# sizes of groups


def sized(counts: Sequence[tuple[int, int]], **settings: Any) -> tuple[Curriculum, list[int]]:
    """Draw every problem once, the counts known before; return the sizes of its groups by number."""
    problems = PROBLEMS[: len(counts)]
    curriculum = Curriculum(problems, 0, CurriculumConfig(**settings), known(counts))
    drawn = sorted(curriculum.draw(len(counts)), key=lambda one: int(one.id[1:]))
    return curriculum, curriculum.group_sizes(drawn, 8)


def test_two_completions_differ_with_the_probability_of_the_posterior() -> None:
    counts = [(0, 0), (8, 8), (0, 3), (4, 8), (30, 40)]
    curriculum, _ = sized(counts)
    rates = (np.arange(100_000) + 0.5) / 100_000
    for index, (passed, judged) in enumerate(counts):
        density = rates**passed * (1 - rates) ** (judged - passed)
        slow = float((density * 2 * rates * (1 - rates)).sum() / density.sum())
        assert curriculum.outcomes.differences()[index] == pytest.approx(slow, rel=1e-6)


def test_groups_shrink_where_the_end_is_sure_and_grow_where_it_is_open() -> None:
    counts = [(0, 0), (8, 8), (0, 8), (80, 80), (4, 8), (400, 800), (8, 40), (1, 2)]
    curriculum, sizes = sized(counts, group_sizes=(2, 16))
    assert sizes == [8, 4, 4, 2, 16, 16, 8, 8]
    assert curriculum.metrics()["curriculum/group_size"] == pytest.approx(np.mean(sizes))
    assert sized(counts, group_sizes=(8, 9))[1] == [8, 8, 8, 8, 9, 9, 8, 8]
    plain, sizes = sized(counts)
    assert sizes == [8] * 8 and "curriculum/group_size" not in plain.metrics()


def test_sizes_of_groups_are_gone_on_with(tmp_path: Path) -> None:
    settings = CurriculumConfig(group_sizes=(2, 16), order="band")
    first, sizes = Curriculum(PROBLEMS, 3, settings), list[list[int]]()
    for step in range(9):
        if step == 4:
            first.save_state(tmp_path)
        drawn = first.draw(4)
        sizes.append(first.group_sizes(drawn, 8))
        tell(first, drawn, lambda id: 8 * (int(id[1:]) % 2))
    second = Curriculum(PROBLEMS, 3, settings)
    second.load_state(tmp_path)
    for step in range(4, 9):
        drawn = second.draw(4)
        assert second.group_sizes(drawn, 8) == sizes[step]
        tell(second, drawn, lambda id: 8 * (int(id[1:]) % 2))
    assert {8, 4} <= {size for step in sizes for size in step}
