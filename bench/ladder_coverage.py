"""How often the intervals of a ladder contain the truth, on simulated ladders.

    python -m bench.ladder_coverage

A simulated ladder has three seeds and six budgets. The whole curve of a seed is shifted, and each
evaluation has noise of its own.
"""

from __future__ import annotations

import argparse

import numpy as np

from assay.sweep.fits import Form, fit_with_intervals, predict_size

X = np.array([0.0, 100, 200, 400, 800, 1600, 3200])
NUM_SEEDS, NUM_PROBLEMS = 3, 40
WEIGHTS = np.array([1e4, 4e4, 1.6e5])
SIZES = (
    (0.28, 0.68, 0.1),
    (0.04, 0.84, 0.2),
    (0.05, 0.57, 0.2),
    (0.03, 0.78, 0.2),
    (0.03, 0.78, 0.4),
)
"""(error of the largest size at the last budget, error of the smallest size at the first budget,
exponent of the budget) of the simulated sizes."""


def curve_of(form: Form) -> np.ndarray:
    """Return the true accuracy at each budget."""
    if form == "power":
        return np.concatenate([[0.1], 1 - 2.0 * X[1:] ** -0.2])
    with np.errstate(divide="ignore"):
        return 0.2 + 0.6 / (1 + (500 / X) ** 1.3)


def within(form: Form, count: int) -> tuple[float, float, float]:
    """Return the share of predictions and of parameters inside their intervals, and the median
    width of a prediction."""
    curve, inside, covered, widths = curve_of(form), 0, 0, list[float]()
    name, truth = ("ceiling", 0.8) if form == "sigmoid" else ("exponent", 0.2)
    for seed in range(1000, 1000 + count):
        rng = np.random.default_rng(seed)
        shift = rng.normal(0, 0.02, (NUM_SEEDS, 1, 1))
        noise = rng.normal(0, 0.02, (NUM_SEEDS, len(X), 1))
        difficulty = rng.normal(0, 0.1, NUM_PROBLEMS)
        rates = curve[None, :, None] + shift + noise + difficulty - difficulty.mean()
        found = fit_with_intervals(form, X, rates, np.random.default_rng(seed))
        inside += found.prediction.is_inside
        covered += found.parameters[name].low <= truth <= found.parameters[name].high
        widths.append(found.prediction.predicted.high - found.prediction.predicted.low)
    return inside / count, covered / count, float(np.median(widths))


def across(large: float, small: float, exponent: float, count: int) -> float:
    """Return the share of predictions from smaller sizes inside their intervals."""
    x, inside = X[1:], 0
    falls = np.log(small / large) - exponent * np.log(x[-1] / x[0])
    power = falls / np.log(WEIGHTS[-1] / WEIGHTS[0])
    error = small * (WEIGHTS[:, None] / WEIGHTS[0]) ** -power * (x / x[0]) ** -exponent
    for seed in range(count):
        rng = np.random.default_rng(seed)
        noise = rng.normal(0, 0.01, (NUM_SEEDS, 3, 1)) + rng.normal(0, 0.01, (NUM_SEEDS, 3, len(x)))
        inside += predict_size(WEIGHTS, x, 1 - error + noise, rng).is_inside
    return inside / count


def main() -> None:
    """Print the coverage of each interval."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200, help="simulated ladders of each kind")
    count = parser.parse_args().count
    for form in ("sigmoid", "power"):
        inside, covered, width = within(form, count)
        print(f"{form}: prediction {inside:.1%}, parameter {covered:.1%}, median width {width:.3f}")
    for sizes in SIZES:
        print(f"from smaller sizes, errors {sizes}: {across(*sizes, count):.1%}", flush=True)


if __name__ == "__main__":
    main()
