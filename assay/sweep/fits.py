"""Fits of accuracy against compute: a sigmoid and a power law, with intervals.

The sigmoid is that of Khatri et al. 2025 (arXiv 2510.13786, equation 1):

    y(x) = R0 + (A - R0) / (1 + (m / x)^B)

with the accuracy R0 before RL, the ceiling A, the midpoint m and the exponent B. The power law is
1 - y(x) = b x^-c. Both are linear in all but one or two parameters. The fit tries a grid of the
nonlinear parameters and solves for the others (Golub and Pereyra 1973), so it has no local minima
and needs no start values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

Form = Literal["sigmoid", "power"]
FORMS: tuple[Form, ...] = ("sigmoid", "power")
NUM_REPLICATES = 300
# A sigmoid's midpoint above four times the largest budget is not identified:
# the data show only the start of the rise.
# A midpoint below a quarter of the smallest budget is not identified either.
_OUTSIDE = 4.0
_TAILS = (2.5, 97.5)


@dataclass(frozen=True)
class Curve:
    """Fitted curves. parameters: one value per fitted curve, by name."""

    form: Form
    parameters: Mapping[str, np.ndarray]

    def at(self, x: float) -> np.ndarray:
        """Return the accuracy of each curve at a compute of x > 0."""
        own = self.parameters
        if self.form == "power":
            return np.clip(1.0 - own["scale"] * x ** -own["exponent"], 0.0, 1.0)
        share = 1.0 / (1.0 + (own["midpoint"] / x) ** own["exponent"])
        return own["start"] + (own["ceiling"] - own["start"]) * share


def fit(form: Form, x: np.ndarray, y: np.ndarray) -> Curve:
    """Fit curves by least squares.

    x: [K] compute, rising. x[0] is 0, the state before RL, which the power law leaves out. y:
    [N, K] accuracies of N curves.
    """
    return _fit_power(x[1:], y[:, 1:]) if form == "power" else _fit_sigmoid(x, y)


def _fit_sigmoid(x: np.ndarray, y: np.ndarray) -> Curve:
    low, high = np.log([0.25, x[1] / _OUTSIDE]), np.log([8.0, x[-1] * _OUTSIDE])
    sizes = np.array([20, 32])
    axes = [np.linspace(*ends) for ends in zip(low, high, sizes, strict=True)]
    # [N or 1, G, 2]: logarithms of exponent and midpoint.
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(1, -1, 2)
    step, near = (high - low) / (sizes - 1), np.linspace(-1.0, 1.0, 9)
    around = np.stack(np.meshgrid(near, near, indexing="ij"), -1).reshape(1, -1, 2)
    best_N2, linear_N2 = _best_sigmoid(x, y, grid)
    # Each pass searches a finer grid around each curve's own best point.
    for _ in range(3):
        grid = np.clip(best_N2[:, None] + around * step, low, high)
        best_N2, linear_N2 = _best_sigmoid(x, y, grid)
        step = step / 4
    return Curve(
        "sigmoid",
        {
            "start": linear_N2[:, 0],
            "ceiling": linear_N2[:, 1],
            "midpoint": np.exp(best_N2[:, 1]),
            "exponent": np.exp(best_N2[:, 0]),
        },
    )


def _best_sigmoid(x: np.ndarray, y: np.ndarray, grid: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the best point of a grid for each curve, and its start and ceiling, as [N, 2]."""
    share = np.zeros((*grid.shape[:2], len(x)))
    exponent, midpoint = np.exp(grid[..., :1]), grid[..., 1:]
    share[..., 1:] = 1.0 / (1.0 + np.exp(exponent * (midpoint - np.log(x[1:]))))
    rest = 1.0 - share
    # Normal equations of y = R0 (1 - h) + A h for every point of the grid.
    rest_2, both, share_2 = (rest**2).sum(-1), (rest * share).sum(-1), (share**2).sum(-1)
    of_rest, of_share = ((y[:, None] @ one.swapaxes(-1, -2))[:, 0] for one in (rest, share))
    determinant = np.maximum(rest_2 * share_2 - both**2, 1e-12)
    ceiling = np.clip((rest_2 * of_share - both * of_rest) / determinant, 0.0, 1.0)
    start = np.clip((of_rest - both * ceiling) / rest_2, 0.0, 1.0)
    # A clipped start changes the best ceiling.
    ceiling = np.clip((of_share - both * start) / share_2, 0.0, 1.0)
    error = start**2 * rest_2 + 2 * start * ceiling * both + ceiling**2 * share_2
    error = error - 2 * (start * of_rest + ceiling * of_share)
    best, rows = error.argmin(1), np.arange(len(y))
    points = np.broadcast_to(grid, (len(y), *grid.shape[1:]))[rows, best]
    return points, np.stack([start[rows, best], ceiling[rows, best]], 1)


def _fit_power(x: np.ndarray, y: np.ndarray) -> Curve:
    exponent_G = np.concatenate([[0.0], np.geomspace(1e-3, 4.0, 600)])
    power_GK = (x / x[-1]) ** -exponent_G[:, None]
    squares_G, product_NG = (power_GK**2).sum(1), (1.0 - y) @ power_GK.T
    scale_NG = np.maximum(product_NG / squares_G, 0.0)
    best = (scale_NG**2 * squares_G - 2 * scale_NG * product_NG).argmin(1)
    exponent, scale = exponent_G[best], scale_NG[np.arange(len(y)), best]
    return Curve("power", {"scale": scale * x[-1] ** exponent, "exponent": exponent})


def replicates(
    deviations: np.ndarray, rng: np.random.Generator, count: int = NUM_REPLICATES
) -> np.ndarray:
    """Return random errors of the mean of a few rows (multiplier bootstrap).

    deviations: [S, K] rows minus their mean. Returns [count, K]. The errors have the covariance
    S_dev / (S (S - 1)), and Student's t with S - 1 degrees of freedom for every weighted sum of
    columns. Resampled rows would be too narrow for three seeds.
    """
    rows = len(deviations)
    weights = rng.standard_normal((count, rows))
    scale = np.sqrt(rng.chisquare(rows - 1, count) / (rows - 1))
    return (weights / scale[:, None]) @ deviations / np.sqrt(rows * (rows - 1))


@dataclass(frozen=True)
class Estimate:
    """A number with its 95 % interval."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, value: float, draws: np.ndarray) -> Estimate:
        """Return a value with the percentile interval of its bootstrap draws."""
        low, high = np.percentile(draws, _TAILS)
        return cls(float(value), float(low), float(high))


@dataclass(frozen=True)
class Prediction:
    """Accuracy at the largest budget, predicted from the smaller ones, and the measured one."""

    predicted: Estimate
    observed: float

    @property
    def error(self) -> float:
        """Measured minus predicted accuracy."""
        return self.observed - self.predicted.value

    @property
    def is_inside(self) -> bool:
        """Whether the measured accuracy is in the 95 % prediction interval."""
        return self.predicted.low <= self.observed <= self.predicted.high


@dataclass(frozen=True)
class CurveFit:
    """A fit of one model size. rmse: root of the mean squared residual, in accuracy."""

    form: Form
    parameters: Mapping[str, Estimate]
    rmse: float
    prediction: Prediction

    @property
    def curve(self) -> Curve:
        """The fitted curve."""
        return Curve(self.form, {k: np.array([v.value]) for k, v in self.parameters.items()})


def fit_with_intervals(
    form: Form, x: np.ndarray, y_SKQ: np.ndarray, rng: np.random.Generator
) -> CurveFit:
    """Fit the mean of all seeds, and predict the largest budget from the smaller ones.

    x: [K], see `fit`. y_SKQ: pass rates by seed, budget and problem. Intervals of parameters cover
    other seeds and other problems. The prediction interval covers other seeds only, because the
    largest budget is measured on the same problems.
    """
    y_SK, y_K = y_SKQ.mean(2), y_SKQ.mean((0, 2))
    of_seeds_SK = y_SK - y_K
    by_problem_QK = (y_SKQ.mean(0) - y_K[:, None]).T
    # A good seed is good at every budget, so its offset moves prediction and measurement alike.
    offset_S1 = of_seeds_SK[:, 1:-1].mean(1, keepdims=True)
    both = replicates(np.concatenate([of_seeds_SK, offset_S1], 1), rng)
    noise_NK, offset_N = both[:, :-1], both[:, -1]
    found = fit(form, x, y_K[None])
    wide = fit(form, x, y_K + noise_NK + replicates(by_problem_QK, rng))
    parameters = {
        name: Estimate.of(value[0], wide.parameters[name])
        for name, value in found.parameters.items()
    }
    fitted = np.array([found.at(one)[0] for one in x[1:]])
    rmse = float(np.sqrt(np.mean((fitted - y_K[1:]) ** 2)))
    # The noise of the largest budget is estimated from the smaller ones, since the prediction must
    # not use it. Its degrees of freedom are those of a table of seeds times budgets.
    rest_SK = of_seeds_SK[:, 1:-1] - offset_S1
    seeds, budgets = rest_SK.shape
    degrees = (seeds - 1) * (budgets - 1)
    error = np.sqrt((rest_SK**2).sum() / degrees / seeds)
    own_N = error * rng.standard_t(degrees, len(noise_NK))
    before = fit(form, x[:-1], y_K[None, :-1]).at(x[-1])[0]
    draws = fit(form, x[:-1], y_K[:-1] + noise_NK[:, :-1]).at(x[-1]) - offset_N + own_N
    predicted = Estimate.of(before, np.clip(draws, 0.0, 1.0))
    return CurveFit(form, parameters, rmse, Prediction(predicted, float(y_K[-1])))


def predict_size(
    weights: np.ndarray, x: np.ndarray, y_SAK: np.ndarray, rng: np.random.Generator
) -> Prediction:
    """Predict the largest size at the largest budget from all budgets of the smaller sizes.

    The form is log(1 - y) = a - alpha log(weights) - beta log(x), fitted by least squares. weights:
    [A] rising. x: [K] compute without 0. y_SAK: accuracies by seed, size and budget.
    """
    error_SAK = np.log(np.clip(1.0 - y_SAK, 1e-3, None))
    size_AK, compute_AK = np.meshgrid(np.log(weights), np.log(x), indexing="ij")
    design = np.stack([np.ones(size_AK[:-1].size), size_AK[:-1].ravel(), compute_AK[:-1].ravel()])
    solve = np.linalg.pinv(design.T)
    target = np.array([1.0, np.log(weights[-1]), np.log(x[-1])])
    flat_SP = error_SAK[:, :-1].reshape(len(error_SAK), -1)
    mean_P = flat_SP.mean(0)
    noise_NP = replicates(flat_SP - mean_P, rng)
    # The seeds of the largest size have noise of their own. It is taken from the smaller sizes in
    # accuracy, because equal noise in accuracy is larger in log(1 - y) where 1 - y is smaller.
    small_SP = y_SAK[:, :-1].reshape(len(y_SAK), -1)
    spread_S1 = np.sqrt(((small_SP - small_SP.mean(0)) ** 2).mean(1, keepdims=True))
    before = 1.0 - np.exp(target @ solve @ mean_P)
    draws = 1.0 - np.exp((mean_P + noise_NP) @ (target @ solve)) + replicates(spread_S1, rng)[:, 0]
    predicted = Estimate.of(before, np.clip(draws, 0.0, 1.0))
    return Prediction(predicted, float(y_SAK[:, -1, -1].mean()))
