"""Paired differences over seeds: intervals and p values against slow, obvious ones."""

from __future__ import annotations

import math
from random import Random

import numpy as np
import pytest

from assay.run.intervals import t_p_value, t_quantile
from assay.run.seed_statistics import SeedDifference, mean_and_error, three_digits


def slow_p_value(t: float, degrees: int) -> float:
    """Integrate the density of Student's t over |x| < t, by Simpson's rule."""
    x = np.linspace(0.0, t, 200_001)
    norm = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2))
    density = norm / math.sqrt(degrees * math.pi) * (1 + x**2 / degrees) ** (-(degrees + 1) / 2)
    weights = np.ones(len(x))
    weights[1:-1:2], weights[2:-1:2] = 4, 2
    return 1 - 2 * float((weights * density).sum() * (x[1] - x[0]) / 3)


@pytest.mark.parametrize("degrees", [1, 2, 7, 8, 15, 99])
@pytest.mark.parametrize("t", [0.0, 0.3, 1.0, 2.36, 5.0])
def test_the_p_value_is_the_tail_of_students_density(t: float, degrees: int) -> None:
    assert t_p_value(t, degrees) == pytest.approx(slow_p_value(t, degrees), abs=1e-9)
    assert t_p_value(-t, degrees) == t_p_value(t, degrees)


@pytest.mark.parametrize("degrees", [1, 2, 7, 31])
def test_the_p_value_of_the_quantile_is_its_chance(degrees: int) -> None:
    assert t_p_value(t_quantile(degrees), degrees) == pytest.approx(0.05, abs=1e-9)
    assert t_p_value(t_quantile(degrees, 0.001), degrees) == pytest.approx(0.001, abs=1e-9)


def test_a_difference_equals_scipys() -> None:
    stats = pytest.importorskip("scipy.stats", reason="needs scipy")
    random = Random(1)
    for count in (2, 3, 8, 20):
        differences = [random.gauss(0.3, 1) for _ in range(count)]
        found, expected = SeedDifference.of(differences), stats.ttest_1samp(differences, 0.0)
        interval = expected.confidence_interval(0.95)
        assert found.p_value == pytest.approx(expected.pvalue)
        assert (found.low, found.high) == pytest.approx((interval.low, interval.high))


def test_a_difference_by_hand() -> None:
    """Mean 2, standard error 1/sqrt(3), t = 2 sqrt(3) with 2 degrees of freedom."""
    found = SeedDifference.of([1.0, 2.0, 3.0])
    assert (found.mean, found.num_seeds) == (2.0, 3)
    assert found.high - found.mean == pytest.approx(4.302653 / math.sqrt(3), rel=1e-6)
    t = 2 * math.sqrt(3)
    assert found.p_value == pytest.approx(1 - t / math.sqrt(2 + t**2))  # its closed form
    assert not found.excludes_zero and not found.is_enough


def test_an_interval_excludes_zero_exactly_if_p_is_below_its_level() -> None:
    random = Random(2)
    for _ in range(500):
        found = SeedDifference.of([random.gauss(0.7, 1) for _ in range(8)])
        assert found.p_value is not None
        assert found.excludes_zero == (found.p_value < 0.05)


def test_p_values_of_equal_arms_are_uniform() -> None:
    random = Random(3)
    found = [SeedDifference.of([random.gauss(0, 1) for _ in range(8)]) for _ in range(4000)]
    for level in (0.01, 0.05, 0.5):
        share = sum((one.p_value or 0.0) < level for one in found) / len(found)
        assert share == pytest.approx(level, abs=4 * math.sqrt(level * (1 - level) / 4000))


def test_differences_without_spread_or_a_second_seed_have_no_p_value() -> None:
    same = SeedDifference.of([0.25] * 8)
    assert (same.low, same.high, same.p_value) == (0.25, 0.25, None)
    assert SeedDifference.of([0.0] * 8).p_value == 1.0
    rounded = SeedDifference.of([(n + 0.1) - n for n in range(8)])
    assert rounded.p_value is None and rounded.low == rounded.high
    one = SeedDifference.of([0.25])
    assert (one.low, one.high, one.p_value) == (-math.inf, math.inf, None)
    assert math.isnan(SeedDifference.of([]).mean)


def test_mean_and_error() -> None:
    mean, error = mean_and_error([1.0, 2.0, 3.0])
    assert (mean, error) == (2.0, pytest.approx(1 / math.sqrt(3)))
    assert math.isnan(mean_and_error([1.0])[1])


def test_numbers_have_three_digits() -> None:
    found = [three_digits(value) for value in (0.0, 1234.5, 12.345, 0.012345, -0.5)]
    assert found == ["0", "1234", "12.3", "0.0123", "-0.500"]
