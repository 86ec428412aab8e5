"""What each row's gradient is in expectation, by enumerating every group: the bias of baselines and scales.

On-policy, unclipped. The bias of what is left out is in `test_enumeration_exclusions`, that of credit in
`test_enumeration_credit`, that of surrogates and KL in `test_enumeration_surrogates`.
"""

import itertools

import pytest
import torch
from tiny_policy import (
    BINARY,
    COMPLETIONS,
    REWARDS,
    World,
    assert_same,
    cosine,
    expected_gradient,
    probabilities,
    random_tables,
    stated_gradient,
    true_gradient,
)
from torch import Tensor

from assay.learn.algorithms import Algorithm, algorithm
from assay.learn.baselines import group_advantages
from assay.learn.losses import token_weights


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("group_size", [1, 2, 3])
def test_reinforce_is_unbiased(group_size: int, seed: int) -> None:
    tables = random_tables(seed)
    got = expected_gradient(tables, algorithm("reinforce"), group_size)
    assert_same(got, true_gradient(tables))


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("group_size", [2, 3])
@pytest.mark.parametrize("surrogate", ["clip", "ratio", "cispo", "log_likelihood"])
def test_rloo_is_unbiased(group_size: int, seed: int, surrogate: str) -> None:
    tables = random_tables(seed)
    got = expected_gradient(tables, algorithm("rloo", surrogate=surrogate), group_size)
    assert_same(got, true_gradient(tables))


@pytest.mark.parametrize("group_size", [2, 3])
def test_dr_grpo_is_unbiased_up_to_a_constant(group_size: int) -> None:
    """The mean that includes the sample itself costs (G-1)/G; the constant length a factor too."""
    tables = random_tables()
    got = expected_gradient(tables, algorithm("dr_grpo", max_tokens=5), group_size)
    assert_same(got * 5, (group_size - 1) / group_size * true_gradient(tables))


@pytest.mark.parametrize("seed", [0, 2])
def test_the_median_costs_a_factor_that_depends_on_the_question(seed: int) -> None:
    """With right-or-wrong rewards and three siblings, p^2 + (1 - p)^2 at pass rate p.

    Only a completion that differs from both others has an advantage: of 1 where the others are wrong,
    of -1 where they are right.
    """
    tables = random_tables(seed)
    row = algorithm("rloo", baseline="median")
    got = expected_gradient(tables, row, 3, World(rewards=BINARY))
    chance = (probabilities(tables).detach() * torch.tensor(BINARY)).sum().item()
    assert_same(got, (chance**2 + (1 - chance) ** 2) * true_gradient(tables, BINARY))


def test_the_median_of_two_is_their_mean() -> None:
    tables = random_tables()
    got = expected_gradient(tables, algorithm("rloo", baseline="median"), 2)
    assert_same(got, true_gradient(tables) / 2)


def test_the_median_changes_the_direction() -> None:
    """Three siblings with graded rewards: as the formula says, and not along the true gradient."""
    tables = random_tables()

    def coefficients(group: tuple[int, ...]) -> list[float]:
        rewards = [REWARDS[n] for n in group]
        return [(reward - sorted(rewards)[1]) / 3 for reward in rewards]

    got = expected_gradient(tables, algorithm("rloo", baseline="median"), 3)
    assert_same(got, stated_gradient(tables, 3, coefficients))
    assert cosine(got, true_gradient(tables)) < 0.9999


@pytest.mark.parametrize("name", ["grpo", "dapo"])
def test_std_and_length_normalization_change_the_direction(name: str) -> None:
    tables = random_tables()
    row = algorithm(name, kl_weight=0.0, overlong_buffer=0, max_tokens=2)
    got = expected_gradient(tables, row, 3)
    assert 0.5 < cosine(got, true_gradient(tables)) < 0.999


def test_the_std_alone_changes_the_direction() -> None:
    tables = random_tables()
    got = expected_gradient(tables, algorithm("rloo", scale="std"), 3)
    assert cosine(got, true_gradient(tables)) < 0.9999


def test_the_std_of_two_leaves_only_who_was_better() -> None:
    """Two siblings: (r - mean) / std is +-1/sqrt(2), however far apart their rewards are."""
    tables = random_tables()

    def coefficients(group: tuple[int, ...]) -> list[float]:
        one, other = (REWARDS[n] for n in group)
        sign = (one > other) - (one < other)
        return [sign / 2**1.5, -sign / 2**1.5]

    row = algorithm("dr_grpo", scale="std", length_divisor=1.0, std_epsilon=0.0)
    assert_same(expected_gradient(tables, row, 2), stated_gradient(tables, 2, coefficients))


def test_a_random_token_count_changes_the_direction() -> None:
    """Each completion is divided by the tokens of all: E[X / N] is not E[X] / E[N]."""
    tables = random_tables()
    row = algorithm("rloo", aggregation="token_mean")
    got = expected_gradient(tables, row, 2)

    def coefficients(group: tuple[int, ...]) -> list[float]:
        one, other = group
        tokens = len(COMPLETIONS[one]) + len(COMPLETIONS[other])
        difference = REWARDS[one] - REWARDS[other]
        return [difference / tokens, -difference / tokens]

    assert_same(got, stated_gradient(tables, 2, coefficients))
    # First and second tokens keep their own directions, yet not their proportion.
    shares = [(got[n] / true_gradient(tables)[n]).mean().item() for n in range(3)]
    assert max(shares) / min(shares) > 1.02
    unbiased = expected_gradient(tables, algorithm("rloo"), 2) / true_gradient(tables)
    assert (unbiased.max() / unbiased.min()).item() == pytest.approx(1.0, rel=1e-5)


def test_a_constant_token_count_changes_nothing() -> None:
    """Where all completions have two tokens, the token mean is the sum of two over 4, half the mean of sums."""
    tables = of_two_tokens()
    got = expected_gradient(tables, algorithm("rloo", aggregation="token_mean"), 2)
    assert_same(got * 2, true_gradient(tables))


def difficulty_weight(chance: float, scale: str, group_size: int = 6) -> float:
    """The expected gradient over the true one on a question answered right with this chance.

    The policy is one logit z, so grad log p(right) = 1 - chance and grad log p(wrong) = -chance.
    """
    outcomes = torch.tensor(list(itertools.product([0.0, 1.0], repeat=group_size))).double()
    advantages = group_advantages(
        outcomes.flatten(),
        torch.ones(outcomes.numel(), dtype=torch.bool),
        torch.arange(len(outcomes)).repeat_interleave(group_size),
        len(outcomes),
        baseline="leave_one_out",
        scale=scale,  # type: ignore[arg-type]
    ).reshape(outcomes.shape)
    chances = torch.where(outcomes == 1, chance, 1 - chance).prod(dim=1)
    estimates = (advantages * (outcomes - chance)).mean(dim=1)
    return (chances * estimates).sum().item() / (chance * (1 - chance))


def test_the_std_weighs_easy_and_hard_questions_more() -> None:
    """The difficulty bias of Liu et al. 2025, section 3.1."""
    for chance in (0.5, 0.95, 0.05):
        assert difficulty_weight(chance, "none") == pytest.approx(1.0)
    middle = difficulty_weight(0.5, "std")
    assert difficulty_weight(0.95, "std") > middle * 1.1
    assert difficulty_weight(0.05, "std") > middle * 1.1


@pytest.mark.parametrize(
    ("aggregation", "share"), [("constant_length", 1.0), ("sequence_mean", 0.5)]
)
def test_the_sequence_mean_spares_long_wrong_completions(aggregation: str, share: float) -> None:
    """The length bias of Liu et al. 2025, section 3.1.

    Token 0 is wrong and short, token 1 is wrong and goes on with one certain token, token 2 is
    right; 0 and 1 are equally likely. The true gradient pushes both down alike; divided by its length, the
    longer is pushed half as much (before the softmax couples them).
    """
    tables = torch.full((3, 3), -50.0, dtype=torch.float64)
    tables[0] = torch.tensor([0.25, 0.25, 0.5]).log()
    tables[1, 0] = tables[2, 0] = 50.0
    tables.requires_grad_()
    right = (0.0,) * 4 + (1.0,) * 3
    row = algorithm("rloo", aggregation=aggregation)
    true = true_gradient(tables, right)[0]
    assert true[0].item() == pytest.approx(true[1].item())
    short, long = pulls(tables, row, torch.tensor(right).double())
    assert long / short == pytest.approx(share)
    got = expected_gradient(tables, row, 2, World(rewards=right))[0]
    assert (got[1] > got[0] + 1e-6).item() == (share < 1)


def pulls(tables: Tensor, row: Algorithm, rewards: Tensor) -> tuple[float, float]:
    """The expected weight on the first token's log-probability of completions (0,) and (1, 0)."""
    chance = probabilities(tables).detach()
    totals = {0: 0.0, 1: 0.0}
    for group in itertools.product(range(len(COMPLETIONS)), repeat=2):
        row_T = torch.tensor([n for n, c in enumerate(group) for _ in COMPLETIONS[c]])
        advantages_R = group_advantages(
            rewards[list(group)],
            torch.ones(2, dtype=torch.bool),
            torch.zeros(2, dtype=torch.long),
            1,
            baseline=row.baseline,
            scale=row.scale,
        )
        everywhere_T = torch.ones(len(row_T), dtype=torch.bool)
        weights_T = token_weights(everywhere_T, row_T, 2, row.aggregation)
        for number, completion in enumerate(group):
            if completion in totals:
                first = int((row_T == number).nonzero()[0])
                pull = weights_T[first] * advantages_R[number]
                totals[completion] += (chance[list(group)].prod() * pull).item()
    return totals[0], totals[1]


def of_two_tokens(seed: int = 0) -> Tensor:
    """A policy whose completions all have two tokens."""
    tables = random_tables(seed).detach()
    tables[0, 0] = -60.0
    return tables.requires_grad_()


def test_whitening_two_prompts_leaves_only_which_went_better() -> None:
    """REINFORCE++ on two prompts: four tokens +-d/2 have a deviation of d / sqrt(3), whatever d is."""
    tables = of_two_tokens()
    row = algorithm("reinforce_plus_plus", kl_weight=0.0)
    got = expected_gradient(tables, row, num_groups=2)

    def coefficients(group: tuple[int, ...]) -> list[float]:
        one, other = (REWARDS[n] for n in group)
        sign = (one > other) - (one < other)
        return [sign * 3**0.5 / 8, -sign * 3**0.5 / 8]

    want = stated_gradient(tables, 2, coefficients)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-8)


def test_the_bias_of_whitening_falls_with_the_batch() -> None:
    """The batch's mean and deviation hold the sample itself, the less the larger the batch is."""
    tables = of_two_tokens()
    row = algorithm("reinforce_plus_plus", kl_weight=0.0)
    true = true_gradient(tables)
    errors = [
        1 - cosine(expected_gradient(tables, row, num_groups=number), true) for number in (2, 3)
    ]
    assert errors[0] > 1.2 * errors[1] > 1e-6


def test_the_group_mean_under_whitening_keeps_its_own_bias() -> None:
    """REINFORCE++ with baseline, one group of two: (r - mean) over the batch's deviation, two tokens each."""
    tables = of_two_tokens()
    row = algorithm("reinforce_plus_plus_baseline", kl_weight=0.0)
    got = expected_gradient(tables, row, 2)
    two_prompts = algorithm("reinforce_plus_plus", kl_weight=0.0)
    torch.testing.assert_close(got, expected_gradient(tables, two_prompts, num_groups=2))
    assert cosine(got, true_gradient(tables)) < 0.9999


@pytest.mark.parametrize(("mode", "shift"), [("scale", 0.0), ("shift_and_scale", 1.0)])
def test_whitened_rewards_of_two(mode: str, shift: float) -> None:
    """Two completions: rewards become mean +- 1/sqrt(2); with the shift, +- 1/sqrt(2)."""
    tables = random_tables()
    row = algorithm("reinforce", whiten_rewards=mode)
    got = expected_gradient(tables, row, 2)

    def coefficients(group: tuple[int, ...]) -> list[float]:
        one, other = (REWARDS[n] for n in group)
        mean, sign = (one + other) / 2, (one > other) - (one < other)
        return [((1 - shift) * mean + way * sign / 2**0.5) / 2 for way in (1, -1)]

    want = stated_gradient(tables, 2, coefficients)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-8)
