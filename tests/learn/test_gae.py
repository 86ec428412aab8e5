"""Credit over time is that of its definition, whatever lies between the tokens that were chosen."""

import math

import pytest
import torch
from torch import Tensor

from assay.learn.gae import discounted_to_go, gae_advantages


def slow_gae(
    rewards: Tensor,
    values: Tensor,
    row_T: Tensor,
    acts: Tensor,
    gamma: float,
    gae_lambda: float,
) -> Tensor:
    """The definition, one chosen token at a time: every later delta, each with its own discount."""
    advantages = torch.zeros(len(rewards), dtype=torch.float64)
    for row in row_T.unique().tolist():
        members = [t for t in range(len(row_T)) if row_T[t] == row]
        chosen = [t for t in members if acts[t]]
        deltas = []
        for place, t in enumerate(chosen):
            last = place + 1 == len(chosen)
            until = len(row_T) if last else chosen[place + 1]
            reward = sum(float(rewards[u]) for u in members if t <= u < until)
            next_value = 0.0 if last else float(values[chosen[place + 1]])
            deltas.append(reward + gamma * next_value - float(values[t]))
        for place, t in enumerate(chosen):
            advantages[t] = sum(
                (gamma * gae_lambda) ** later * delta for later, delta in enumerate(deltas[place:])
            )
    return advantages


def a_case(seed: int, share_chosen: float = 0.7) -> tuple[Tensor, Tensor, Tensor, int, Tensor]:
    """Rewards, values, rows, their number and chosen tokens; some rows are empty, or have none chosen."""
    generator = torch.Generator().manual_seed(seed)
    length_R = torch.randint(0, 40, (9,), generator=generator)
    row_T = torch.repeat_interleave(torch.arange(9), length_R)
    size = len(row_T)
    rewards = torch.randn(size, generator=generator)
    values = torch.randn(size, generator=generator)
    acts = torch.rand(size, generator=generator) < share_chosen
    acts &= row_T != 3
    return rewards, values, row_T, 9, acts


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("gamma", [1.0, 0.9, 0.0])
@pytest.mark.parametrize("gae_lambda", [1.0, 0.95, 0.0])
def test_advantages_are_those_of_the_definition(seed: int, gamma: float, gae_lambda: float) -> None:
    rewards, values, row_T, num_rows, acts = a_case(seed)
    found = gae_advantages(rewards, values, row_T, num_rows, acts, gamma, gae_lambda)
    want = slow_gae(rewards, values, row_T, acts, gamma, gae_lambda)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, want, rtol=0, atol=1e-12)
    assert not found[~acts].any()


@pytest.mark.parametrize("gamma", [1.0, 0.97, 0.0])
def test_rewards_to_go_are_those_of_the_definition(gamma: float) -> None:
    rewards, values, row_T, num_rows, acts = a_case(5)
    found = discounted_to_go(rewards, row_T, num_rows, acts, gamma)
    want = slow_gae(rewards, torch.zeros_like(values), row_T, acts, gamma, 1.0)
    torch.testing.assert_close(found, want, rtol=0, atol=1e-12)


def test_a_row_of_many_tokens_decays_as_powers_do() -> None:
    size, decay = 3001, 0.99
    rewards = torch.zeros(size)
    rewards[-1] = 1.0
    row_T, acts = torch.zeros(size, dtype=torch.long), torch.ones(size, dtype=torch.bool)
    found = discounted_to_go(rewards, row_T, 1, acts, decay)
    powers = torch.tensor([math.pow(decay, size - 1 - t) for t in range(size)], dtype=torch.float64)
    torch.testing.assert_close(found, powers, rtol=1e-12, atol=0)


def test_the_bandit_case_is_the_reward_of_the_row_less_the_value() -> None:
    """Gamma = lambda = 1 with one reward at the end: each token's advantage is R - V(s_t)."""
    row_T = torch.tensor([0, 0, 0, 1, 1])
    rewards = torch.tensor([0.0, 0.0, 2.0, 0.0, -1.0])
    values = torch.tensor([0.5, 1.5, 3.0, -1.0, 0.25])
    acts = torch.ones(5, dtype=torch.bool)
    found = gae_advantages(rewards, values, row_T, 2, acts, 1.0, 1.0)
    want = torch.tensor([1.5, 0.5, -1.0, 0.0, -1.25], dtype=torch.float64)
    torch.testing.assert_close(found, want, rtol=0, atol=0)


def test_lambda_zero_looks_one_chosen_token_ahead() -> None:
    """The token between was not chosen: its value is not asked, and its reward is the first's."""
    row_T = torch.zeros(3, dtype=torch.long)
    rewards, values = torch.tensor([0.0, 4.0, 1.0]), torch.tensor([1.0, 100.0, 2.0])
    acts = torch.tensor([True, False, True])
    found = gae_advantages(rewards, values, row_T, 1, acts, 0.5, 0.0)
    want = torch.tensor([4.0 + 0.5 * 2.0 - 1.0, 0.0, 1.0 - 2.0], dtype=torch.float64)
    torch.testing.assert_close(found, want, rtol=0, atol=0)


def test_a_reward_before_the_first_chosen_token_is_nobodys() -> None:
    row_T = torch.tensor([0, 0, 1, 1])
    acts = torch.tensor([True, True, False, True])
    found = discounted_to_go(torch.tensor([1.0, 1.0, 8.0, 1.0]), row_T, 2, acts, 1.0)
    assert found.tolist() == [2.0, 1.0, 0.0, 1.0]


def test_a_batch_in_which_nothing_was_chosen_has_no_advantage() -> None:
    row_T = torch.tensor([0, 0])
    none = torch.zeros(2, dtype=torch.bool)
    ones = torch.ones(2)
    assert gae_advantages(ones, ones, row_T, 1, none, 0.9, 0.9).tolist() == [0.0, 0.0]
    empty = torch.zeros(0)
    assert not len(discounted_to_go(empty, empty.long(), 0, empty.bool(), 0.9))
