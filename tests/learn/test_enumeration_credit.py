"""The expected gradient under credit that varies along a completion: to go, by steps, by a critic."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny_policy import (
    COMPLETIONS,
    REWARDS,
    World,
    assert_same,
    batches,
    cosine,
    expected_gradient,
    gradient,
    probabilities,
    random_tables,
    token_logprobs,
    true_gradient,
)
from torch import Tensor

from assay.learn.algorithms import ALGORITHMS, Algorithm, algorithm

STEPS = {
    0: (0.7,),
    1: (0.2, 0.9),
    2: (0.2, 0.4),
    3: (0.2, -0.6),
    4: (-0.1, 0.0),
    5: (-0.1, 0.3),
    6: (-0.1, 1.0),
}
STEP_SUMS = tuple(sum(STEPS[n]) for n in range(len(COMPLETIONS)))
SUMMED: dict[str, Any] = {"aggregation": "constant_length", "length_divisor": 1.0}


def regularized(
    tables: Tensor, reference: Tensor, weight: float, rewards: Sequence[float] = REWARDS
) -> Tensor:
    """E[r] - weight KL(policy || reference), over completions."""
    chance, ref_chance = probabilities(tables), probabilities(reference).detach()
    kl = (chance * (chance / ref_chance).log()).sum()
    return (chance * torch.tensor(rewards).double()).sum() - weight * kl


@pytest.mark.parametrize("group_size", [2, 3])
def test_k1_of_the_completion_in_the_reward_is_the_regularized_objective(group_size: int) -> None:
    tables, reference = random_tables(), random_tables(1)
    row = algorithm("rloo", kl_weight=0.3)
    got = expected_gradient(tables, row, group_size, reference=reference)
    assert_same(got, gradient(regularized(tables, reference, 0.3), tables))


@pytest.mark.parametrize(("baseline", "group_size"), [("none", 1), ("leave_one_out", 2)])
def test_k1_to_go_is_the_regularized_objective_too(baseline: str, group_size: int) -> None:
    """A token is charged only what it and later ones cost: what came before has expectation zero."""
    tables, reference = random_tables(), random_tables(1)
    row = algorithm("rloo", kl_weight=0.3, credit="to_go", baseline=baseline)
    got = expected_gradient(tables, row, group_size, reference=reference)
    assert_same(got, gradient(regularized(tables, reference, 0.3), tables))


def test_reinforce_plus_plus_less_its_whitening_is_unbiased() -> None:
    tables, reference = random_tables(), random_tables(1)
    row = algorithm("reinforce_plus_plus", **SUMMED)
    row = algorithm(
        "rloo", **{key: getattr(row, key) for key in ("credit", "baseline")}, kl_weight=0.01
    )
    got = expected_gradient(tables, row, reference=reference)
    assert_same(got, gradient(regularized(tables, reference, 0.01), tables))


@pytest.mark.parametrize("clamp", [False, True])
def test_clamping_the_kl_at_zero_climbs_another_objective(clamp: bool) -> None:
    """E[sum_t max(k1_t, 0)], held fixed, is what is charged: not a KL."""
    tables, reference = random_tables(), random_tables(1)
    row = algorithm("rloo", kl_weight=0.3, baseline="none", kl_clamp=clamp)
    got = expected_gradient(tables, row, reference=reference)
    charged: list[float] = []
    for completion, reward in enumerate(REWARDS):
        k1 = token_logprobs(tables, [completion]) - token_logprobs(reference, [completion])
        k1 = k1.clamp(min=0) if clamp else k1
        charged.append(reward - 0.3 * k1.sum().item())
    assert_same(got, true_gradient(tables, charged))


def to_go_gradient(
    tables: Tensor, token_rewards: Sequence[Sequence[float]], gamma: float
) -> Tensor:
    """E[sum_t grad log p_t sum_k gamma^k r_{t+k}], token by token."""
    total = torch.zeros((), dtype=torch.float64)
    chance = probabilities(tables).detach()
    for completion, rewards in enumerate(token_rewards):
        logprobs = token_logprobs(tables, [completion])
        for token in range(len(rewards)):
            to_go = sum(r * gamma**k for k, r in enumerate(rewards[token:]))
            total = total + chance[completion] * to_go * logprobs[token]
    return gradient(total, tables)


@pytest.mark.parametrize("gamma", [1.0, 0.7, 0.0])
@pytest.mark.parametrize(("baseline", "group_size"), [("none", 1), ("leave_one_out", 2)])
def test_discounting_by_token(gamma: float, baseline: str, group_size: int) -> None:
    """gamma < 1 credits early tokens with less of the outcome: another objective. RLOO's baseline is free."""
    tables = random_tables()
    row = algorithm("rloo", credit="to_go", gamma=gamma, baseline=baseline)
    got = expected_gradient(tables, row, group_size)
    outcomes = [(0.0,) * (len(c) - 1) + (r,) for c, r in zip(COMPLETIONS, REWARDS, strict=True)]
    assert_same(got, to_go_gradient(tables, outcomes, gamma))
    assert (cosine(got, true_gradient(tables)) > 1 - 1e-9) == (gamma == 1.0)


def test_step_rewards_without_a_baseline_climb_their_sum() -> None:
    tables = random_tables()
    row = algorithm("rloo", credit="steps", baseline="none")
    got = expected_gradient(tables, row, 1, World(steps=STEPS))
    assert_same(got, true_gradient(tables, STEP_SUMS))


def test_a_kl_beside_step_rewards_is_charged_token_by_token() -> None:
    tables, reference = random_tables(), random_tables(1)
    row = algorithm("rloo", credit="steps", baseline="none", kl_weight=0.3)
    got = expected_gradient(tables, row, 1, World(steps=STEPS), reference=reference)
    objective = regularized(tables, reference, 0.3, STEP_SUMS)
    assert_same(got, gradient(objective, tables))


def test_step_scores_that_look_ahead_are_biased() -> None:
    """What a step's own later tokens earned it is not credited to them: scores must be of the prefix."""
    tables = random_tables()
    row = algorithm("rloo", credit="steps", baseline="none")
    ahead = {n: (scores[-1], 0.0)[: len(scores)] for n, scores in STEPS.items()}
    got = expected_gradient(tables, row, 1, World(steps=ahead))
    assert cosine(got, true_gradient(tables, [sum(ahead[n]) for n in range(7)])) < 0.99


def test_a_baseline_of_steps_charges_for_each_step() -> None:
    """The steps of other completions as baseline b: E[sum r] less E[b] times the number of steps.

    A token's credit is the sum over steps to come, of which there are more in longer completions: any
    baseline of steps is a price a step. No outcome reward has this bias.
    """
    tables = random_tables()
    row = algorithm("rloo", credit="steps")
    got = expected_gradient(tables, row, 2, World(steps=STEPS))
    chance = probabilities(tables).detach()
    price = sum(chance[n].item() * STEP_SUMS[n] / len(STEPS[n]) for n in range(len(COMPLETIONS)))
    charged = [total - price * len(STEPS[n]) for n, total in enumerate(STEP_SUMS)]
    assert_same(got, true_gradient(tables, charged))
    assert cosine(got, true_gradient(tables, STEP_SUMS)) < 0.999


def test_grpo_process_is_its_formula() -> None:
    """DeepSeekMath 4.1.3 token by token: normalized over all steps of the group, summed from the token on."""
    tables = random_tables()
    row = algorithm("grpo_process", kl_weight=0.0)
    got = expected_gradient(tables, row, 2, World(steps=STEPS))
    chance = probabilities(tables).detach()
    total = torch.zeros((), dtype=torch.float64)
    for (group,) in batches(2):
        every = torch.tensor([s for n in group for s in STEPS[n]], dtype=torch.float64)
        for completion in group:
            normalized = [
                (s - every.mean().item()) / (every.std().item() + 1e-4) for s in STEPS[completion]
            ]
            logprobs = token_logprobs(tables, [completion])
            for token in range(len(logprobs)):
                weight = chance[list(group)].prod() / (2 * len(logprobs))
                total = total + weight * sum(normalized[token:]) * logprobs[token]
    assert_same(got, gradient(total, tables))


def state_values(tables: Tensor) -> tuple[float, float, float]:
    """The true value of each state: the expected outcome from there on."""
    chance = probabilities(tables).detach()
    outcome = torch.tensor(REWARDS).double()
    start = (chance * outcome).sum().item()
    values = [start]
    for token in (1, 2):
        through = [n for n, c in enumerate(COMPLETIONS) if c[0] == token]
        values.append(((chance * outcome)[through].sum() / chance[through].sum()).item())
    return values[0], values[1], values[2]


def ppo(gae_lambda: float, kl_weight: float = 0.0) -> Algorithm:
    """PPO's row less its whitening, summed over tokens."""
    row = ALGORITHMS["ppo"]
    return replace(
        row, gae_lambda=gae_lambda, kl_weight=kl_weight, whiten_advantages=False, **SUMMED
    )


def test_lambda_one_is_unbiased_whatever_the_critic_says() -> None:
    tables = random_tables()
    got = expected_gradient(tables, ppo(1.0), 1, World(values=(5.0, -3.0, 0.2)))
    assert_same(got, true_gradient(tables))


@pytest.mark.parametrize("gae_lambda", [0.0, 0.5, 0.95])
def test_a_smaller_lambda_is_unbiased_only_under_true_values(gae_lambda: float) -> None:
    tables = random_tables()
    row = ppo(gae_lambda)
    got = expected_gradient(tables, row, 1, World(values=state_values(tables)))
    assert_same(got, true_gradient(tables))
    wrong = expected_gradient(tables, row, 1, World(values=(5.0, -3.0, 0.2)))
    assert cosine(wrong, true_gradient(tables)) < 0.999


def test_ppo_charges_the_kl_token_by_token() -> None:
    """Lambda 1, not whitened, no critic: the gradient of E[r] - weight KL."""
    tables, reference = random_tables(), random_tables(1)
    got = expected_gradient(tables, ppo(1.0, kl_weight=0.3), reference=reference)
    assert_same(got, gradient(regularized(tables, reference, 0.3), tables))
