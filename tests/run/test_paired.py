"""Paired comparisons: pairing by problem, and each statistic against its definition or enumeration."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.run.intervals import share_interval, t_quantile
from assay.run.paired import Paired, gain_between, holm, paired_interval, paired_rows, sign_flip_p

Z = 1.959963984540054
thirds = st.sampled_from([-1.0, -2 / 3, -1 / 3, 0.0, 1 / 3, 2 / 3, 1.0])
mixed = st.builds(lambda a, b: a / 4 - b / 3, st.integers(0, 4), st.integers(0, 3))


def test_results_are_paired_by_problem_and_unpaired_problems_are_left_out() -> None:
    a = {"p": 1.0, "q": 0.5, "r": 0.0, "only of a": 1.0}
    b = {"r": 0.25, "q": 0.0, "p": 1.0, "only of b": 1.0}
    both = Paired.of(a, b)
    assert both.ids == ("p", "q", "r") and both.differences == [0.0, -0.5, 0.25]
    assert (both.better, both.worse) == (("r",), ("q",))
    assert both.gain is not None and both.gain.num_problems == 3
    assert both.gain.value == pytest.approx(-0.25 / 3)
    assert both.gain.interval == paired_interval([0.0, -0.5, 0.25])
    assert both.p_value == sign_flip_p([0.0, -0.5, 0.25])
    some = Paired.of(a, b, ["r", "only of a", "p"])
    assert some.ids == ("r", "p") and len(some) == 2


def test_results_of_several_files_are_joined() -> None:
    first, last = Paired.of({"p": 1.0}, {"p": 0.0}), Paired.of({"p": 0.5}, {"p": 1.0})
    both = Paired.joined([first, last])
    assert both.ids == ("p", "p") and both.differences == [-1.0, 0.5]


def test_without_common_problems_there_is_no_gain_and_no_p_value() -> None:
    nothing = Paired.of({"p": 1.0}, {"q": 1.0})
    assert not nothing and nothing.gain is None and nothing.p_value is None
    row = {"eval/pass_at_1": 0.5}
    assert not paired_rows(row, {**row, "eval/by_problem": {"p": 1.0}})
    same = {"eval/by_problem": {"p": 1.0}}
    assert gain_between(same, same) is None and gain_between(same, dict(same)) is not None


@given(st.lists(thirds | mixed, min_size=1, max_size=9))
def test_sign_flips_are_those_of_every_assignment_of_signs(differences: list[float]) -> None:
    observed = abs(sum(differences))
    as_far = [
        abs(sum(sign * one for sign, one in zip(signs, differences, strict=True))) > observed - 1e-9
        for signs in itertools.product((1, -1), repeat=len(differences))
    ]
    assert sign_flip_p(differences) == pytest.approx(sum(as_far) / len(as_far), abs=1e-12)


@given(st.integers(0, 12), st.integers(0, 12), st.integers(0, 5))
def test_of_one_completion_a_problem_it_is_mcnemars_exact_test(
    gained: int, lost: int, same: int
) -> None:
    """Of n problems that changed, each way is as likely: twice the binomial tail."""
    n = gained + lost
    tail = sum(math.comb(n, k) for k in range(min(gained, lost) + 1)) / 2**n
    expected = min(1.0, 2 * tail) if gained != lost else 1.0
    found = sign_flip_p([1.0] * gained + [-1.0] * lost + [0.0] * same)
    assert found == pytest.approx(expected, rel=1e-9)


def test_many_problems_without_a_common_unit_come_near_the_normal_test() -> None:
    draw = np.random.default_rng(0)
    counts = draw.integers(11, 17, size=600)
    differences = (draw.integers(0, 12, 600) / counts - draw.integers(0, 11, 600) / counts).tolist()
    z = sum(differences) / math.sqrt(sum(one**2 for one in differences))
    assert 1 < abs(z) < 4
    assert sign_flip_p(differences) == pytest.approx(math.erfc(abs(z) / math.sqrt(2)), rel=0.03)


def test_more_differences_than_floats_can_tell_are_no_negative_chance() -> None:
    assert 0.0 < sign_flip_p([1.0] * 200) < 1e-12
    assert sign_flip_p([0.0] * 5) == 1.0 == sign_flip_p([0.5])


@pytest.mark.parametrize("count", [3, 10, 40])
def test_paired_intervals_hold_the_truth_as_often_as_they_say(count: int) -> None:
    """By enumeration of how many were gained and lost, over chances of either."""
    found: list[float] = []
    for gains, losses in itertools.product([0.02, 0.1, 0.25, 0.4], repeat=2):
        chance = 0.0
        for gained, lost in itertools.product(range(count + 1), repeat=2):
            same = count - gained - lost
            if same < 0:
                continue
            low, high = paired_interval([1.0] * gained + [-1.0] * lost + [0.0] * same)
            if low <= gains - losses <= high:
                ways = math.comb(count, gained) * math.comb(count - gained, lost)
                chance += ways * gains**gained * losses**lost * (1 - gains - losses) ** same
        found.append(chance)
    assert min(found) > 0.925 and np.mean(found) > 0.95


def test_a_paired_interval_of_several_completions_is_students() -> None:
    differences = [0.25, 0.5, -0.25, 0.0, 0.75]
    error = np.std(differences, ddof=1) / math.sqrt(5)
    low, high = paired_interval(differences)
    assert (low, high) == pytest.approx((0.25 - 2.7764 * error, 0.25 + 2.7764 * error), abs=1e-4)
    low, high = paired_interval([0.5])
    assert low < -0.5 and high > 0.9, "one problem says little of others"
    assert paired_interval([0.5] * 3)[0] < 0.2, "nor do three that are alike"


def test_the_interval_of_equal_values_has_width() -> None:
    few, many = paired_interval([0.0] * 2), paired_interval([0.0] * 200)
    assert few[0] < -0.6 < 0.6 < few[1] and -0.03 < many[0] < 0 < many[1] < 0.03


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_holm_is_the_closed_test_of_bonferroni(p_values: list[float]) -> None:
    """Adjusted p: the largest of all sets of hypotheses that hold this one, each by Bonferroni."""
    numbers = range(len(p_values))
    sets = [each for size in numbers for each in itertools.combinations(numbers, size + 1)]
    for n, found in enumerate(holm(p_values)):
        worst = max(len(one) * min(p_values[k] for k in one) for one in sets if n in one)
        assert found == pytest.approx(min(1.0, worst))


def test_the_statistics_of_scipy_are_the_same() -> None:
    stats = pytest.importorskip("scipy.stats", reason="scipy is not a dependency")
    for degrees in (1, 2, 5, 18, 400):
        assert t_quantile(degrees) == pytest.approx(stats.t.ppf(0.975, degrees), rel=1e-6)
    test = stats.binomtest(7, 50)
    expected = test.proportion_ci(method="wilson")
    assert share_interval(0.14, 50) == pytest.approx((expected.low, expected.high))
    differences = np.array([0.5, 0.25, -0.25, 1.0, 0.5, 0.0, 0.75])

    def mean(values: np.ndarray) -> float:
        return float(np.mean(values))

    found = stats.permutation_test((differences,), mean, permutation_type="samples")
    assert sign_flip_p(differences.tolist()) == pytest.approx(found.pvalue)
