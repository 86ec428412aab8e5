import math
import statistics
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from learn_batches import make_batch, scored

from assay.learn.advantages import (
    compute_advantages,
    group_advantages,
    loss_mask,
    overlong_penalty,
    shape_rewards,
)
from assay.learn.algorithms import algorithm

REWARDS = st.lists(
    st.lists(st.none() | st.floats(-2, 2, allow_subnormal=False), min_size=1, max_size=6),
    min_size=1,
    max_size=4,
)


def slow_group(rewards: list[float | None], baseline: str, scale: str, ddof: int) -> list[float]:
    """One group's advantages, straight from the equations."""
    judged = [reward for reward in rewards if reward is not None]
    advantages: list[float] = []
    for index, reward in enumerate(rewards):
        others = [r for n, r in enumerate(rewards) if n != index and r is not None]
        if reward is None or (baseline != "none" and not others):
            advantages.append(0.0)
            continue
        base = {
            "mean": statistics.fmean(judged),
            "leave_one_out": statistics.fmean(others or [0.0]),
            "none": 0.0,
        }[baseline]
        value = reward - base
        if scale == "std" and len(judged) > ddof and len(set(judged)) > 1:
            squares = sum((r - statistics.fmean(judged)) ** 2 for r in judged)
            value /= math.sqrt(squares / (len(judged) - ddof)) + 1e-4
        advantages.append(value)
    return advantages


@pytest.mark.parametrize("baseline", ["mean", "leave_one_out", "none"])
@pytest.mark.parametrize("scale", ["std", "none"])
@pytest.mark.parametrize("ddof", [0, 1])
@settings(max_examples=60, deadline=None)
@given(rewards=REWARDS)
def test_group_advantages_equal_the_slow_ones(
    rewards: list[list[float | None]], baseline: str, scale: str, ddof: int
) -> None:
    flat = [reward for group in rewards for reward in group]
    got = group_advantages(
        torch.tensor([math.nan if r is None else r for r in flat], dtype=torch.float64),
        torch.tensor([r is not None for r in flat]),
        torch.tensor([n for n, group in enumerate(rewards) for _ in group]),
        len(rewards),
        baseline=baseline,  # type: ignore[arg-type]
        scale=scale,  # type: ignore[arg-type]
        std_ddof=ddof,
    )
    want = [a for group in rewards for a in slow_group(group, baseline, scale, ddof)]
    torch.testing.assert_close(got, torch.tensor(want, dtype=torch.float64), rtol=1e-9, atol=1e-9)


def test_grpo_standardizes() -> None:
    batch = make_batch([[1.0, 0.0, 0.0, 1.0]])
    row_advantages = compute_advantages(batch, algorithm("grpo"))
    std = math.sqrt(4 * 0.25 / 3)  # ddof 1
    for row, sign in enumerate([1, -1, -1, 1]):
        filled = row_advantages[batch.row_T == row]
        assert filled.tolist() == pytest.approx([sign * 0.5 / (std + 1e-4)] * len(filled))


def test_rloo_is_dr_grpo_scaled() -> None:
    """A - mean of the others = G/(G-1) (A - mean of all)."""
    batch = make_batch([[1.0, 0.25, 0.0], [0.0, 0.0, 0.5]])
    rloo = compute_advantages(batch, algorithm("rloo"))
    dr_grpo = compute_advantages(batch, algorithm("dr_grpo"))
    torch.testing.assert_close(rloo, dr_grpo * 3 / 2)


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo", "dapo"])
@pytest.mark.parametrize("reward", [0.1, 1 / 3, 0.7, -0.3])
def test_equal_rewards_are_exact_zeros(name: str, reward: float) -> None:
    batch = make_batch([[reward] * 7])
    assert not compute_advantages(batch, algorithm(name, max_tokens=100)).any()


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo", "dapo"])
def test_not_judged_touches_no_sibling(name: str) -> None:
    row = algorithm(name, max_tokens=100)
    with_hole = make_batch([[1.0, None, 0.0, 0.5]], [[3, 4, 2, 5]])
    advantages_T = compute_advantages(with_hole, row)
    without = make_batch([[1.0, 0.0, 0.5]], [[3, 2, 5]])
    kept_T = advantages_T[with_hole.row_T != 1]
    torch.testing.assert_close(kept_T, compute_advantages(without, row))
    assert not advantages_T[with_hole.row_T == 1].any()
    assert not loss_mask(with_hole, row)[with_hole.row_T == 1].any()


def test_one_judged_sibling_carries_no_gradient() -> None:
    batch = make_batch([[1.0, None, None], [1.0, 0.0, None], [None, None]])
    mask_T = loss_mask(batch, algorithm("rloo"))
    assert sorted(set(batch.row_T[mask_T].tolist())) == [3, 4]
    assert not compute_advantages(batch, algorithm("rloo"))[~mask_T].any()
    lonely = algorithm("rloo", baseline="none")
    assert sorted(set(batch.row_T[loss_mask(batch, lonely)].tolist())) == [0, 3, 4]


def test_reward_that_is_not_finite_counts_as_not_judged() -> None:
    batch = make_batch([[1.0, 0.0, 0.5, 0.5]])
    rewards_R = batch.rewards_R.clone()
    rewards_R[3] = math.inf
    batch = replace(batch, rewards_R=rewards_R)
    advantages_T = compute_advantages(batch, algorithm("grpo"))
    assert advantages_T.isfinite().all()
    assert not advantages_T[batch.row_T == 3].any()


def test_truncated_counts_in_the_baseline_only() -> None:
    batch = make_batch([[1.0, 0.0, 0.0]], [[2, 3, 4]], truncated=[(0, 2)])
    row = algorithm("dapo", max_tokens=100, scale="none")
    advantages_T = compute_advantages(batch, row)
    assert advantages_T[0].item() == pytest.approx(1 - 1 / 3)
    assert not advantages_T[batch.row_T == 2].any()
    assert not loss_mask(batch, row)[batch.row_T == 2].any()
    assert loss_mask(batch, algorithm("grpo"))[batch.row_T == 2].all()


def test_tokens_that_were_not_sampled_carry_nothing() -> None:
    batch = make_batch([[1.0, 0.0]], [[4, 3]], unsampled=[(0, 0, 2)])
    assert loss_mask(batch, algorithm("grpo")).tolist() == [True, True, False] + [True] * 4
    assert compute_advantages(batch, algorithm("grpo"))[2] == 0


def test_overlong_penalty_by_hand() -> None:
    length_R = torch.tensor([1, 15, 16, 17, 18, 20, 25])
    penalty = overlong_penalty(length_R, max_tokens=20, buffer=4)
    assert penalty.tolist() == [0, 0, 0, -0.25, -0.5, -1, -1]


def test_overlong_penalty_enters_the_reward() -> None:
    batch = make_batch([[1.0, 1.0]], [[8, 5]])
    row = algorithm("dapo", max_tokens=8, overlong_buffer=4)
    assert shape_rewards(batch, row).tolist() == [0.0, 0.75]


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_kl_in_the_reward_is_the_whole_completions(estimator: str) -> None:
    batch = scored(make_batch([[1.0, 0.0, 0.5]], [[2, 3, 4]], unsampled=[(0, 1, 0)]))
    row = algorithm("rloo", kl_weight=0.1, kl_estimator=estimator)
    assert batch.old_logprobs_T is not None and batch.ref_logprobs_T is not None
    returns = [1.0, 0.0, 0.5]
    for token in range(batch.num_tokens):
        if not batch.sampled_T[token]:
            continue
        d = float(batch.old_logprobs_T[token]) - float(batch.ref_logprobs_T[token])
        kl = {"k1": d, "k2": d * d / 2, "k3": math.exp(-d) - 1 + d}[estimator]
        returns[int(batch.row_T[token])] -= 0.1 * kl
    want = slow_group(list(returns), "leave_one_out", "none", 1)
    got = compute_advantages(batch, row)
    for token in range(batch.num_tokens):
        expected = want[int(batch.row_T[token])] if batch.sampled_T[token] else 0.0
        assert float(got[token]) == pytest.approx(expected, abs=1e-6)


def test_kl_in_the_reward_needs_a_scored_batch() -> None:
    with pytest.raises(ValueError, match=r"Learner\.score"):
        compute_advantages(make_batch([[1.0, 0.0]]), algorithm("rloo", kl_weight=0.1))
