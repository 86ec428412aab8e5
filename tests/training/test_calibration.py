"""Calibration against hand computations and slow loops."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.learn.reward_losses import RewardObjective
from assay.model.score_batch import ScoredGroup, ScoredText
from assay.training.calibration import calibrate
from assay.training.reward_evaluation import (
    auroc,
    evaluate_reward_model,
    first_error_facts,
)


def test_calibration_errors_equal_those_by_hand() -> None:
    """Two bins of width 1/2: three predictions of mean 0.2, one of which came true, and one of 0.9 that did."""
    predicted, observed = np.array([0.1, 0.2, 0.3, 0.9]), np.array([0.0, 0.0, 1.0, 1.0])
    found = calibrate(predicted, observed, num_bins=2)
    assert found.ece == pytest.approx(3 / 4 * abs(1 / 3 - 0.2) + 1 / 4 * 0.1)
    assert found.adaptive_ece == pytest.approx(0.5 * abs(0.0 - 0.15) + 0.5 * abs(1.0 - 0.6))
    assert found.brier == pytest.approx((0.01 + 0.04 + 0.49 + 0.01) / 4)
    logs = [math.log(0.9), math.log(0.8), math.log(0.3), math.log(0.9)]
    assert found.log_loss == pytest.approx(-sum(logs) / 4)
    assert [(one.count, one.observed) for one in found.reliability] == [(3, 1 / 3), (1, 1.0)]
    assert found.as_row()["eval/reliability"][1] == [1, pytest.approx(0.9), 1.0]


def slow_ece(predicted: list[float], observed: list[float], edges: list[list[int]]) -> float:
    total = 0.0
    for members in edges:
        if members:
            p = sum(predicted[n] for n in members) / len(members)
            y = sum(observed[n] for n in members) / len(members)
            total += len(members) / len(predicted) * abs(p - y)
    return total


rows = st.lists(
    st.tuples(st.floats(0, 1), st.sampled_from([0.0, 0.25, 1.0])), min_size=1, max_size=40
)


@given(rows, st.integers(1, 15))
def test_bins_by_a_slow_loop(pairs: list[tuple[float, float]], num_bins: int) -> None:
    predicted, observed = [p for p, _ in pairs], [y for _, y in pairs]
    found = calibrate(np.array(predicted), np.array(observed), num_bins)
    width: list[list[int]] = [[] for _ in range(num_bins)]
    for n, p in enumerate(predicted):
        width[min(int(p * num_bins), num_bins - 1)].append(n)
    assert found.ece == pytest.approx(slow_ece(predicted, observed, width), abs=1e-9)
    order = sorted(range(len(pairs)), key=lambda n: predicted[n])
    count: list[list[int]] = [[] for _ in range(num_bins)]
    for rank, n in enumerate(order):
        count[rank * num_bins // len(pairs)].append(n)
    assert found.adaptive_ece == pytest.approx(slow_ece(predicted, observed, count), abs=1e-9)
    assert sum(one.count for one in found.reliability) == len(pairs)


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=2, max_size=30))
def test_auroc_counts_pairs(drawn: list[tuple[int, bool]]) -> None:
    right = [p for p, y in drawn if y]
    wrong = [p for p, y in drawn if not y]
    found = auroc(np.array([float(p) for p, _ in drawn]), np.array([y for _, y in drawn]))
    if not right or not wrong:
        assert math.isnan(found)
        return
    wins = sum((a > b) + 0.5 * (a == b) for a in right for b in wrong)
    assert found == pytest.approx(wins / (len(right) * len(wrong)))


def test_the_first_wrong_step_is_found_or_not() -> None:
    """Found; called one too early; a right completion left alone; a right one blamed."""
    scores = [[2.0, -1.0, 3.0], [-1.0, -1.0], [1.0, 1.0], [1.0, -0.1]]
    labels = [[1.0, 0.2, 0.0], [1.0, 0.0], [1.0, 0.5], [1.0, 1.0]]
    facts = first_error_facts([np.array(one) for one in scores], [np.array(one) for one in labels])
    assert facts["first_error"] == 0.5
    assert facts["first_error_wrong"] == facts["first_error_right"] == 0.5
    assert facts["first_error_f1"] == pytest.approx(0.5)


@dataclass
class Fixed:
    """A learner whose scores are given."""

    objective: RewardObjective
    given: list[list[float]]

    def scores(self, groups: Any) -> list[np.ndarray]:
        return [np.array(one, np.float32) for one in self.given]


def group(*labels: list[float]) -> ScoredGroup:
    texts = [
        ScoredText(
            np.arange(len(one), dtype=np.int32),
            np.arange(len(one), dtype=np.int32),
            np.array(one, np.float32),
        )
        for one in labels
    ]
    return ScoredGroup(tuple(texts))


def test_pairs_are_seen_in_both_orders() -> None:
    fixed: Any = Fixed(RewardObjective("preference"), [[2.0], [0.0], [1.0], [1.0], [0.0], [3.0]])
    row = evaluate_reward_model(fixed, [group([1.0], [0.0])] * 3).as_row()
    assert row["eval/kind"] == "pairs" and row["eval/num_problems"] == 3
    assert row["eval/pass_at_1"] == pytest.approx(0.5), "one right, one tie, one wrong"
    assert row["eval/margin"] == pytest.approx(-1 / 3)
    p = 1 / (1 + math.exp(-2.0))
    q = 1 / (1 + math.exp(3.0))
    assert row["eval/brier"] == pytest.approx(((1 - p) ** 2 + 0.25 + (1 - q) ** 2) / 3)
    counts = [count for count, _, _ in row["eval/reliability"]]
    assert sum(counts) == 6


def test_length_bias_of_a_pairwise_reward_model() -> None:
    """It scores a text by its length alone: right where the better one is longer, else wrong."""
    short, long = [1.0] * 2, [1.0] * 7
    pairs = [group(long, short), group(long, short), group(short, long), group(short, short)]
    scores = [[float(len(text.tokens))] for pair in pairs for text in pair.texts]
    fixed: Any = Fixed(RewardObjective("preference"), scores)
    row = evaluate_reward_model(fixed, pairs).as_row()
    assert row["eval/chosen_longer"] == 1.0 and row["eval/chosen_shorter"] == 0.0
    assert row["eval/length_correlation"] == pytest.approx(1.0)
    alike: Any = Fixed(RewardObjective("preference"), [[1.0], [1.0]])
    row = evaluate_reward_model(alike, [group(short, short)]).as_row()
    assert not {"eval/chosen_longer", "eval/length_correlation"} & {*row}


def test_of_a_completion_the_last_token_counts() -> None:
    fixed: Any = Fixed(RewardObjective("outcome"), [[-9.0, 1.0], [9.0, 9.0, -1.0], [2.0]])
    row = evaluate_reward_model(fixed, [group([1.0, 1.0]), group([0.0] * 3), group([0.0])]).as_row()
    assert row["eval/pass_at_1"] == pytest.approx(2 / 3) and row["eval/kind"] == "completions"
    assert row["eval/auroc"] == 0.5 and row["eval/right_share"] == pytest.approx(1 / 3)


def test_every_step_counts_once() -> None:
    fixed: Any = Fixed(RewardObjective("process"), [[1.0, -1.0], [1.0]])
    row = evaluate_reward_model(fixed, [group([1.0, 1.0]), group([0.75])]).as_row()
    assert row["eval/pass_at_1"] == pytest.approx(2 / 3) and row["eval/kind"] == "steps"
    assert row["eval/first_error"] == 0.5 and "eval/first_error_f1" not in row
    assert "eval/auroc" not in row, "nothing is wrong"
