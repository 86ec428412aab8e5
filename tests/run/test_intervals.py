"""Intervals and tests of shares, each against its definition or against enumeration."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.run.intervals import (
    clustered_stderr,
    share_interval,
    share_words,
    shown_range,
    spread_words,
    t_quantile,
)

Z = 1.959963984540054
thirds = st.sampled_from([-1.0, -2 / 3, -1 / 3, 0.0, 1 / 3, 2 / 3, 1.0])
mixed = st.builds(lambda a, b: a / 4 - b / 3, st.integers(0, 4), st.integers(0, 3))


@given(st.integers(1, 400), st.data())
def test_an_end_of_the_share_interval_is_a_share_that_is_z_errors_away(
    count: int, data: st.DataObject
) -> None:
    right = data.draw(st.integers(0, count))
    share = right / count
    low, high = share_interval(share, count)
    assert 0 <= low <= share + 1e-12 and share - 1e-12 <= high <= 1
    for end in (low, high):
        error = math.sqrt(end * (1 - end) / count)
        assert abs(share - end) == pytest.approx(Z * error, abs=1e-7)
    if count > 1:
        stderr = float(np.std([1.0] * right + [0.0] * (count - right), ddof=1)) / count**0.5
        assert share_interval(share, count, stderr) == (low, high), "right and wrong: as they are"


def test_shares_of_many_completions_are_known_better() -> None:
    plain, known = share_interval(0.25, 8), share_interval(0.25, 8, stderr=0.05)
    assert plain[0] < known[0] < 0.25 - 0.05 < 0.25 + 0.05 < known[1] < plain[1]


@pytest.mark.parametrize("count", [2, 5, 20, 60])
def test_share_intervals_hold_the_truth_as_often_as_they_say(count: int) -> None:
    """By enumeration, on average over truths; Wilson's may fall a little below for some of them."""
    found: list[float] = []
    for truth in np.linspace(0.01, 0.99, 99):
        chance = 0.0
        for right in range(count + 1):
            low, high = share_interval(right / count, count)
            if low <= truth <= high:
                chance += math.comb(count, right) * truth**right * (1 - truth) ** (count - right)
        found.append(chance)
    assert 0.94 < np.mean(found) < 0.97


@pytest.mark.parametrize(
    ("degrees", "t"),
    [(1, 12.7062), (2, 4.3027), (3, 3.1824), (7, 2.3646), (30, 2.0423), (100, 1.9840)],
)
def test_quantiles_are_those_of_students_tables(degrees: int, t: float) -> None:
    assert t_quantile(degrees) == pytest.approx(t, abs=5e-5)
    assert t_quantile(10**7) == pytest.approx(Z, abs=3e-3)


def test_an_error_is_told_where_it_says_enough() -> None:
    row = {"eval/pass_at_1": 0.5, "eval/stderr": 0.05, "eval/num_problems": 100}
    assert share_words(row) == " ± 5.0%" and shown_range(row) == (0.45, 0.55)
    assert share_words(row, ".3f") == " ± 0.050"
    none = {**row, "eval/pass_at_1": 0.0, "eval/stderr": 0.0, "eval/num_problems": 2}
    assert share_words(none) == " (95% interval 0.0% to 65.8%)"
    every = {**none, "eval/pass_at_1": 1.0, "eval/num_problems": 300}
    assert share_words(every) == " (95% interval 98.7% to 100.0%)"
    assert shown_range(every) == pytest.approx((0.9874, 1.0), abs=1e-4)
    one = {**row, "eval/stderr": None, "eval/num_problems": 1}
    assert share_words(one) == " (95% interval 5.5% to 94.5%)"
    unknown = {"eval/pass_at_1": 0.5, "eval/stderr": None}
    assert share_words(unknown) == " (no standard error)" and shown_range(unknown) is None
    assert share_words({**unknown, "eval/stderr": 0.1}) == " ± 10.0%", "an older run"
    assert spread_words(0.1, (-0.2, 0.3), 4, "+.1%") == " (95% interval -20.0% to +30.0%)"
    assert spread_words(0.1, (-0.2, 0.3), 40, "+.1%") == " ± 10.0%"


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=6), min_size=2, max_size=8))
def test_steps_of_a_solution_are_one_draw(table: list[list[bool]]) -> None:
    """Against the ratio estimator's definition, cluster by cluster."""
    values = np.array([one for row in table for one in row], np.float64)
    mean, count = values.mean(), len(table)
    residuals = [sum(row) - len(row) * mean for row in table]
    expected = (count / (count - 1) * sum(each**2 for each in residuals)) ** 0.5 / len(values)
    found = clustered_stderr(values, list(map(len, table)))
    assert found == pytest.approx(expected)
    alone = clustered_stderr(values, [1] * len(values))
    assert alone == pytest.approx(statistics.stdev(values) / len(values) ** 0.5)


def test_equal_steps_say_no_more_than_one() -> None:
    """Ten steps that are right or wrong together: the error of four solutions, not of forty steps."""
    hits = np.repeat([1.0, 0.0, 1.0, 0.0], 10)
    error = clustered_stderr(hits, [10] * 4)
    assert error == pytest.approx(statistics.stdev([1, 0, 1, 0]) / 2)
    assert clustered_stderr(hits, [40]) is None
