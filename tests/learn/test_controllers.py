"""Dynamic weights move as their papers say, and only those that have a target."""

import math

import pytest

from assay.learn.algorithms import algorithm
from assay.learn.update import next_kl_weight, next_penalty_weight, steer


@pytest.mark.parametrize(
    ("kl", "want"),
    [
        (0.0, 0.5),
        (0.0066, 0.5),
        (0.0067, 1.0),
        (0.01, 1.0),
        (0.0149, 1.0),
        (0.0151, 2.0),
        (9.0, 2.0),
        (math.inf, 2.0),
        (math.nan, 1.0),
    ],
)
def test_the_penalty_doubles_and_halves_outside_its_band(kl: float, want: float) -> None:
    assert next_penalty_weight(1.0, kl, 0.01) == want


@pytest.mark.parametrize(
    ("kl", "factor"),
    [
        (6.0, 1.0),
        (6.6, 1.0 + 0.1 * 64 / 1000),
        (5.4, 1.0 - 0.1 * 64 / 1000),
        (7.2, 1.0 + 0.2 * 64 / 1000),
        (1e9, 1.0 + 0.2 * 64 / 1000),
        (math.inf, 1.0 + 0.2 * 64 / 1000),
        (0.0, 1.0 - 0.2 * 64 / 1000),
        (math.nan, 1.0),
    ],
)
def test_the_reference_kl_is_answered_in_proportion_up_to_a_fifth(kl: float, factor: float) -> None:
    assert next_kl_weight(0.1, kl, 6.0, 64, 1000.0) == pytest.approx(0.1 * factor, rel=1e-12)


def test_zieglers_gain_is_a_horizon_of_ten_steps() -> None:
    """K = 0.1 in the paper: ten batches a horizon."""
    assert next_kl_weight(1.0, 7.2, 6.0, 512, 5120.0) == pytest.approx(1.0 + 0.1 * 0.2)


def test_no_step_takes_the_weight_away() -> None:
    assert next_kl_weight(1.0, 0.0, 6.0, 100_000, 1.0) == pytest.approx(0.8)


def test_a_kl_that_stays_too_high_is_answered_until_it_does_not() -> None:
    weight = 0.01
    for _ in range(2000):  # a policy whose KL is held down by the weight
        weight = next_kl_weight(weight, 1.0 / weight, 6.0, 64, 640.0)
    assert 1.0 / weight == pytest.approx(6.0, rel=1e-3)


def test_a_penalty_can_always_come_back() -> None:
    weight = 1.0
    for _ in range(3000):
        weight = next_penalty_weight(weight, 0.0, 0.01)
    assert next_penalty_weight(weight, 1.0, 0.01) == 2 * weight > 0


def test_only_weights_with_a_target_move() -> None:
    row = algorithm("grpo", kl_weight=0.1, penalty_weight=1.0)
    assert steer(row, kl=9.0, old_kl=9.0, num_completions=8) == row
    both = algorithm(
        "grpo",
        kl_weight=0.1,
        kl_target=1.0,
        kl_horizon=80.0,
        penalty_weight=1.0,
        penalty_target=0.01,
    )
    assert steer(both, kl=None, old_kl=None, num_completions=8) == both
    moved = steer(both, kl=9.0, old_kl=9.0, num_completions=8)
    assert moved.kl_weight == pytest.approx(0.1 * (1 + 0.2 * 0.1))
    assert moved.penalty_weight == 2.0
