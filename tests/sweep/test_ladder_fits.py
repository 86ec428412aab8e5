"""Fits of ladders recover known curves, and their intervals have the stated coverage."""

from __future__ import annotations

import numpy as np
import pytest

from assay.sweep.fits import Form, fit, fit_with_intervals, predict_size, replicates

X = np.array([0.0, 100, 200, 400, 800, 1600, 3200])


def sigmoid(x: np.ndarray, ceiling: float = 0.8) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return 0.2 + (ceiling - 0.2) / (1 + (500 / x) ** 1.3)


def power(x: np.ndarray) -> np.ndarray:
    return np.concatenate([[0.1], 1 - 2.0 * x[1:] ** -0.2])


def seeds_of(curve: np.ndarray, seed: int, num_seeds: int = 3) -> np.ndarray:
    """Pass rates [S, K, Q] of seeds whose whole curve is shifted, with noise of the sampling."""
    rng = np.random.default_rng(seed)
    shift_S11 = rng.normal(0, 0.02, (num_seeds, 1, 1))
    noise_SK1 = rng.normal(0, 0.02, (num_seeds, len(curve), 1))
    difficulty_Q = rng.normal(0, 0.1, 40)
    return curve[None, :, None] + shift_S11 + noise_SK1 + difficulty_Q - difficulty_Q.mean()


def test_a_sigmoid_without_noise_is_recovered() -> None:
    own = fit("sigmoid", X, sigmoid(X)[None]).parameters
    found = {name: value[0] for name, value in own.items()}
    assert found["start"] == pytest.approx(0.2, abs=0.005)
    assert found["ceiling"] == pytest.approx(0.8, abs=0.005)
    assert found["midpoint"] == pytest.approx(500, rel=0.03)
    assert found["exponent"] == pytest.approx(1.3, rel=0.03)


def test_many_curves_are_fitted_as_each_alone() -> None:
    curves = np.stack([sigmoid(X), sigmoid(X, 0.6), np.linspace(0.1, 0.9, len(X))])
    both = fit("sigmoid", X, curves)
    for number, curve in enumerate(curves):
        alone = fit("sigmoid", X, curve[None])
        assert both.at(6400.0)[number] == pytest.approx(alone.at(6400.0)[0], abs=1e-9)


def test_a_power_law_without_noise_is_recovered() -> None:
    found = fit("power", X, power(X)[None])
    assert found.parameters["exponent"][0] == pytest.approx(0.2, rel=0.01)
    assert found.parameters["scale"][0] == pytest.approx(2.0, rel=0.03)
    assert found.at(3200.0)[0] == pytest.approx(power(X)[-1], abs=1e-3)


def test_no_fit_leaves_the_range_of_an_accuracy() -> None:
    rising = np.linspace(0, 1, len(X))[None] * 1.0
    falling = 1 - rising
    for form in ("sigmoid", "power"):
        both = fit(form, X, np.concatenate([rising, falling]))
        for x in (1.0, 1e3, 1e9):
            assert ((both.at(x) >= 0) & (both.at(x) <= 1)).all()


@pytest.mark.parametrize(("form", "curve"), [("sigmoid", sigmoid(X)), ("power", power(X))])
def test_intervals_cover_the_largest_budget_and_the_true_parameter(
    form: Form, curve: np.ndarray
) -> None:
    found = [
        fit_with_intervals(form, X, seeds_of(curve, seed), np.random.default_rng(seed))
        for seed in range(40)
    ]
    # With a coverage of 95 %, fewer than 34 of 40 have a chance of 1 %.
    assert sum(one.prediction.is_inside for one in found) >= 34
    name, truth = ("ceiling", 0.8) if form == "sigmoid" else ("exponent", 0.2)
    own = [one.parameters[name] for one in found]
    assert sum(one.low <= truth <= one.high for one in own) >= 34
    predicted = [one.prediction.predicted for one in found]
    assert np.median([one.high - one.low for one in predicted]) < 0.5


def test_a_curve_that_breaks_at_the_last_budget_is_outside() -> None:
    curve = sigmoid(X)
    curve[-1] = 0.1
    found = fit_with_intervals("sigmoid", X, seeds_of(curve, 0, 8), np.random.default_rng(0))
    assert not found.prediction.is_inside and found.prediction.error < -0.3


def test_replicates_of_a_mean_follow_students_t() -> None:
    """Coverage of the mean of three values by the interval of their replicates."""
    rng, hits = np.random.default_rng(1), 0
    for _ in range(300):
        values = rng.normal(0, 1, (3, 1))
        low, high = np.percentile(replicates(values - values.mean(0), rng), [2.5, 97.5])
        hits += low <= -values.mean() <= high
    assert 0.91 <= hits / 300 <= 0.99


@pytest.mark.parametrize(("large", "small"), [(0.28, 0.68), (0.04, 0.84), (0.03, 0.78)])
def test_the_largest_size_is_predicted_from_smaller_sizes(large: float, small: float) -> None:
    """Also where its error is much smaller: equal noise in accuracy is then larger in log(1 - y).

    large, small: errors of the largest size at the last budget, and of the smallest at the first.
    """
    weights, x = np.array([1e4, 4e4, 1.6e5]), X[1:]
    power = (np.log(small / large) - 0.2 * np.log(x[-1] / x[0])) / np.log(weights[-1] / weights[0])
    error_AK = small * (weights[:, None] / weights[0]) ** -power * (x / x[0]) ** -0.2
    inside = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        # Every size has seeds of its own.
        noise_SAK = rng.normal(0, 0.01, (3, 3, 1)) + rng.normal(0, 0.01, (3, 3, len(x)))
        found = predict_size(weights, x, 1 - error_AK + noise_SAK, rng)
        inside += found.is_inside
        assert found.error == pytest.approx(0, abs=0.15)
    assert inside >= 34


def test_equal_data_gives_equal_fits() -> None:
    data = seeds_of(sigmoid(X), 5)
    first, again = (
        fit_with_intervals("sigmoid", X, data, np.random.default_rng(3)) for _ in range(2)
    )
    assert first == again
