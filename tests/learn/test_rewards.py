import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from learn_batches import make_batch, scored

from assay.learn.algorithms import algorithm
from assay.learn.losses import row_sums
from assay.learn.rewards import (
    overlong_penalty,
    reward_parts,
    shape_rewards,
    token_kl,
    token_rewards,
)
from assay.model.packing import Batch


def a_batch() -> Batch:
    return scored(
        make_batch(
            [[1.0, 0.25, 0.5], [0.0, None, 1.0]],
            [[2, 3, 4], [5, 2, 1]],
            unsampled=[(0, 1, 2), (0, 2, 0), (1, 0, 4)],
        )
    )


def test_overlong_penalty_by_hand() -> None:
    length_R = torch.tensor([1, 15, 16, 17, 18, 20, 25])
    penalty = overlong_penalty(length_R, max_tokens=20, buffer=4)
    assert penalty.tolist() == [0, 0, 0, -0.25, -0.5, -1, -1]


def test_overlong_penalty_enters_the_reward() -> None:
    batch = make_batch([[1.0, 1.0]], [[8, 5]])
    row = algorithm("dapo", max_tokens=8, overlong_buffer=4)
    assert shape_rewards(batch, row).tolist() == [0.0, 0.75]
    parts = reward_parts(batch, row)
    assert {name: part.tolist() for name, part in parts.items()} == {
        "outcome": [1.0, 1.0],
        "overlong": [-1.0, -0.25],
    }


@pytest.mark.parametrize("clamp", [False, True])
@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_token_rewards_equal_the_loop(estimator: str, clamp: bool) -> None:
    """Each sampled token is charged its KL; the last sampled one earns the outcome."""
    batch = a_batch()
    row = algorithm("ppo", kl_weight=0.1, kl_estimator=estimator, kl_clamp=clamp)
    assert batch.old_logprobs_T is not None and batch.ref_logprobs_T is not None
    got = token_rewards(batch, row)
    seen = set()
    for token in reversed(range(batch.num_tokens)):
        number = int(batch.row_T[token])
        expected = 0.0
        if batch.sampled_T[token] and batch.judged_R[number]:
            d = float(batch.old_logprobs_T[token]) - float(batch.ref_logprobs_T[token])
            kl = {"k1": d, "k2": d * d / 2, "k3": math.exp(-d) - 1 + d}[estimator]
            expected = -0.1 * (max(kl, 0.0) if clamp else kl)
            if number not in seen:
                expected += float(batch.rewards_R[number])
            seen.add(number)
        assert got[token].item() == pytest.approx(expected, abs=1e-12)
    assert seen == {0, 1, 2, 3, 5}
    if clamp and estimator == "k1":
        unclamped = algorithm("ppo", kl_weight=0.1)
        assert (token_kl(batch, unclamped) < 0).any()


@pytest.mark.parametrize(
    "changes",
    [{}, {"overlong_buffer": 3}, {"kl_weight": 0.0}, {"kl_clamp": True, "outcome_gate": True}],
)
def test_a_rows_token_rewards_add_up_to_its_reward(changes: dict[str, Any]) -> None:
    batch = a_batch()
    row = algorithm("ppo", max_tokens=5, **changes)
    sums_R = row_sums(token_rewards(batch, row), batch.row_T, batch.num_rows)
    want_R = shape_rewards(batch, row)
    assert sums_R[4] == 0 and want_R[4].isnan()  # not judged
    keep = [0, 1, 2, 3, 5]
    torch.testing.assert_close(sums_R[keep], want_R[keep])
    parts = reward_parts(batch, row)
    torch.testing.assert_close(torch.stack(list(parts.values())).sum(0)[keep], want_R[keep])
    assert ("kl" in parts) == (row.kl_weight > 0)


def test_a_kl_that_is_not_a_number_stays_in_its_completion() -> None:
    batch = a_batch()
    assert batch.old_logprobs_T is not None
    old_T = batch.old_logprobs_T.masked_fill(batch.row_T == 4, math.nan)
    rewards_T = token_rewards(replace(batch, old_logprobs_T=old_T), algorithm("ppo"))
    assert rewards_T.isfinite().all()


def test_a_kl_in_the_reward_needs_a_scored_batch() -> None:
    for credit in ("to_go", "completion"):
        row = algorithm("rloo", kl_weight=0.1, credit=credit)
        with pytest.raises(ValueError, match=r"Learner\.score"):
            reward_parts(make_batch([[1.0, 0.0]]), row)


def shaped() -> Batch:
    """Four groups: one with a pass, one of failures, one of not judged passes, one without judgement."""
    batch = make_batch([[1.1, 0.2], [0.3, -0.2], [None, 0.4], [None, None]], [[2, 3]] * 4)
    nan = math.nan
    return replace(
        batch,
        scores_R=torch.tensor([1.0, 0.0, 0.0, 0.5, nan, 0.0, nan, nan]),
        correct_R=torch.tensor([1.0, 0.0, 0.0, 0.0, nan, 0.0, nan, nan]),
    )


def test_the_outcome_gate_is_shut_where_no_judged_completion_passed() -> None:
    batch = shaped()
    rewards_R = shape_rewards(batch, algorithm("grpo", outcome_gate=True))
    assert rewards_R[:4].tolist() == pytest.approx([1.1, 0.2, 0.0, 0.5])
    assert rewards_R[5] == 0.0 and rewards_R[[4, 6, 7]].isnan().all()
    unjudged = replace(batch, judged_R=batch.judged_R & (torch.arange(8) != 0))
    assert shape_rewards(unjudged, algorithm("grpo", outcome_gate=True))[1] == 0.0


def test_the_outcome_gate_holds_the_overlong_punishment_too() -> None:
    row = algorithm("dapo", max_tokens=3, overlong_buffer=2, outcome_gate=True)
    overlong_R = reward_parts(shaped(), row)["overlong"]
    assert overlong_R.tolist() == [-0.5, -1.0] + [0.0] * 6


def test_positives_only_count_one_each() -> None:
    rewards_R = shape_rewards(shaped(), algorithm("rft"))
    assert rewards_R[:4].tolist() == [1.0, 0.0, 0.0, 0.0]
    relative = algorithm("rft", baseline="mean")
    assert shape_rewards(shaped(), relative)[0].item() == pytest.approx(1.1)
